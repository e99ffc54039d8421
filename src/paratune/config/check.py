"""Checks sections of a configuration against each other: a setting that cannot take effect is an error."""

import glob
import os
import re
from collections import Counter
from typing import Final

from paratune.config.check_task import TASK_CHECKS
from paratune.config.check_train import FREEZE_KEYS, LOSS_KEYS, ONE_ANSWER, TRAIN_CHECKS, Contradictions
from paratune.config.metric_names import LOWER_ENDINGS, METRICS, OWN_PREFIX
from paratune.config.own_code import CALLBACKS_KEY, CLASS_KEY, HEAD_KEY, METRICS_KEY
from paratune.config.plain import one_line
from paratune.config.problems import Problem
from paratune.config.sections import Config, OwnMetric, data_sources, named_columns
from paratune.config.sources import local_path, matching_sources
from paratune.config.strategy_sections import strategy_options
from paratune.config.task_sections import ClassificationTask, OrdinalTask, OwnTask, RegressionTask, WindowOptions
from paratune.config.traits import strategy_traits
from paratune.errors import did_you_mean

_LABELLED: Final = {"text": "the text", "label": "the class label or the numeric target"}
REQUIRED_COLUMNS: Final = {
    **dict.fromkeys(("classification", "multi_label", "ordinal", "regression"), _LABELLED),
    "mlm": {"text": "the text"},
    "own": {"text": "the text"},
    "multiple_choice": {"text": "the question", "choices": "the choices", "label": "the right choice"},
    "qa": {"text": "the question", "text_pair": "the context", "label": "the gold answers"},
    "token_classification": {"text": "the words", "label": "the tags"},
    "embedding": {"text": "the first text", "text_pair": "the related, or compared, second text"},
}
"""Required columns, with their meanings, by the kind of the task."""


def check(config: Config) -> list[Problem]:
    """Return the problems between sections that are valid by themselves.

    Files, devices and the number of processes are not checked here, but before training.
    """
    found = Contradictions(config)
    for check_part in (*TRAIN_CHECKS, *_CHECKS, *TASK_CHECKS):
        check_part(found)
    return found.problems


def _batch(found: Contradictions) -> None:
    batch, sizes = found.config.batch, ("batch.global", "batch.per_device")
    if batch.global_ is None and batch.per_device is None:
        message = "batch.global or batch.per_device is required: samples per optimizer step"
        found.add(message, *sizes, code="config.required")
    elif batch.global_ is None:
        found.unused("batch.micro_batch_size", "with batch.per_device, which is the same size", *sizes)
    elif batch.per_device is not None:
        found.exclusive(*sizes)
    else:
        wanted = "with batch.global, from which it follows; see batch.micro_batch_size"
        found.unused("batch.grad_accum_steps", wanted, *sizes)
        if isinstance(batch.micro_batch_size, int) and batch.micro_batch_size > batch.global_:
            above = f"above batch.global: {batch.global_}"
            found.no_effect("batch.micro_batch_size", batch.micro_batch_size, above, *sizes)


def _when(found: Contradictions) -> None:
    config = found.config
    for name, section in (("evaluate", config.evaluate), ("checkpoint", config.checkpoint)):
        every, key, last = f"{name}.every", f"{name}.steps", config.train.max_steps
        if section.every == "steps" and section.steps is None:
            found.add(f"{key} is required with {every}: steps", every, key, code="config.required")
        elif section.every == "steps" and section.steps and last and section.steps > last:
            message = f"{key} is {section.steps}, more than train.max_steps: {last}; it would never be due"
            found.add(message, key, "train.max_steps", code="config.no_effect")


