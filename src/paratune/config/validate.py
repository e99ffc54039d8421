"""Checks each section by itself: unknown and missing keys, wrong types and values, with the nearest valid key."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from paratune.config.glue import GLUE
from paratune.config.layers import read_text
from paratune.config.options import Option, allowed_kinds, find_key, kinds, outside_kind, section_options
from paratune.config.plain import one_line
from paratune.config.problems import Problem, SourceLocation, failure, place_of
from paratune.config.section import Section
from paratune.config.sections import Config
from paratune.config.yaml_tree import read_scalar, read_tree
from paratune.errors import did_you_mean, nearest_name

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
"""Names of options in other tools, such as the Hugging Face Trainer, with the option here."""

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
"""Names of strategies in other tools, with the hint for them."""

SWITCHES = {"train.activation_checkpointing": "write 1 for every block, 2 for every second one"}
"""What to write instead of true for a number that other tools have as a switch."""

_STAND_INS = {"task.labels": ["<a>", "<b>"]}
"""Values that replace invalid required options while sections are checked against each other."""


@dataclass
class Findings:
    """Results of the checks of all sections."""

    problems: list[Problem] = field(default_factory=list)
    bad: set[str] = field(default_factory=set)
    """Keys without a known value: wrong, missing, or perhaps meant by an unknown key."""
    root: type[Section] = Config
    """Class of the file: a configuration, or another kind of file."""

    def add(self, message: str, key: str, *also: str, code: str = "config.invalid_value") -> None:
        """Add a problem of a key; `also` are further keys without a known value because of it."""
        self.problems.append(Problem(message, (key,), code=code))
        self.bad.update((key, *also))


def validate_as(
    root: type[Section], values: Mapping[Any, Any], called: str, path: str = ""
) -> tuple[dict[str, Any], Findings]:
    """Check every section of a configuration, of another kind of file, or of a section of it, by itself.

    Args:
        called: Name of such a file in messages, with its article: "a site"; or of the section; "" for a configuration.
        path: Dotted key of the section in the file.

    Returns:
        The values, with wrong ones left out or replaced so that sections can still be checked against each other; and
        the findings.
    """
    findings = Findings(root=root)
    return _section(root, values, path, called, findings), findings


def _section(
    section: type[Section], values: Mapping[Any, Any], path: str, called: str, findings: Findings
) -> dict[str, Any]:
    """Check one section; `called` is its name in messages: its path, or its kind."""
    options = section_options(section)
    for key in values:
        if key not in options:
            _unknown_option(section, key, path, called, findings)
    wrong = _wrong_values(section, values, path, findings)
    good: dict[str, Any] = {}
    for key, option in options.items():
        dotted = f"{path}.{key}" if path else key
        if option.listed:
            good[key] = _sections(option, values.get(key), dotted, findings)
        elif option.sections and (not option.words or isinstance(values.get(key), Mapping)):
            has_default = option.nullable or (option.by_kind and not option.required)
            if option.nullable and key in values and values[key] is None:
                good[key] = None  # its default may be something else
            elif values.get(key) is not None or not has_default:
                good[key] = _subsection(option, values.get(key), dotted, findings)
        elif key in values and key not in wrong:
            good[key] = values[key]
        else:
            _note_value(option, values, dotted, findings, wrong.get(key, ""))
            if option.required:
                good[key] = _STAND_INS.get(dotted, f"<{dotted}>")
    return good


def _note_value(option: Option, values: Mapping[Any, Any], dotted: str, findings: Findings, reason: str) -> None:
    """Add a finding for a plain value that is wrong, or missing without a default."""
    if option.key in values:
        shown = describe_value(values[option.key])
        hint = SWITCHES.get(dotted) if values[option.key] is True else None
        hint = f"; {hint}" if hint else _hint(option, values[option.key])
        findings.add(f"{dotted} is {shown}; allowed: {option.allowed}{reason}{hint}", dotted)
    elif option.required and dotted not in findings.bad:
        findings.add(f"{dotted} is required: {option.help} Allowed: {option.allowed}", dotted, code="config.required")


def _sections(option: Option, value: Any, path: str, findings: Findings) -> list[dict[str, Any]]:
    if value is None:
        value = option.default or []
    if not isinstance(value, list):
        message = f"{path} is {describe_value(value)}; allowed: {option.allowed}, each after a hyphen"
        findings.add(message, path)
        return []
    return [_subsection(option, item, f"{path}[{number}]", findings) for number, item in enumerate(value)]


def _subsection(option: Option, value: Any, path: str, findings: Findings) -> dict[str, Any]:
    if value is None:
        value = {}  # an empty section, or one whose lines are all comments
    if option.by_kind and isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, dict):
        known = section_options(option.sections[0])
        name, rest = re.match(r"(\w*)[\s:=]*(.*)", str(value), re.DOTALL).groups()  # type: ignore[union-attr]
        hint = f"; did you mean {name}: {rest}?" if rest and name in known else ""
        message = f"{path} is {describe_value(value)}; allowed: a mapping of options ({', '.join(known)}){hint}"
        findings.add(message, path)
        return _stand_in(option, path)
    if not option.by_kind:
        return _section(option.sections[0], value, path, path, findings)
    default_kind = getattr(option.default, "kind", None)  # the default of a list of sections is a list
    if value.get("kind") is None and default_kind is not None:
        value = {**value, "kind": default_kind}
    kind, of_kind = value.get("kind"), kinds(option)
    if isinstance(kind, str) and (section := of_kind.get(kind) or (outside_kind(option) if ":" in kind else None)):
        return _section(section, value, path, kind, findings)
    if kind is None:
        message = f"{path}.kind is required; allowed: {allowed_kinds(option)}"
    else:
        nearest, named = kind_hint if path == "strategy" else did_you_mean, GLUE if path == "task" else ()
        near = nearest(kind, [*of_kind, *named]) if isinstance(kind, str) else ""
        more = f"; or a task of GLUE: {', '.join(named)}" if named else ""
        message = f"{path}.kind is {describe_value(kind)}{near}; allowed: {allowed_kinds(option)}{more}"
    findings.add(message, f"{path}.kind", path, code="config.required" if kind is None else "config.unknown_kind")
    return _stand_in(option, path)


def _stand_in(option: Option, path: str) -> dict[str, Any]:
    values = {"kind": next(iter(kinds(option)))} if option.by_kind else {}
    return _section(option.sections[0], values, path, path, Findings())


def kind_hint(kind: str, known: Iterable[str]) -> str:
    """Return "; " and a hint for an unknown strategy; an empty string where no name is near."""
    name = kind.lower().replace("-", "_")
    meant = STRATEGIES_ELSEWHERE.get(name) or STRATEGIES_ELSEWHERE.get(name.rstrip("12"))
    return f"; {meant}" if meant else did_you_mean(kind, known)


def _unknown_option(section: type[Section], key: Any, path: str, called: str, findings: Findings) -> None:
    dotted = f"{path}.{key}" if path else str(key)
    options = section_options(section)
    message = f"{dotted} is not an option of {called}" if called else f"{dotted} is not a section of a configuration"
    option = section_options(Config).get(path) if findings.root is Config else None
    for kind, other in kinds(option).items() if option is not None and option.by_kind else ():
        if other is not section and key in section_options(other):
            findings.add(f"{message}; {kind} has it ({path}.kind: {kind})", dotted, code="config.unknown_key")
            return
    inside = find_key(key, section, f"{path}." if path else "")
    near = nearest_name(str(key), options)
    elsewhere = ELSEWHERE.get(key) if findings.root is Config else None
    if inside or elsewhere or not near:
        meant = inside or elsewhere or find_key(key, findings.root)
    else:
        meant = f"{path}.{near}" if path else near
    if meant is None:
        findings.add(f"{message}; it has: {', '.join(options)}", dotted, code="config.unknown_key")
        return
    folder, _, name = meant.rpartition(".")
    hint = f"did you mean {name if folder == path else meant}?"
    findings.add(f"{message}; {hint}", dotted, meant, code="config.unknown_key")


def _wrong_values(section: type[Section], values: Mapping[Any, Any], path: str, findings: Findings) -> dict[str, str]:
    """Return the keys that the section's class refuses, with the text of a validator; add a finding of the whole."""
    wrong: dict[str, str] = {}
    try:
        section.model_validate({key: value for key, value in values.items() if isinstance(key, str)})
    except ValidationError as error:
        for detail in error.errors():
            reason = detail["msg"].removeprefix("Value error, ")
            if detail["loc"]:
                key = str(detail["loc"][0])
                wrong[key] = f", {reason}" if detail["type"] == "value_error" else wrong.get(key, "")
            elif detail["type"] != "model_type":
                findings.add(f"{path}: {reason}", path)
    return wrong


