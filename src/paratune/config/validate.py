"""Checks of each section by itself: unknown keys, missing ones, wrong types and values, with the nearest valid key."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from paratune.config.glue import GLUE
from paratune.config.options import Option, allowed_kinds, find_key, kinds, options_of, outside_kind
from paratune.config.plain import one_line
from paratune.config.problems import Problem
from paratune.config.section import Section
from paratune.config.sections import Config
from paratune.config.yaml_tree import read_scalar
from paratune.errors import did_you_mean

ELSEWHERE = {
    "lr": "train.learning_rate",
    "num_epochs": "train.epochs",
    "num_train_epochs": "train.epochs",
    "scheduler": "train.schedule",
    "lr_scheduler_type": "train.schedule",
    "clip_grad_norm": "train.max_grad_norm",
    "batch_size": "batch.global",
    "global_batch_size": "batch.global",
    "per_device_train_batch_size": "batch.per_device",
    "per_device_eval_batch_size": "evaluate.batch_size",
    "gradient_accumulation_steps": "batch.grad_accum_steps",
    "eval_steps": "evaluate.steps",
    "metric_for_best_model": "evaluate.best",
    "early_stopping_patience": "evaluate.patience",
    "save_steps": "checkpoint.steps",
    "save_total_limit": "checkpoint.keep",
    "logging_steps": "measure.log_every",
    "output_dir": "run.folder",
    "model_name_or_path": "model.name",
    "max_seq_length": "data.max_length",
    "train_file": "data.train",
    "validation_file": "data.validation",
    "test_file": "data.test",
    "fp16": "precision",
    "bf16": "precision",
}
"""What options are called by the neighbouring tools, for people who come from there."""

STRATEGIES_ELSEWHERE = {
    "fsdp": "FSDP's full shard is zero3 here, shard_grad_op zero2, hybrid shard hsdp",
    "full_shard": "it is zero3 here",
    "shard_grad_op": "it is zero2 here",
    "hybrid_shard": "it is hsdp here",
    "no_shard": "it is ddp here",
    "zero": "there are zero1, zero2 and zero3, and deepspeed with strategy.stage",
    "gpipe": "it is pipeline with strategy.schedule: gpipe here",
    "1f1b": "it is pipeline with strategy.schedule: 1f1b here",
}
"""What strategies are called elsewhere, and what to say to those who look for them."""

SWITCHES = {"train.activation_checkpointing": "write 1 for every block, 2 for every second one"}
"""What to write instead of true, where other tools have a switch and we a number."""

_STAND_INS = {"task.labels": ["<a>", "<b>"]}
"""What required options hold, while sections are checked against each other, when the user's value cannot be used."""


@dataclass
class Findings:
    """What came out of the checks of all sections."""

    problems: list[Problem] = field(default_factory=list)
    bad: set[str] = field(default_factory=set)
    """Keys whose value is not known: they are wrong, missing, or perhaps meant by a key that does not exist."""
    root: type[Section] = Config
    """What is checked: a configuration, or the class of another file."""

    def add(self, message: str, key: str, *also: str, code: str) -> None:
        """Note a problem of a key; `also` are further keys whose value it leaves open."""
        self.problems.append(Problem(message, (key,), code=code))
        self.bad.update((key, *also))


def validate(values: Mapping[Any, Any]) -> tuple[dict[str, Any], Findings]:
    """Check every section by itself.

    Returns:
        The values with wrong ones left out or replaced by stand-ins, so that sections can be checked against each
        other all the same; and what was found.
    """
    findings = Findings()
    return _section(Config, values, "", "", findings), findings


def validate_as(root: type[Section], values: Mapping[Any, Any], called: str) -> tuple[dict[str, Any], Findings]:
    """Check the values of a file that is no configuration, as `validate` does.

    Args:
        root: Its class.
        values: What it says.
        called: What such a file is in messages, with its article: "a site".
    """
    findings = Findings(root=root)
    return _section(root, values, "", called, findings), findings