def _choosing(found: Contradictions) -> None:
    config, evaluate = found.config, found.config.evaluate
    if evaluate.best is None and evaluate.patience is not None:
        message = f"evaluate.patience: {evaluate.patience} needs evaluate.best, the metric that must improve"
        found.add(message, "evaluate.patience", "evaluate.best", code="config.required")
    if evaluate.patience is None:
        found.unused("evaluate.min_delta", "without evaluate.patience", "evaluate.patience")
    task_scores = config.task.scores if isinstance(config.task, OwnTask) else []
    own = [OWN_PREFIX + name for name in (*task_scores, *(metric.name for metric in evaluate.metrics))]
    known = [*METRICS[config.task.kind], *own]
    if evaluate.best is not None and evaluate.best not in known:
        near = did_you_mean(evaluate.best, known)
        message = f"evaluate.best: {evaluate.best} is not a metric of {config.task.kind}{near}"
        found.add(f"{message}; allowed: {', '.join(known)}", "evaluate.best", "task.kind", code="metric.unknown")
    keys = ("evaluate.best", "evaluate.patience")
    if config.measure.probe:
        more = ("evaluate.steps", "checkpoint.steps")
        found.unused((*keys, *more), "with measure.probe: true", "measure.probe")
    if not _has_part(config, "validation"):
        wanted = {"evaluate.best": evaluate.best, "evaluate.patience": evaluate.patience}
        for key, value in (wanted | ({"evaluate.every": "steps"} if evaluate.every == "steps" else {})).items():
            if value is not None:
                message = f"{key}: {value} needs a validation set; set data.validation or data.split.validation"
                keys_of_set = ("data.validation", "data.split.validation", "data.split")
                found.add(message, key, *keys_of_set, code="data.validation_missing")


def _has_part(config: Config, name: str) -> bool:
    split = config.data.split
    share = split and (split.validation_share if name == "validation" else split.has_test)
    return getattr(config.data, name) is not None or bool(share)


def _metrics(found: Contradictions) -> None:
    metrics = found.config.evaluate.metrics
    if metrics:
        found.only_for(ONE_ANSWER, METRICS_KEY, "own metrics")
    for name, count in Counter(metric.name for metric in metrics).items():
        if count > 1:
            found.add(f"{METRICS_KEY}: {name} is the name of {count} metrics; give each another name", METRICS_KEY)
    for number, metric in enumerate(metrics):
        _metric(found, f"{METRICS_KEY}[{number}]", metric)


def _metric(found: Contradictions, key: str, metric: OwnMetric) -> None:
    if metric.function is None and metric.evaluate is None:
        message = f"{key}.function or {key}.evaluate is required: the metric"
        found.add(message, key, METRICS_KEY, code="config.required")
    if metric.function is not None and metric.evaluate is not None:
        message = f"{key}.function: {metric.function} and {key}.evaluate: {metric.evaluate} are both given"
        found.add(f"{message}; keep one of them", f"{key}.function", f"{key}.evaluate")
    if metric.name.endswith(LOWER_ENDINGS) == metric.higher_is_better:
        # Reports find the better direction of a metric by its name.
        must = "must not end" if metric.higher_is_better else "must end"
        message = f"{key}.name: {metric.name} {must} in one of {', '.join(LOWER_ENDINGS)}"
        reason = f"because higher_is_better is {one_line(metric.higher_is_better)}"
        found.add(f"{message}, {reason}", f"{key}.name", key, METRICS_KEY)
    if metric.input == "probabilities" and isinstance(found.config.task, RegressionTask):
        message = f"{key}.input: a regression has no probabilities; use predictions or outputs"
        found.add(message, f"{key}.input", key, METRICS_KEY, code="task.unsupported")