def _hint(option: Option, value: Any) -> str:
    allowed = option.allowed
    if value is None:
        return "" if option.required else f"; leave it out for its default, {one_line(option.default)}"
    if isinstance(value, str):
        try:
            meant = read_scalar(value)
        except ValueError:
            meant = value
        if isinstance(meant, bool | int | float) and ("number" in allowed or "true" in allowed):
            return "; remove the quotes"
        if "true or false" in allowed:
            return "; write true or false"
        return did_you_mean(value, allowed.replace(" or ", ", ").split(", "))
    if isinstance(value, float) and value.is_integer() and "whole number" in allowed:
        return f"; write {int(value)}"
    if isinstance(value, list | dict):
        items = value if isinstance(value, list) else [*value, *value.values()]
        odd = [item for item in items if isinstance(item, bool | float) or item is None]
        return f"; put {one_line(odd[0])} in quotes if it is text" if odd and "text" in allowed else ""
    return "; put it in quotes if it is text" if re.search(r"\btext\b", allowed) else ""


def describe_value(value: Any) -> str:
    """Return a value with its type: `3 (a whole number)`, `"3" (text)`, `null`."""
    if value is None:
        return "null"
    names = {str: "text", bool: "true or false", int: "a whole number", float: "a number", list: "a list"}
    shown = f'"{value}"' if isinstance(value, str) else one_line(value)
    short = shown if len(shown) <= 80 else f"{shown[:76]} ..."
    return f"{short} ({names.get(type(value), 'a mapping')})"