def _section(
    section: type[Section], values: Mapping[Any, Any], path: str, called: str, found: Findings
) -> dict[str, Any]:
    """Check one section; `called` is its name in messages: its path, or its kind."""
    options = options_of(section)
    for key in values:
        if key not in options:
            _unknown_option(section, key, path, called, found)
    wrong = _wrong_values(section, values, path, found)
    good: dict[str, Any] = {}
    for key, option in options.items():
        dotted = f"{path}.{key}" if path else key
        if option.listed:
            good[key] = _sections(option, values.get(key), dotted, found)
        elif option.sections:
            has_default = option.nullable or (option.by_kind and not option.required)
            if option.nullable and key in values and values[key] is None:
                good[key] = None  # which need not be its default
            elif values.get(key) is not None or not has_default:
                good[key] = _subsection(option, values.get(key), dotted, found)
        elif key in values and key not in wrong:
            good[key] = values[key]
        else:
            _note_value(option, values, dotted, found)
            if option.required:
                good[key] = _STAND_INS.get(dotted, f"<{dotted}>")
    return good


def _note_value(option: Option, values: Mapping[Any, Any], dotted: str, found: Findings) -> None:
    """Note a plain value that is wrong, or missing where there is no default."""
    if option.key in values:
        shown = describe_value(values[option.key])
        hint = SWITCHES.get(dotted) if values[option.key] is True else None
        hint = f"; {hint}" if hint else _hint(option, values[option.key])
        found.add(f"{dotted} is {shown}; allowed: {option.allowed}{hint}", dotted, code="config.invalid_value")
    elif option.required and dotted not in found.bad:
        found.add(f"{dotted} is required: {option.help} Allowed: {option.allowed}", dotted, code="config.required")


def _sections(option: Option, value: Any, path: str, found: Findings) -> list[dict[str, Any]]:
    if value is None:
        value = option.default or []
    if not isinstance(value, list):
        found.add(
            f"{path} is {describe_value(value)}; allowed: {option.allowed}, each after a hyphen",
            path,
            code="config.invalid_value",
        )
        return []
    return [_subsection(option, each, f"{path}[{number}]", found) for number, each in enumerate(value)]


def _subsection(option: Option, value: Any, path: str, found: Findings) -> dict[str, Any]:
    if value is None:
        # An empty section, or one whose lines are all commented out, says nothing.
        value = {}
    if option.by_kind and isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, dict):
        known = ", ".join(options_of(option.sections[0]))
        found.add(
            f"{path} is {describe_value(value)}; allowed: a mapping of options ({known})",
            path,
            code="config.invalid_value",
        )
        return _stand_in(option, path)
    if not option.by_kind:
        return _section(option.sections[0], value, path, path, found)
    default_kind = getattr(option.default, "kind", None)  # the default of a list of sections is a list
    if value.get("kind") is None and default_kind is not None:
        value = {**value, "kind": default_kind}
    section = _section_of_kind(option, value.get("kind"), path, found)
    return _section(section, value, path, value["kind"], found) if section else _stand_in(option, path)


def _stand_in(option: Option, path: str) -> dict[str, Any]:
    """Return values that a section can have, for one whose own cannot be used."""
    values = {"kind": next(iter(kinds(option)))} if option.by_kind else {}
    return _section(option.sections[0], values, path, path, Findings())


def _section_of_kind(option: Option, kind: Any, path: str, found: Findings) -> type[Section] | None:
    """Return the class that `kind` chooses, or None when it chooses none."""
    known, outside = kinds(option), outside_kind(option)
    if isinstance(kind, str) and kind in known:
        return known[kind]
    if isinstance(kind, str) and ":" in kind and outside is not None:
        return outside
    if kind is None:
        found.add(
            f"{path}.kind is required; allowed: {allowed_kinds(option)}", f"{path}.kind", path, code="config.required"
        )
        return None
    hint = kind_hint if path == "strategy" else did_you_mean
    named = GLUE if path == "task" else ()
    near = hint(kind, [*known, *named]) if isinstance(kind, str) else ""
    more = f"; or a task of GLUE: {', '.join(named)}" if named else ""
    message = f"{path}.kind is {describe_value(kind)}{near}; allowed: {allowed_kinds(option)}{more}"
    found.add(message, f"{path}.kind", path, code="config.unknown_kind")
    return None