def _baseline(found: Contradictions) -> None:
    """Check for settings that a baseline does not support: it is fitted in place of the model."""
    config, baseline, kind = found.config, found.config.baseline, found.config.task.kind
    if baseline is None:
        return
    with_it = f"with baseline: {baseline.kind}"
    found.only_for(("classification", "regression"), "baseline", baseline.kind)
    traits = strategy_traits(config.strategy.kind, strategy_options(config.strategy))
    if traits is None or traits.max_world_size != 1:
        wanted = f"{with_it}, which is fitted in one process; set strategy: single"
        found.no_effect("strategy.kind", config.strategy.kind, wanted, "baseline")
    unused = (*FREEZE_KEYS, "measure.probe", "distil.teacher", "train.continue_trainer", f"{HEAD_KEY}.function")
    found.unused((*unused, CLASS_KEY), f"{with_it}, which has no encoder and no steps", "baseline")
    if config.run.callbacks:
        found.no_effect(CALLBACKS_KEY, config.run.callbacks[0].function, f"{with_it}, which has no steps", "baseline")
    found.unused(LOSS_KEYS, f"{with_it}, which is fitted with a loss of its own", "baseline")
    if isinstance(windows := getattr(config.task, "windows", None), WindowOptions):
        wanted = f"{with_it}, which reads whole texts"
        found.no_effect("task.windows.max_windows", windows.max_windows, wanted, "baseline")
    if (baseline.estimator, kind, config.evaluate.best) == ("svm", "classification", "loss"):
        wanted = "with baseline.estimator: svm, which has no probabilities; use another metric"
        found.no_effect("evaluate.best", "loss", wanted, "baseline.estimator", "baseline")
    key, count = "baseline.inverse_regularization", len(baseline.inverse_regularization)
    if count > 1 and not _has_part(config, "validation"):
        message = f"{key} has {count} values, and only a validation set can select one; set data.validation or "
        message += "data.split.validation, or give one value"
        keys = (key, "baseline", "data.validation", "data.split")
        found.add(message, *keys, code="data.validation_missing")


def _files(found: Contradictions) -> None:
    data = found.config.data
    if data.train is None:
        found.add("data.train is required: the file to train on", "data.train", code="config.required")
    seen: dict[str, str] = {}
    for key, name in data_sources(data):
        if key.startswith("data.predict."):  # may be rows of another set, without their labels
            continue
        path = local_path(name)
        place = name if path is None else os.path.abspath(path)  # noqa: PTH100 - resolves `..` without the file system
        if seen.get(place) == key:
            found.add(f"{key} names {name} twice; its rows would count double", key)
        elif place in seen:
            message = f"{key} is the same as {seen[place]}: {name}; training, validation and test data must differ"
            found.add(f"{message}; data.split makes parts of one file", key, seen[place])
        seen.setdefault(place, key)
    if not any(source.startswith("hub:") for _, source in data_sources(data)):
        keys = ("data.train", "data.validation", "data.test")
        found.unused("data.hub_revision", "without a data set of the hub (hub:NAME)", *keys)
    names = [source.partition("#")[0].removesuffix(".gz").lower() for _, source in data_sources(data)]
    # A pattern without files may be that of another machine: its suffixes are not known.
    if any(glob.has_magic(source) and matching_sources(source) == [source] for _, source in data_sources(data)):
        names = [".csv"]
    if all(local_path(name) is None or name.endswith((".parquet", ".xlsx", ".xls", ".ods")) for name in names):
        found.unused("data.encoding", "without a text file", "data.train")
    separated = (".csv", ".tsv", ".txt")
    if not any(name.endswith(separated) for name in names):
        found.unused(("data.separator", "data.quote"), "without a CSV, TSV or .txt file", "data.train")
    if not any(name.endswith((*separated, ".xlsx", ".xls", ".ods")) for name in names):
        found.unused("data.header", "without a CSV, TSV or .txt file or a spreadsheet", "data.train")
    if data.num_workers == 0:
        found.unused("data.prefetch_factor", "without worker processes (data.num_workers: 0)", "data.num_workers")
    for name in ("validation", "test"):
        if not _has_part(found.config, name):
            wanted = f"without data.{name} or data.split.{name}"
            found.unused(f"data.max_rows.{name}", wanted, "data.max_rows")


def _more_sets(found: Contradictions) -> None:
    """Check the names of further sets: they become names of files and keys of records."""
    data = found.config.data
    used = {"train", "validation", *(["test"] if _has_part(found.config, "test") else [])}
    for key, sets, others in (("extra", data.extra, used | {"test"}), ("predict", data.predict, used | {*data.extra})):
        for name in sets:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
                message = f"data.{key}: {one_line(name)} is not a name; allowed: letters, digits, '_' and '-'"
                found.add(message, f"data.{key}", code="config.invalid_value")
            elif name in others:
                message = f"data.{key}.{name}: {name} is the name of another set; give this one another name"
                found.add(message, f"data.{key}.{name}", f"data.{key}", code="config.invalid_value")


