"""Checks of the sections against each other: a setting that cannot take effect is an error, not a silence."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from paratune.config.check_strategy import STRATEGY_CHECKS
from paratune.config.contradictions import both, no_effect
from paratune.config.glue import GLUE
from paratune.config.metric_names import METRICS
from paratune.config.plain import one_line
from paratune.config.problems import Problem
from paratune.config.sections import Config, named_columns
from paratune.config.sources import local_path
from paratune.config.strategy_sections import strategy_options
from paratune.config.task_sections import (
    ClassificationTask,
    ClassTask,
    MaskedLMTask,
    MultiLabelTask,
    OrdinalTask,
    QuestionAnsweringTask,
    RegressionTask,
    class_names,
)
from paratune.config.traits import traits_of
from paratune.errors import did_you_mean


def check(config: Config) -> list[Problem]:
    """Return what keeps a configuration, each of whose sections is right by itself, from being trained.

    Nothing is asked of the machine: files, devices and the number of processes wait for preflight.
    """
    return [problem for look in _CHECKS for problem in look(config)]


def _length(config: Config) -> Iterator[Problem]:
    train = config.train
    keys = ("train.epochs", "train.max_steps")
    if train.epochs is None and train.max_steps is None:
        yield Problem("train.epochs or train.max_steps is required: how long to train", keys, code="config.required")
    if train.epochs is not None and train.max_steps is not None:
        yield both("train.epochs", train.epochs, "train.max_steps", train.max_steps)


def _warmup(config: Config) -> Iterator[Problem]:
    train = config.train
    if train.warmup_steps is not None and train.warmup_ratio is not None:
        yield both("train.warmup_steps", train.warmup_steps, "train.warmup_ratio", train.warmup_ratio)
    if train.warmup_steps and train.max_steps and train.warmup_steps > train.max_steps:
        yield Problem(
            f"train.warmup_steps is {train.warmup_steps}, more than train.max_steps: {train.max_steps}; "
            "the learning rate would never reach its peak",
            ("train.warmup_steps", "train.max_steps"),
            code="config.never_due",
        )


def _batch(config: Config) -> Iterator[Problem]:
    batch = config.batch
    sizes = ("batch.global", "batch.per_device")
    if batch.global_ is None and batch.per_device is None:
        yield Problem(
            "batch.global or batch.per_device is required: samples per optimizer step", sizes, code="config.required"
        )
        return
    if batch.global_ is not None and batch.per_device is not None:
        yield both("batch.global", batch.global_, "batch.per_device", batch.per_device)
        return
    if batch.micro_batch_size is not None and batch.global_ is None:
        key = "batch.micro_batch_size"
        yield no_effect(key, batch.micro_batch_size, "with batch.per_device, which is that very size", sizes)
    if batch.grad_accum_steps is not None and batch.per_device is None:
        key, value = "batch.grad_accum_steps", batch.grad_accum_steps
        yield no_effect(key, value, "with batch.global, from which it follows; see batch.micro_batch_size", sizes)
    micro = batch.micro_batch_size
    if batch.global_ and isinstance(micro, int) and micro > batch.global_:
        key = "batch.micro_batch_size"
        yield no_effect(key, micro, f"above batch.global: {batch.global_}", sizes)


def _when(config: Config) -> Iterator[Problem]:
    for name, section in (("evaluate", config.evaluate), ("checkpoint", config.checkpoint)):
        keys = (f"{name}.every", f"{name}.steps")
        if section.every == "steps" and section.steps is None:
            yield Problem(f"{name}.steps is required with {name}.every: steps", keys, code="config.required")
        if section.every != "steps" and section.steps is not None:
            wanted = f"without {name}.every: steps (it is {section.every})"
            yield no_effect(f"{name}.steps", section.steps, wanted, keys)
        elif section.steps and config.train.max_steps and section.steps > config.train.max_steps:
            yield Problem(
                f"{name}.steps is {section.steps}, more than train.max_steps: {config.train.max_steps}; "
                "it would never be due",
                (f"{name}.steps", "train.max_steps"),
                code="config.never_due",
            )


def _choosing(config: Config) -> Iterator[Problem]:
    """What keeps the best model and stops early."""
    evaluate = config.evaluate
    if evaluate.best is None and evaluate.patience is not None:
        yield Problem(
            f"evaluate.patience: {evaluate.patience} needs evaluate.best, the metric that has to become better",
            ("evaluate.patience", "evaluate.best"),
            code="config.required",
        )
    if evaluate.patience is None and evaluate.min_delta:
        yield no_effect("evaluate.min_delta", evaluate.min_delta, "without evaluate.patience", ("evaluate.patience",))
    known = METRICS[config.task.kind]
    if evaluate.best is not None and evaluate.best not in known:
        yield Problem(
            f"evaluate.best: {evaluate.best} is not a metric of {config.task.kind}{did_you_mean(evaluate.best, known)}"
            f"; allowed: {', '.join(known)}",
            ("evaluate.best", "task.kind"),
            code="metric.unknown",
        )
    for key, value in (("evaluate.best", evaluate.best), ("evaluate.patience", evaluate.patience)):
        if value is not None and evaluate.every == "never":
            yield no_effect(key, value, "with evaluate.every: never", ("evaluate.every",))


def _probe(config: Config) -> Iterator[Problem]:
    """What a run that neither evaluates nor saves has no use for."""
    evaluate, checkpoint = config.evaluate, config.checkpoint
    given = {
        "evaluate.best": evaluate.best,
        "evaluate.patience": evaluate.patience,
        "evaluate.steps": evaluate.steps,
        "checkpoint.steps": checkpoint.steps,
    }
    for key, value in given.items() if config.measure.probe else ():
        if value is not None:
            yield no_effect(key, value, "with measure.probe: true", ("measure.probe",))


def _baseline(config: Config) -> Iterator[Problem]:
    """What a baseline, which is fitted in place of the model, cannot do."""
    baseline, kind, metric = config.baseline, config.task.kind, config.evaluate.best
    if baseline is None:
        return
    if kind not in ("classification", "regression"):
        yield Problem(
            f"baseline: {baseline.kind} is for task.kind: classification and regression, and task.kind is {kind}; "
            "leave baseline out",
            ("baseline", "task.kind"),
            code="task.unsupported",
        )
    traits = traits_of(config.strategy.kind, strategy_options(config.strategy))
    if traits is None or traits.max_world_size != 1:
        wanted = f"with baseline: {baseline.kind}, which is fitted in one process; set strategy: single"
        yield no_effect("strategy.kind", config.strategy.kind, wanted, ("baseline",))
    given = {"train.freeze_encoder": config.train.freeze_encoder, "measure.probe": config.measure.probe}
    for key, value in given.items():
        if value:
            yield no_effect(
                key, value, f"with baseline: {baseline.kind}, which has no encoder and no steps", ("baseline",)
            )
    if (baseline.estimator, kind, metric) == ("svm", "classification", "loss"):
        wanted = "with baseline.estimator: svm, which has no probabilities; name another metric"
        yield no_effect("evaluate.best", metric, wanted, ("baseline.estimator", "baseline"))
    has_validation = config.data.validation is not None or (config.data.split and config.data.split.validation)
    if len(baseline.inverse_regularization) > 1 and not has_validation:
        key = "baseline.inverse_regularization"
        yield Problem(
            f"{key} has {len(baseline.inverse_regularization)} values, of which a validation set chooses; give "
            "data.validation or data.split.validation, or one value",
            (key, "baseline", "data.validation", "data.split"),
            code="data.validation_missing",
        )


def _validation_set(config: Config) -> Iterator[Problem]:
    evaluate = config.evaluate
    if config.data.validation is not None or (config.data.split and config.data.split.validation is not None):
        return
    wanted = {"evaluate.best": evaluate.best, "evaluate.patience": evaluate.patience}
    if evaluate.every == "steps":
        wanted["evaluate.every"] = "steps"
    for key, value in wanted.items():
        if value is not None:
            message = f"{key}: {value} needs a validation set; give data.validation or data.split.validation"
            yield Problem(
                message, (key, "data.validation", "data.split.validation", "data.split"), code="data.validation_missing"
            )


def _files(config: Config) -> Iterator[Problem]:
    data = config.data
    if data.train is None:
        yield Problem("data.train is required: the file to train on", ("data.train",), code="config.required")
    trains = [data.train] if isinstance(data.train, str) else data.train or []
    names = [*(("data.train", name) for name in trains), ("data.validation", data.validation), ("data.test", data.test)]
    names += [(f"data.extra.{name}", source) for name, source in data.extra.items()]
    seen: dict[str, str] = {}
    for key, name in names:
        if name is None:
            continue
        path = local_path(name)
        place = name if path is None else os.path.abspath(path)  # noqa: PTH100 - takes out `..` without asking the disk
        if place in seen:
            message = f"{key} is the same as {seen[place]}: {name}; what trains, chooses and tests a model must differ"
            if key == seen[place]:
                yield Problem(f"{key} names {name} twice; its rows would count double", (key,), code="data.same_files")
            else:
                yield Problem(f"{message}; cut parts with data.split", (key, seen[place]), code="data.same_files")
        seen.setdefault(place, key)
    sources = [*(name for _, name in names), *data.predict.values()]
    if data.hub_revision is not None and not any((name or "").startswith("hub:") for name in sources):
        keys = ("data.train", "data.validation", "data.test")
        yield no_effect("data.hub_revision", data.hub_revision, "without a data set named hub:NAME", keys)


def _workers(config: Config) -> Iterator[Problem]:
    data = config.data
    if data.prefetch_factor is not None and data.num_workers == 0:
        wanted = "without worker processes (data.num_workers: 0)"
        yield no_effect("data.prefetch_factor", data.prefetch_factor, wanted, ("data.num_workers",))


def _max_rows(config: Config) -> Iterator[Problem]:
    data = config.data
    for name in ("validation", "test"):
        most = getattr(data.max_rows, name)
        is_there = getattr(data, name) is not None or (data.split is not None and getattr(data.split, name) is not None)
        if most is not None and not is_there:
            keys = (f"data.max_rows.{name}", "data.max_rows")
            yield no_effect(f"data.max_rows.{name}", most, f"without data.{name} or data.split.{name}", keys)


def _further(config: Config) -> Iterator[Problem]:
    """Names of further sets, which become names of files and keys of records."""
    data, split = config.data, config.data.split
    has_test = data.test is not None or (split is not None and split.test is not None)
    taken = {"train", "validation"} | ({"test"} if has_test else set())
    for key, sets, others in (
        ("extra", data.extra, taken | {"test"}),
        ("predict", data.predict, taken | {*data.extra}),
    ):
        for name in sets:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
                message = f"data.{key}: {one_line(name)} is not a name; allowed: letters, digits, '_' and '-'"
                yield Problem(message, (f"data.{key}",), code="config.invalid_value")
            elif name in others:
                yield Problem(
                    f"data.{key}.{name}: {name} is the name of another set; give this one another name",
                    (f"data.{key}.{name}", f"data.{key}"),
                    code="config.invalid_value",
                )


def _split(config: Config) -> Iterator[Problem]:
    split, data = config.data.split, config.data
    if split is None:
        return
    shares = {"validation": split.validation, "test": split.test}
    files = {"validation": data.validation, "test": data.test}
    for part, share in shares.items():
        if share is not None and files[part] is not None:
            yield both(f"data.split.{part}", share, f"data.{part}", files[part])
    if split.validation is None and split.test is None:
        message = "data.split cuts nothing: give data.split.validation or data.split.test, or leave it out"
        yield Problem(message, ("data.split", "data.split.validation", "data.split.test"), code="data.split_shares")
    total = sum(share or 0 for share in shares.values())
    if total >= 1:
        message = f"data.split takes {total:g} of the rows; its shares must leave some to train on (sum below 1)"
        yield Problem(message, ("data.split.validation", "data.split.test"), code="data.split_shares")
    if split.stratify and not isinstance(config.task, ClassificationTask | OrdinalTask):
        wanted = f"in {config.task.kind}, which has no labels that exclude each other; for groups: data.split.group_by"
        yield no_effect("data.split.stratify", True, wanted, ("task.kind",))
    if split.stratify and split.group_by is not None:
        yield both("data.split.stratify", True, "data.split.group_by", split.group_by)


REQUIRED_COLUMNS = {
    "classification": ("text", "label"),
    "mlm": ("text",),
    "multi_label": ("text", "label"),
    "ordinal": ("text", "label"),
    "regression": ("text", "label"),
    "qa": ("text", "text_pair", "label"),
}
"""Which columns each kind of task cannot do without."""


_COLUMNS = (
    {"text": "the text", "label": "the class label or the numeric target"},
    {"text": "the question", "text_pair": "the context", "label": "the gold answers"},
)


def _columns(config: Config) -> Iterator[Problem]:
    columns = config.data.columns
    for name in REQUIRED_COLUMNS.get(config.task.kind, ()):
        if getattr(columns, name) is None:
            what = _COLUMNS[config.task.kind == "qa"][name]
            keys = (f"data.columns.{name}", "data.columns", "data")
            yield Problem(
                f"data.columns.{name} is required with task.kind: {config.task.kind}: the column of {what}",
                keys,
                code="config.required",
            )
    text, pair = named_columns(columns.text), named_columns(columns.text_pair)
    for key, names in (("data.columns.text", text), ("data.columns.text_pair", pair)):
        if columns.label is not None and columns.label in names:
            message = (
                f"{key} holds {columns.label}, which is also data.columns.label; the text would contain the answer"
            )
            yield Problem(message, (key, "data.columns.label"), code="data.column_conflict")
        for name, count in Counter(names).items():
            if count > 1:
                yield Problem(f"{key} names {name} {count} times", (key,), code="data.column_conflict")
    if pair and text == pair:
        message = f"data.columns.text_pair is the same as data.columns.text: {one_line(columns.text)}"
        yield Problem(message, ("data.columns.text_pair", "data.columns.text"), code="data.column_conflict")
    if columns.separator != "\n" and max(len(text), len(pair)) < 2:
        wanted = "when no columns are joined (data.columns.text is not a list)"
        yield no_effect("data.columns.separator", columns.separator, wanted, ("data.columns.text",))
    if config.data.truncation == "only_second" and not pair:
        wanted = "without data.columns.text_pair"
        yield no_effect("data.truncation", config.data.truncation, wanted, ("data.columns.text_pair",))


_WINDOWS = "in qa: contexts are cut into windows (task.stride), and nothing is truncated"


def _questions(config: Config) -> Iterator[Problem]:
    """What question answering has and other tasks have not."""
    task, columns = config.task, config.data.columns
    if not isinstance(task, QuestionAnsweringTask):
        if columns.answer_start is not None:
            wanted = f"in {task.kind}; it is for task.kind: qa"
            yield no_effect("data.columns.answer_start", columns.answer_start, wanted, ("task.kind",))
        return
    if isinstance(columns.text_pair, list):
        yield Problem(
            f"data.columns.text_pair: {one_line(columns.text_pair)} joins columns, and the place of an answer counts "
            "in one; name the one column of the context",
            ("data.columns.text_pair",),
            code="data.column_conflict",
        )
    if config.data.truncation != "longest_first":
        yield no_effect("data.truncation", config.data.truncation, _WINDOWS, ("task.kind",))
    if config.data.truncation_side is not None:
        yield no_effect("data.truncation_side", config.data.truncation_side, _WINDOWS, ("task.kind",))
    limit = config.data.max_length
    if limit is not None and task.stride >= limit:
        yield Problem(
            f"task.stride: {task.stride} tokens that neighbouring windows share leave no new ones in windows of "
            f"data.max_length: {limit}; a third of it is usual",
            ("task.stride", "data.max_length"),
            code="task.stride",
        )
    if task.unanswerable is False and task.null_threshold is not None:
        wanted = "with task.unanswerable: false, where every question has an answer"
        yield no_effect("task.null_threshold", task.null_threshold, wanted, ("task.unanswerable",))


def _labels(config: Config) -> Iterator[Problem]:
    if not isinstance(config.task, ClassTask):
        return
    labels = config.task.labels
    names, twice = class_names(config.task), _twice(labels)
    for value in twice:
        yield Problem(
            f"task.labels has {value} twice; labels must differ in their text", ("task.labels",), code="task.labels"
        )
    if len(names) < 2 and not twice:
        number = f"{len(names)} class" if len(names) == 1 else "no classes"
        yield Problem(
            f"task.labels has {number}: {one_line(labels)}; at least 2 are needed", ("task.labels",), code="task.labels"
        )
    if isinstance(config.task, MultiLabelTask):
        yield from _separator(config.task)


def _separator(task: MultiLabelTask) -> Iterator[Problem]:
    """Labels that would be taken for several where they are written in one text, as prediction files have them."""
    words = [str(label) for label in task.labels] + class_names(task)
    torn = list(dict.fromkeys(word for word in words if task.separator in word))
    if torn:
        yield Problem(
            f"task.separator: {one_line(task.separator)} occurs inside {', '.join(map(one_line, torn))} of "
            "task.labels; choose another one, also where the column holds lists",
            ("task.separator", "task.labels"),
            code="task.labels",
        )


def _glue(config: Config) -> Iterator[Problem]:
    """Labels that a task of GLUE cannot have: its scores and its submission would mean something else."""
    task = config.task
    if not isinstance(task, ClassificationTask) or task.glue is None:
        return
    wanted, found = list(GLUE[task.glue].classes), class_names(task)
    if sorted(found) != sorted(wanted):
        yield Problem(
            f"task.labels gives the classes {', '.join(found)}, and {task.glue} has {', '.join(wanted)}; map the "
            f"values of your files to these, as in {{{found[0]}: {wanted[0]}, ...}}, or leave task.glue out",
            ("task.labels", "task.glue"),
            code="task.labels",
        )
    elif found != wanted and "f1" in GLUE[task.glue].metrics:
        yield Problem(
            f"task.labels puts {found[-1]} last, and the F1 of {task.glue} is that of {wanted[-1]}; name the values "
            f"of {wanted[0]} first",
            ("task.labels", "task.glue"),
            code="task.labels",
        )


def _bands(config: Config) -> Iterator[Problem]:
    """The scale on which a regression reports."""
    task = config.task
    if not isinstance(task, RegressionTask) or task.range is None:
        return
    low, high = task.range
    if low >= high:
        yield Problem(
            f"task.range: {one_line(task.range)} must name a lower and then a higher score",
            ("task.range",),
            code="task.range",
        )
    elif task.round_to is not None:
        off = [end for end in task.range if not is_on_scale(end, task.round_to)]
        if off:
            yield Problem(
                f"task.range: {one_line(task.range)} ends at {one_line(off[0])}, which is no multiple of "
                f"task.round_to: {one_line(task.round_to)}; a rounded score could be neither in it nor on the scale",
                ("task.range", "task.round_to"),
                code="task.range",
            )


def is_on_scale(value: float, step: float) -> bool:
    """Return whether a number is a multiple of `step`, to rounding."""
    steps = value / step
    return abs(steps - round(steps)) < 1e-6


def _twice(labels: Iterable[str | int]) -> list[str]:
    return [label for label, count in Counter(str(each) for each in labels).items() if count > 1]


def _side(config: Config) -> Iterator[Problem]:
    """Where nothing is cut there is no side of it."""
    side, task = config.data.truncation_side, config.task
    if side is not None and isinstance(task, MaskedLMTask) and task.windows == "joined":
        wanted = "with task.windows: joined, where documents continue in the next window"
        yield no_effect("data.truncation_side", side, wanted, ("task.windows", "task.kind"))


def _masked_lm(config: Config) -> Iterator[Problem]:
    """What running text has no use for."""
    if not isinstance(config.task, MaskedLMTask):
        return
    for name in ("label", "text_pair", "id"):
        value = getattr(config.data.columns, name)
        if value is not None:
            wanted = "with task.kind: mlm, which learns from the text alone"
            yield no_effect(f"data.columns.{name}", value, wanted, ("task.kind",))
    if config.data.truncation == "only_first":
        wanted = "with task.kind: mlm, whose documents are single texts"
        yield no_effect("data.truncation", config.data.truncation, wanted, ("task.kind",))
    if config.evaluate.slices:
        wanted = "with task.kind: mlm, whose scores are of windows and not of rows"
        yield no_effect("evaluate.slices", config.evaluate.slices, wanted, ("task.kind",))


def _model(config: Config) -> Iterator[Problem]:
    model = config.model
    if model.revision is not None and model.name.startswith("demo:"):
        yield no_effect("model.revision", model.revision, f"with model.name: {model.name}", ("model.name",))
    if model.tokenizer_revision is not None and model.tokenizer is None:
        wanted = "without model.tokenizer; model.revision is also that of the tokenizer beside the model"
        yield no_effect("model.tokenizer_revision", model.tokenizer_revision, wanted, ("model.tokenizer",))


_CHECKS: tuple[Callable[[Config], Iterator[Problem]], ...] = (
    _length,
    _warmup,
    _batch,
    _when,
    _choosing,
    _probe,
    _baseline,
    _validation_set,
    _files,
    _workers,
    _max_rows,
    _further,
    _split,
    _columns,
    _questions,
    _labels,
    _glue,
    _bands,
    _masked_lm,
    _side,
    _model,
    *STRATEGY_CHECKS,
)