def kind_hint(kind: str, known: Iterable[str]) -> str:
    """Return "; " and which strategy is meant by a name that is none; an empty string where none is near."""
    name = kind.lower().replace("-", "_")
    meant = STRATEGIES_ELSEWHERE.get(name) or STRATEGIES_ELSEWHERE.get(name.rstrip("12"))
    return f"; {meant}" if meant else did_you_mean(kind, known)


def _unknown_option(section: type[Section], key: Any, path: str, called: str, found: Findings) -> None:
    dotted = f"{path}.{key}" if path else str(key)
    options = options_of(section)
    what = f"{dotted} is not an option of {called}" if called else f"{dotted} is not a section of a configuration"
    other = _other_kind(section, key, path) if found.root is Config else None
    if other:
        found.add(f"{what}; {other} has it ({path}.kind: {other})", dotted, code="config.unknown_key")
        return
    inside = find_key(key, section, f"{path}." if path else "")
    near = did_you_mean(str(key), options).removeprefix("; did you mean ").removesuffix("?")
    elsewhere = ELSEWHERE.get(key) if found.root is Config else None
    if inside or elsewhere or not near:
        meant = inside or elsewhere or find_key(key, found.root)
    else:
        meant = f"{path}.{near}" if path else near
    if meant is None:
        found.add(f"{what}; it has: {', '.join(options)}", dotted, code="config.unknown_key")
        return
    folder, _, name = meant.rpartition(".")
    found.add(f"{what}; did you mean {name if folder == path else meant}?", dotted, meant, code="config.unknown_key")


def _other_kind(section: type[Section], key: Any, path: str) -> str | None:
    """Return the kind beside this section's that has the option."""
    option = options_of(Config).get(path)
    if option is None or not option.by_kind:
        return None
    return next((kind for kind, each in kinds(option).items() if each is not section and key in options_of(each)), None)


def _wrong_values(section: type[Section], values: Mapping[Any, Any], path: str, found: Findings) -> set[str]:
    """Return the keys of plain values that the section's class refuses; what it refuses as a whole is noted."""
    try:
        section.model_validate({key: value for key, value in values.items() if isinstance(key, str)})
    except ValidationError as error:
        for each in error.errors():
            if not each["loc"] and each["type"] != "model_type":
                found.add(f"{path}: {each['msg'].removeprefix('Value error, ')}", path, code="config.invalid_value")
        return {str(each["loc"][0]) for each in error.errors() if each["loc"]}
    return set()


def _hint(option: Option, value: Any) -> str:
    """Return what to do about a value that comes from a slip that is often made, or an empty string."""
    allowed = option.allowed
    if value is None:
        return "" if option.required else f"; leave it out for its default, {one_line(option.default)}"
    if isinstance(value, str):
        try:
            meant = read_scalar(value)
        except ValueError:
            meant = value
        if isinstance(meant, bool | int | float) and ("number" in allowed or "true" in allowed):
            return "; take off the quotes"
        if "true or false" in allowed:
            return "; write true or false"
        return did_you_mean(value, allowed.replace(" or ", ", ").split(", "))
    if isinstance(value, float) and value.is_integer() and "whole number" in allowed:
        return f"; write {int(value)}"
    if isinstance(value, list | dict):
        items = value if isinstance(value, list) else [*value, *value.values()]
        odd = [item for item in items if isinstance(item, bool | float) or item is None]
        return f"; put {one_line(odd[0])} in quotes if it is text" if odd and "text" in allowed else ""
    return "; put it in quotes if it is text" if "text" in allowed else ""


def describe_value(value: Any) -> str:
    """Return a value as found, with its type: `3 (a whole number)`, `"3" (text)`, `null`."""
    if value is None:
        return "null"
    names = {str: "text", bool: "true or false", int: "a whole number", float: "a number", list: "a list"}
    shown = f'"{value}"' if isinstance(value, str) else one_line(value)
    short = shown if len(shown) <= 80 else f"{shown[:76]} ..."
    return f"{short} ({names.get(type(value), 'a mapping')})"