def _split(found: Contradictions) -> None:
    split, task = found.config.data.split, found.config.task
    if split is None:
        return
    for part in ("validation", "test"):
        found.exclusive(f"data.split.{part}", f"data.{part}")
    keys = ("data.split.fold", "data.split.folds")
    if split.folds is None:
        found.unused("data.split.fold", "without data.split.folds", "data.split")
    else:
        test = ["data.test"] * (split.validation is not None)
        found.exclusive("data.split.folds", "data.split.test", "data.validation", *test)
        if split.fold is None:
            message = f"data.split.fold is required with data.split.folds: a number from 0 to {split.folds - 1}"
            found.add(message, *keys, code="config.required")
        elif split.fold >= split.folds:
            message = f"data.split.fold: {split.fold} is not one of {split.folds} folds, which are counted from 0"
            found.add(message, *keys, code="config.invalid_value")
    if split.held_out is not None:
        found.exclusive("data.split.held_out", "data.split.folds", "data.split.test", "data.test")
        if split.group_by is None:
            message = "data.split.group_by is required with data.split.held_out: the column that has its value"
            found.add(message, "data.split.group_by", "data.split.held_out", code="config.required")
    shares = ("data.split.validation", "data.split.test")
    if split.validation is None and split.folds is None and not split.has_test:
        message = f"data.split has no effect without {' or '.join(shares)}; set one, or leave it out"
        found.add(message, "data.split", *shares, code="config.no_effect")
    if (total := (split.validation or 0) + (split.test or 0)) >= 1:
        message = f"data.split takes {total:g} of the rows; its shares must leave some to train on (sum below 1)"
        found.add(message, *shares, code="config.invalid_value")
    if not isinstance(task, ClassificationTask | OrdinalTask):
        wanted = f"in {task.kind}, which has no labels that exclude each other; for groups: data.split.group_by"
        found.unused("data.split.stratify", wanted, "task.kind")


def _columns(found: Contradictions) -> None:
    columns, data, kind = found.config.data.columns, found.config.data, found.config.task.kind
    for name, meaning in REQUIRED_COLUMNS[kind].items():
        if getattr(columns, name) is None:
            message = f"data.columns.{name} is required with task.kind: {kind}: the column of {meaning}"
            found.add(message, f"data.columns.{name}", "data.columns", "data", code="config.required")
    named = {name: named_columns(getattr(columns, name)) for name in ("text", "text_pair", "negative", "choices")}
    for name, words in named.items():
        key = f"data.columns.{name}"
        if both := [label for label in named_columns(columns.label) if label in words]:
            message = f"{key} has the column {both[0]} of data.columns.label; the text would contain the answer"
            found.add(message, key, "data.columns.label")
        for word, count in Counter(words).items():
            if count > 1:
                found.add(f"{key} names {word} {count} times", key)
    # Texts that are compared, or choices and their question, are different columns.
    for name, other in (("text_pair", "text"), ("negative", "text"), ("negative", "text_pair")):
        if named[name] and named[name] == named[other]:
            message = f"data.columns.{name} is the same as data.columns.{other}: {one_line(getattr(columns, name))}"
            found.add(message, f"data.columns.{name}", f"data.columns.{other}")
    if both := sorted({*named["choices"]} & {*named["text"]}):
        message = f"data.columns.choices has {both[0]}, a column of data.columns.text; name the columns of the choices"
        found.add(message, "data.columns.choices", "data.columns.text")
    pair = named["text_pair"] or named["choices"]
    joined = max(len(named[name]) for name in ("text", "text_pair", "negative")) > 1
    if not joined and not (named["text_pair"] and named["choices"]):
        wanted = "when no columns are joined (data.columns.text is not a list)"
        found.unused("data.columns.separator", wanted, "data.columns.text")
    if data.truncation == "only_second" and not pair:
        found.unused("data.truncation", "without data.columns.text_pair", "data.columns.text_pair")
    if data.truncation == "head_tail":
        found.exclusive("data.truncation", "data.truncation_side")
        if pair:
            key = "data.columns.text_pair" if columns.text_pair else "data.columns.choices"
            message = f"data.truncation: head_tail is for single texts, and {key} is set; use longest_first"
            found.add(message, "data.truncation", key)


_CHECKS: Final = (_batch, _when, _choosing, _metrics, _baseline, _files, _more_sets, _split, _columns)
