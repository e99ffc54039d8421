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
from paratune.config.trainer.table import MEANT
from paratune.config.yaml_tree import read_scalar, read_tree
from paratune.errors import did_you_mean, nearest_name

_WORDS = {
    "run.name": "run_name experiment_name job_name",
    "run.folder": "output_dir output output_path save_path log_dir logging_dir",
    "run.seed": "manual_seed",
    "task.kind": "task_name task_type problem_type objective",
    "task.labels": "num_labels num_classes n_classes label_names label_list class_names classes id2label label2id",
    "task.label_smoothing": "label_smoothing_factor",
    "data.train": "data_file data_files data_dir dataset_name dataset_path train_file train_dataset training_data "
    "input_file",
    "data.validation": "validation_file validation_data validation_path valid_file valid_data val_data dev_file "
    "dev_data eval_data eval_dataset",
    "data.test": "test_file test_data test_path test_dataset",
    "data.columns.text": "text_column_name text_col sentence1_key input_column",
    "data.columns.text_pair": "sentence2_key text_pair_column",
    "data.columns.label": "label_column_name label_col target_column",
    "data.split.validation": "validation_split val_split val_size valid_size validation_size dev_size",
    "data.split.test": "test_split test_size",
    "data.max_length": "max_seq_length max_sequence_length seq_len sequence_length",
    "data.num_workers": "dataloader_num_workers",
    "model.name": "model_name_or_path model_id model_type pretrained_model_name_or_path pretrained backbone "
    "checkpoint_path",
    "model.tokenizer": "tokenizer_name tokenizer_path",
    "model.adapter": "lora peft lora_config use_lora",
    "train.epochs": "num_train_epochs nb_epochs num_epoch epoch train_epochs",
    "train.max_steps": "num_steps max_train_steps num_training_steps total_steps max_iters",
    "train.learning_rate": "learn_rate base_lr max_lr init_lr",
    "train.schedule": "lr_scheduler_type lr_schedule scheduler_type scheduler_name",
    "train.warmup_steps": "num_warmup_steps warm_up_steps",
    "train.warmup_ratio": "warmup warmup_fraction",
    "train.optimizer": "optim optimizer_name optimizer_type",
    "train.weight_decay": "wd l2",
    "train.max_grad_norm": "gradient_clipping clip_norm max_norm",
    "train.activation_checkpointing": "gradient_checkpointing",
    "train.compile": "torch_compile",
    "train.freeze_encoder": "freeze_bert freeze_backbone freeze_base freeze_base_model",
    "batch.global": "batch_size global_batch_size train_batch_size total_batch_size effective_batch_size bs bsz",
    "batch.per_device": "per_device_train_batch_size per_gpu_train_batch_size",
    "batch.grad_accum_steps": "gradient_accumulation_steps grad_accum",
    "evaluate.every": "eval_strategy evaluation_strategy eval_every",
    "evaluate.steps": "eval_steps val_check_interval",
    "evaluate.batch_size": "per_device_eval_batch_size val_batch_size test_batch_size",
    "evaluate.best": "metric_for_best_model best_metric monitor metric metric_name",
    "evaluate.patience": "early_stopping early_stopping_patience",
    "checkpoint.every": "save_strategy save_every",
    "checkpoint.steps": "save_steps",
    "checkpoint.keep": "save_total_limit",
    "measure.log_every": "logging_steps log_interval log_every_n_steps",
    "precision": "fp16 bf16 mixed_precision amp dtype torch_dtype",
}
_KEYS = {word: key for key, words in _WORDS.items() for word in words.split()}
_BY_HAND = {name: _KEYS.get(key) or find_key(key, Config) for name, key in MEANT.items() if not find_key(name, Config)}
ELSEWHERE = _BY_HAND | _KEYS
"""Names of options in other tools and in files that people write by hand, with the option here."""

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

_ALONE = {"model": "name", "data": "train", "batch": "global"}
"""The option that is meant where a section has a single value in place of a mapping."""

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
            if key in values:
                hint = SWITCHES.get(dotted) if values[key] is True else None
                hint = f"; {hint}" if hint else _hint(option, values[key])
                allowed = f"allowed: {option.allowed}{wrong.get(key, '')}"
                findings.add(f"{dotted} is {describe_value(values[key])}; {allowed}{hint}", dotted)
            elif option.required and dotted not in findings.bad:
                required = f"{dotted} is required: {option.help} Allowed: {option.allowed}"
                findings.add(required, dotted, code="config.required")
            if option.required:
                good[key] = _STAND_INS.get(dotted, f"<{dotted}>")
    return good


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
        if path in _ALONE and isinstance(value, str | int) and not hint:
            hint = f"; did you mean {path}: {{{_ALONE[path]}: {value}}}?"
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
    elsewhere = ELSEWHERE.get(_word(key)) if findings.root is Config else None
    if elsewhere or inside or not near:  # `batch_size` is not that of the evaluation
        meant = elsewhere or inside or find_key(_word(key), findings.root)
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


def _word(key: Any) -> str:
    return str(key).lower().replace("-", "_")


def set_for_flag(flag: str, words: Sequence[str] = ()) -> str | None:
    """Return the `--set` that has the effect of a flag, such as "--set train.epochs=3"; None for other flags.

    Names of our options and of arguments of the Hugging Face Trainer are known.

    Args:
        words: All words of the command line; one has the value: "--epochs=3", or the word after "--epochs".
    """
    key = _word(flag.removeprefix("--"))
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
        problem = Problem(f"it is {describe_value(options)}; {allowed}", code="config.syntax")
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
