"""Checks sections of a configuration against each other: a setting that cannot take effect is an error."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator

from paratune.config.check_own_code import OWN_CODE_CHECKS, metrics_of
from paratune.config.check_strategy import STRATEGY_CHECKS
from paratune.config.check_task import TASK_CHECKS
from paratune.config.check_train import FREEZE_KEYS, TRAIN_CHECKS
from paratune.config.contradictions import conflict, exclusive, no_effect, unused
from paratune.config.plain import one_line
from paratune.config.problems import Problem
from paratune.config.sections import Columns, Config, data_sources, named_columns
from paratune.config.sources import local_path
from paratune.config.strategy_sections import strategy_options
from paratune.config.task_sections import ClassificationTask, OrdinalTask
from paratune.config.traits import strategy_traits
from paratune.errors import did_you_mean


def check(config: Config) -> list[Problem]:
    """Return the problems between sections that are valid by themselves.

    Files, devices and the number of processes are not checked here, but before training.
    """
    return [problem for check_part in _CHECKS for problem in check_part(config)]


def _batch(config: Config) -> Iterator[Problem]:
    batch = config.batch
    sizes = ("batch.global", "batch.per_device")
    if batch.global_ is None and batch.per_device is None:
        yield Problem(
            "batch.global or batch.per_device is required: samples per optimizer step", sizes, code="config.required"
        )
        return
    if batch.global_ is not None and batch.per_device is not None:
        yield conflict("batch.global", batch.global_, "batch.per_device", batch.per_device)
        return
    micro = batch.micro_batch_size
    if batch.global_ is None:
        yield from unused(config, "batch.micro_batch_size", "with batch.per_device, which is the same size", *sizes)
    else:
        wanted = "with batch.global, from which it follows; see batch.micro_batch_size"
        yield from unused(config, "batch.grad_accum_steps", wanted, *sizes)
    if batch.global_ and isinstance(micro, int) and micro > batch.global_:
        yield no_effect("batch.micro_batch_size", micro, f"above batch.global: {batch.global_}", *sizes)


def _when(config: Config) -> Iterator[Problem]:
    for name, section in (("evaluate", config.evaluate), ("checkpoint", config.checkpoint)):
        keys = (f"{name}.every", f"{name}.steps")
        if section.every == "steps" and section.steps is None:
            yield Problem(f"{name}.steps is required with {name}.every: steps", keys, code="config.required")
        if section.every != "steps" and section.steps is not None:
            wanted = f"without {name}.every: steps (it is {section.every})"
            yield no_effect(f"{name}.steps", section.steps, wanted, *keys)
        elif section.steps and config.train.max_steps and section.steps > config.train.max_steps:
            message = (
                f"{name}.steps is {section.steps}, more than train.max_steps: {config.train.max_steps}; "
                "it would never be due"
            )
            yield Problem(message, (f"{name}.steps", "train.max_steps"), code="config.never_due")


def _choosing(config: Config) -> Iterator[Problem]:
    """Check the options that select the best model and stop early."""
    evaluate = config.evaluate
    if evaluate.best is None and evaluate.patience is not None:
        message = f"evaluate.patience: {evaluate.patience} needs evaluate.best, the metric that must improve"
        yield Problem(message, ("evaluate.patience", "evaluate.best"), code="config.required")
    if evaluate.patience is None:
        yield from unused(config, "evaluate.min_delta", "without evaluate.patience", "evaluate.patience")
    known = metrics_of(config)
    if evaluate.best is not None and evaluate.best not in known:
        message = (
            f"evaluate.best: {evaluate.best} is not a metric of {config.task.kind}{did_you_mean(evaluate.best, known)}"
            f"; allowed: {', '.join(known)}"
        )
        yield Problem(message, ("evaluate.best", "task.kind"), code="metric.unknown")
    if evaluate.every == "never":
        keys = ("evaluate.best", "evaluate.patience")
        yield from unused(config, keys, "with evaluate.every: never", "evaluate.every")


def _probe(config: Config) -> Iterator[Problem]:
    """Check for options without effect in a probe, which does not evaluate and does not save."""
    if config.measure.probe:
        keys = ("evaluate.best", "evaluate.patience", "evaluate.steps", "checkpoint.steps")
        yield from unused(config, keys, "with measure.probe: true", "measure.probe")


def _baseline(config: Config) -> Iterator[Problem]:
    """Check for settings that a baseline does not support: it is fitted in place of the model."""
    baseline, kind, metric = config.baseline, config.task.kind, config.evaluate.best
    if baseline is None:
        return
    if kind not in ("classification", "regression"):
        message = (
            f"baseline: {baseline.kind} is for task.kind: classification and regression, and task.kind is {kind}; "
            "leave baseline out"
        )
        yield Problem(message, ("baseline", "task.kind"), code="task.unsupported")
    traits = strategy_traits(config.strategy.kind, strategy_options(config.strategy))
    if traits is None or traits.max_world_size != 1:
        wanted = f"with baseline: {baseline.kind}, which is fitted in one process; set strategy: single"
        yield no_effect("strategy.kind", config.strategy.kind, wanted, "baseline")
    wanted = f"with baseline: {baseline.kind}, which has no encoder and no steps"
    yield from unused(config, (*FREEZE_KEYS, "measure.probe", "distil.teacher"), wanted, "baseline")
    if (baseline.estimator, kind, metric) == ("svm", "classification", "loss"):
        wanted = "with baseline.estimator: svm, which has no probabilities; use another metric"
        yield no_effect("evaluate.best", metric, wanted, "baseline.estimator", "baseline")
    has_validation = config.data.validation is not None or (config.data.split and config.data.split.validation_share)
    if len(baseline.inverse_regularization) > 1 and not has_validation:
        key = "baseline.inverse_regularization"
        message = (
            f"{key} has {len(baseline.inverse_regularization)} values, and only a validation set can select one; set "
            "data.validation or data.split.validation, or give one value"
        )
        yield Problem(message, (key, "baseline", "data.validation", "data.split"), code="data.validation_missing")


def _validation_set(config: Config) -> Iterator[Problem]:
    evaluate = config.evaluate
    if config.data.validation is not None or (config.data.split and config.data.split.validation_share is not None):
        return
    wanted = {"evaluate.best": evaluate.best, "evaluate.patience": evaluate.patience}
    if evaluate.every == "steps":
        wanted["evaluate.every"] = "steps"
    for key, value in wanted.items():
        if value is not None:
            message = f"{key}: {value} needs a validation set; set data.validation or data.split.validation"
            yield Problem(
                message, (key, "data.validation", "data.split.validation", "data.split"), code="data.validation_missing"
            )


def _files(config: Config) -> Iterator[Problem]:
    data = config.data
    if data.train is None:
        yield Problem("data.train is required: the file to train on", ("data.train",), code="config.required")
    seen: dict[str, str] = {}
    for key, name in data_sources(data):
        if key.startswith("data.predict."):  # may be rows of another set, without their labels
            continue
        path = local_path(name)
        place = name if path is None else os.path.abspath(path)  # noqa: PTH100 - resolves `..` without the file system
        if place in seen:
            message = f"{key} names {name} twice; its rows would count double"
            if key != seen[place]:
                message = (
                    f"{key} is the same as {seen[place]}: {name}; training, validation and test data must be different "
                    "files; data.split makes parts of one file"
                )
            yield Problem(message, tuple(dict.fromkeys((key, seen[place]))), code="data.same_files")
        seen.setdefault(place, key)
    if not any(source.startswith("hub:") for _, source in data_sources(data)):
        keys = ("data.train", "data.validation", "data.test")
        yield from unused(config, "data.hub_revision", "without a data set of the hub (hub:NAME)", *keys)


def _workers(config: Config) -> Iterator[Problem]:
    if config.data.num_workers == 0:
        wanted = "without worker processes (data.num_workers: 0)"
        yield from unused(config, "data.prefetch_factor", wanted, "data.num_workers")


def _max_rows(config: Config) -> Iterator[Problem]:
    data = config.data
    for name in ("validation", "test"):
        exists = getattr(data, name) is not None or (
            data.split is not None
            and (data.split.validation_share if name == "validation" else data.split.test) is not None
        )
        if not exists:
            wanted = f"without data.{name} or data.split.{name}"
            yield from unused(config, f"data.max_rows.{name}", wanted, "data.max_rows")


def _more_sets(config: Config) -> Iterator[Problem]:
    """Check the names of further sets: they become names of files and keys of records."""
    data, split = config.data, config.data.split
    has_test = data.test is not None or (split is not None and split.test is not None)
    used = {"train", "validation"} | ({"test"} if has_test else set())
    for key, sets, others in (("extra", data.extra, used | {"test"}), ("predict", data.predict, used | {*data.extra})):
        for name in sets:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
                message = f"data.{key}: {one_line(name)} is not a name; allowed: letters, digits, '_' and '-'"
                yield Problem(message, (f"data.{key}",), code="config.invalid_value")
            elif name in others:
                message = f"data.{key}.{name}: {name} is the name of another set; give this one another name"
                yield Problem(message, (f"data.{key}.{name}", f"data.{key}"), code="config.invalid_value")


def _folds(config: Config) -> Iterator[Problem]:
    """Check the options of a cross-validation."""
    split = config.data.split
    assert split is not None
    if split.folds is None:
        yield from unused(config, "data.split.fold", "without data.split.folds", "data.split")
        return
    yield from exclusive(config, "data.split.folds", "data.split.validation", "data.split.test", "data.validation")
    keys = ("data.split.fold", "data.split.folds")
    if split.fold is None:
        message = f"data.split.fold is required with data.split.folds: a number from 0 to {split.folds - 1}"
        yield Problem(message, keys, code="config.required")
    elif split.fold >= split.folds:
        message = f"data.split.fold: {split.fold} is not one of {split.folds} folds, which are counted from 0"
        yield Problem(message, keys, code="config.invalid_value")


def _split(config: Config) -> Iterator[Problem]:
    split = config.data.split
    if split is None:
        return
    for part in ("validation", "test"):
        yield from exclusive(config, f"data.split.{part}", f"data.{part}")
    yield from _folds(config)
    if split.validation is None and split.test is None and split.folds is None:
        message = "data.split has no effect without data.split.validation or data.split.test; set one, or leave it out"
        yield Problem(message, ("data.split", "data.split.validation", "data.split.test"), code="data.split_shares")
    total = (split.validation or 0) + (split.test or 0)
    if total >= 1:
        message = f"data.split takes {total:g} of the rows; its shares must leave some to train on (sum below 1)"
        yield Problem(message, ("data.split.validation", "data.split.test"), code="data.split_shares")
    if split.stratify and not isinstance(config.task, ClassificationTask | OrdinalTask):
        wanted = f"in {config.task.kind}, which has no labels that exclude each other; for groups: data.split.group_by"
        yield no_effect("data.split.stratify", True, wanted, "task.kind")
    yield from exclusive(config, "data.split.stratify", "data.split.group_by")


REQUIRED_COLUMNS = {
    "classification": ("text", "label"),
    "mlm": ("text",),
    "multi_label": ("text", "label"),
    "multiple_choice": ("text", "choices", "label"),
    "ordinal": ("text", "label"),
    "regression": ("text", "label"),
    "qa": ("text", "text_pair", "label"),
    "token_classification": ("text", "label"),
    "embedding": ("text", "text_pair"),
    "own": ("text",),
}
"""Required columns by the kind of the task."""
_COLUMNS = {
    "qa": {"text": "the question", "text_pair": "the context", "label": "the gold answers"},
    "token_classification": {"text": "the words", "label": "the tags"},
    "embedding": {"text": "the first text", "text_pair": "the related, or compared, second text"},
    "multiple_choice": {"text": "the question", "choices": "the choices", "label": "the right choice"},
}
_USUAL_COLUMNS = {"text": "the text", "label": "the class label or the numeric target"}


def _columns(config: Config) -> Iterator[Problem]:
    columns = config.data.columns
    for name in REQUIRED_COLUMNS.get(config.task.kind, ()):
        if getattr(columns, name) is None:
            meaning = _COLUMNS.get(config.task.kind, _USUAL_COLUMNS)[name]
            keys = (f"data.columns.{name}", "data.columns", "data")
            message = f"data.columns.{name} is required with task.kind: {config.task.kind}: the column of {meaning}"
            yield Problem(message, keys, code="config.required")
    text, pair = named_columns(columns.text), named_columns(columns.text_pair)
    choices, negative = named_columns(columns.choices), named_columns(columns.negative)
    for key, names in (
        ("data.columns.text", text),
        ("data.columns.text_pair", pair),
        ("data.columns.negative", negative),
        ("data.columns.choices", choices),
    ):
        if columns.label is not None and columns.label in names:
            message = f"{key} has the column {columns.label} of data.columns.label; the text would contain the answer"
            yield Problem(message, (key, "data.columns.label"), code="data.column_conflict")
        for name, count in Counter(names).items():
            if count > 1:
                yield Problem(f"{key} names {name} {count} times", (key,), code="data.column_conflict")
    yield from _same_columns(columns)
    if max(len(text), len(pair), len(negative)) < 2 and not (pair and choices):
        wanted = "when no columns are joined (data.columns.text is not a list)"
        yield from unused(config, "data.columns.separator", wanted, "data.columns.text")
    if config.data.truncation == "only_second" and not (pair or choices):
        wanted = "without data.columns.text_pair"
        yield no_effect("data.truncation", config.data.truncation, wanted, "data.columns.text_pair")
    yield from _head_tail(config, pair or choices)


def _same_columns(columns: Columns) -> Iterator[Problem]:
    """Check that texts that are compared, or choices and their question, are different columns."""
    for key, other in (("text_pair", "text"), ("negative", "text"), ("negative", "text_pair")):
        names = named_columns(getattr(columns, key))
        if names and names == named_columns(getattr(columns, other)):
            keys = (f"data.columns.{key}", f"data.columns.{other}")
            message = f"{keys[0]} is the same as {keys[1]}: {one_line(getattr(columns, key))}"
            yield Problem(message, keys, code="data.column_conflict")
    if both := sorted({*named_columns(columns.choices)} & {*named_columns(columns.text)}):
        message = f"data.columns.choices has {both[0]}, a column of data.columns.text; name the columns of the choices"
        yield Problem(message, ("data.columns.choices", "data.columns.text"), code="data.column_conflict")


def _head_tail(config: Config, pair: list[str]) -> Iterator[Problem]:
    """Check the truncation that keeps both ends of a single text."""
    data = config.data
    if data.truncation != "head_tail":
        wanted = f"with data.truncation: {data.truncation}; it is for head_tail"
        yield from unused(config, "data.head_tokens", wanted, "data.truncation")
        return
    if pair:
        key = "data.columns.text_pair" if data.columns.text_pair else "data.columns.choices"
        message = f"data.truncation: head_tail is for single texts, and {key} is set; use longest_first"
        yield Problem(message, ("data.truncation", key), code="config.conflict")
    yield from exclusive(config, "data.truncation", "data.truncation_side")


def _model(config: Config) -> Iterator[Problem]:
    model = config.model
    if model.name.startswith("demo:"):
        yield from unused(config, "model.revision", f"with model.name: {model.name}", "model.name")
    if model.tokenizer is None:
        wanted = "without model.tokenizer; the tokenizer of the model has model.revision"
        yield from unused(config, "model.tokenizer_revision", wanted, "model.tokenizer")


_CHECKS: tuple[Callable[[Config], Iterator[Problem]], ...] = (
    *TRAIN_CHECKS,
    _batch,
    _when,
    _choosing,
    _probe,
    _baseline,
    _validation_set,
    _files,
    _workers,
    _max_rows,
    _more_sets,
    _split,
    _columns,
    _model,
    *TASK_CHECKS,
    *STRATEGY_CHECKS,
    *OWN_CODE_CHECKS,
)