def set_for_flag(flag: str, words: Sequence[str] = ()) -> str | None:
    """Return the `--set` that has the effect of a flag, such as "--set train.epochs=3"; None for other flags.

    Names of our options and of arguments of the Hugging Face Trainer are known.

    Args:
        words: All words of the command line; one has the value: "--epochs=3", or the word after "--epochs".
    """
    key = flag.removeprefix("--").replace("-", "_")
    if key in ("fp16", "bf16", "tf32", "fp32"):
        return f"--set precision={key}"
    dotted = "model.name" if key == "model" else ELSEWHERE.get(key) or find_key(key, Config)
    dotted = key if "." in key else dotted
    if dotted is None:
        return None
    attached = next((word for word in words if word.startswith(f"{flag}=")), None)
    following = next(iter(words[words.index(flag) + 1 :]), "--") if flag in words else "--"
    value = "VALUE" if following.startswith("--") else following
    return f"--set {dotted}={value if attached is None else attached.partition('=')[2]}"


S = TypeVar("S", bound=Section)


def read_section_file(
    path: Path, section: type[S], name: str, check: Callable[[dict[str, Any], dict[str, Any], bool], list[Problem]]
) -> S:
    """Return the section in a file.

    Args:
        name: Name of the section in messages, with its article.
        check: Takes valid values, the options in the file, and whether all options are valid; returns further problems.

    Raises:
        ConfigError: The file is unreadable, or has problems, which are listed with their lines.
    """
    tree = read_tree(read_text(path), path.name)
    options = {} if tree.value is None else tree.value
    if not isinstance(options, dict):
        allowed = f"{name} is a mapping of options ({', '.join(section_options(section))})"
        problem = Problem(f"it is {describe_value(options)}; {allowed}", code="config.not_mapping")
        raise failure(path, [*tree.problems, problem], path.name)
    values, findings = validate_as(section, options, name)
    problems = [*tree.problems, *findings.problems]
    problems += check(values, options, not problems)
    if not problems:
        return section.model_validate(values)
    for number, problem in enumerate(problems):
        if problem.keys and problem.place is None:
            place = place_of(problem.keys[0], tree.places) or SourceLocation(path.name, 1)
            problems[number] = replace(problem, place=place)
    raise failure(path, problems, path.name)
