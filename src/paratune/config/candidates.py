"""Builds a configuration for each strategy of a command line: `ddp,hsdp:2,pipeline:2:schedule=gpipe`."""

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from paratune.config.choices import SCHEDULES_OF
from paratune.config.load import LoadedConfig
from paratune.config.options import kinds, outside_kind, section_options
from paratune.config.sections import Config
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import TRAITS, strategy_traits
from paratune.config.validate import kind_hint, validate_as
from paratune.config.yaml_tree import read_scalar
from paratune.errors import ConfigError


@dataclass(frozen=True)
class StrategyCandidate:
    """A configuration with one of the strategies."""

    name: str
    """As on the command line."""
    config: Config
    values: dict[str, Any]
    """The configuration as plain data."""
    world_size: int
    layout: str = ""  # of `certify --layouts`


def strategy_names(strategies: str) -> list[str]:
    """Return the strategies of the command line without duplicates.

    Raises:
        ConfigError: There is none.
    """
    # Commas in brackets do not separate strategies: pipeline:balance=[4,2]
    words = re.split(r",(?![^\[\]{}]*[\]}])", strategies)
    names = list(dict.fromkeys(word.strip() for word in words if word.strip()))
    if not names:
        message = "--strategies has no name; for example: --strategies ddp,zero3"
        raise ConfigError(message, code="cli.required", option="--strategies")
    return names


def common_values(loaded: LoadedConfig, num_processes: int, num_steps: int) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration that all strategies train, and a list of the changes in words.

    Args:
        num_processes: Of each strategy except single; with `batch.per_device`, the global batch is that of them all.
    """
    values: dict[str, Any] = json.loads(json.dumps(loaded.values))
    batch, train = values["batch"], values["train"]
    notes = ["dropout off"]
    size, micro = batch["global"], batch["micro_batch_size"]
    if batch["per_device"] is not None:
        micro = batch["per_device"]
        size = micro * (batch["grad_accum_steps"] or 1) * num_processes
        notes.append(f"batch.global: {size}, from batch.per_device and {num_processes} processes")
    if micro == "auto":
        notes.append("micro-batches of the largest size (batch.micro_batch_size: auto has no effect here)")
        micro = None
    batch.update({"global": size, "micro_batch_size": micro, "per_device": None, "grad_accum_steps": None})
    if train["schedule"] != "constant" or train["warmup_steps"] or train["warmup_ratio"]:
        notes.append(f"learning rate {train['learning_rate']:g} from the first step on")
    train.update(schedule="constant", warmup_steps=None, warmup_ratio=None, epochs=None, max_steps=num_steps)
    train.update(dict.fromkeys(SCHEDULES_OF))
    if train["optimizer"] in ("adamw_8bit", "adafactor"):
        # Codes turn differences of rounding into steps; gradients do not depend on the optimizer.
        notes.append(f"AdamW in place of {train['optimizer']}")
        train["optimizer"] = "adamw"
    for section in (values["evaluate"], values["checkpoint"]):
        if section["steps"] is not None:
            section["steps"] = min(section["steps"], num_steps)
    return values, notes


def strategy_candidates(
    loaded: LoadedConfig, common: Mapping[str, Any], names: Sequence[str], num_processes: int
) -> list[StrategyCandidate]:
    """Return `strategy_candidate` of each name.

    Raises:
        ConfigError: Some are wrong; the message lists all of them.
    """
    candidates, errors = [], []
    for name in names:
        try:
            candidates.append(strategy_candidate(loaded, common, name, num_processes))
        except ConfigError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        faults = [fault for error in errors for fault in error.faults]
        heading = f"{len(errors)} of {len(names)} strategies cannot be tried:"
        raise ConfigError(heading, code=faults[0].code, faults=faults)
    return candidates


def strategy_candidate(
    loaded: LoadedConfig, common: Mapping[str, Any], name: str, num_processes: int, layout: str = ""
) -> StrategyCandidate:
    """Return the configuration with one strategy.

    Args:
        loaded: The user's configuration; options of a strategy of the same kind are kept.
        common: From `common_values`.
        name: `kind`, `kind:value` for its first option, `kind:option=value:...`, or package.module:Class.
        num_processes: Of each strategy except those for one process.
        layout: In place of `batch.layout`; "" keeps that.

    Raises:
        ConfigError: There is no such strategy, or it has no such option or value.
    """
    values = deepcopy(dict(common))
    values["batch"]["layout"] = layout or values["batch"]["layout"]
    values["strategy"], problems = strategy_section(loaded, name)
    size = values["batch"]["global"]
    is_alone = name in TRAITS and TRAITS[name].max_world_size == 1
    if is_alone and values["batch"]["micro_batch_size"] is None and size % num_processes == 0:
        # Otherwise one process would need the memory of all processes.
        values["batch"]["micro_batch_size"] = size // num_processes
    values, findings = validate_as(Config, values, "")
    problems += [problem.message for problem in findings.problems]
    if problems:
        option, value = ("--layouts", layout) if layout else ("--strategies", name)
        message = f"{option} {value}: {'; '.join(problems)}"
        raise ConfigError(message, code="cli.invalid_value", option=option, name=value)
    config = Config.model_validate(values)
    traits = strategy_traits(config.strategy.kind, strategy_options(config.strategy))
    world_size = num_processes if traits is None else min(num_processes, traits.max_world_size or num_processes)
    # The caller sets the precision for its device; 16-bit weights allow only their own dtype.
    config = config.model_copy(update={"precision": strategy_options(config.strategy).get("param_dtype", "fp32")})
    shown = f"{name}, {layout}" if layout else name
    return StrategyCandidate(shown, config, config.model_dump(mode="json", by_alias=True), world_size, layout)


def strategy_section(loaded: LoadedConfig, name: str) -> tuple[dict[str, Any], list[str]]:
    """Return the section `strategy` for a name on the command line, and the problems of words that cannot be read.

    Raises:
        ConfigError: There is no such kind.
    """
    option = section_options(Config)["strategy"]
    known = kinds(option)
    kind, *words = name.split(":")
    given = loaded.values["strategy"]
    if kind not in known:
        if outside_kind(option) is not None and len(words) == 1 and words[0].isidentifier():
            return dict(given) if given["kind"] == name else {"kind": name}, []
        message = f"--strategies {name}: {kind} is not a strategy{kind_hint(kind, known)}; allowed: "
        message += f"{', '.join(known)}, package.module:Class"
        raise ConfigError(message, code="strategy.unknown", option="--strategies", name=name, kind=kind)
    section = dict(given) if given["kind"] == kind else {"kind": kind}
    keys = [key for key in section_options(known[kind]) if key != "kind"]
    problems: list[str] = []
    for number, word in enumerate(words):
        key, equals, text = word.partition("=")
        if not equals and number == 0 and keys:
            key, text = keys[0], word
        elif not equals:
            problems.append(f"{word!r} is not option=value; {kind} has: {', '.join(keys)}")
            continue
        try:
            section[key] = read_scalar(text)
        except ValueError as error:
            problems.append(f"{key}: {text!r} is {error}")
    return section, problems
