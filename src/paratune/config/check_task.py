"""Checks the section of the task against other sections."""

import re
from collections import Counter
from collections.abc import Callable, Iterator

from paratune.config.check_embedding import check_embedding
from paratune.config.contradictions import conflict, no_effect
from paratune.config.glue import GLUE
from paratune.config.plain import one_line
from paratune.config.problems import Problem
from paratune.config.section import OwnCode
from paratune.config.sections import Config
from paratune.config.task_sections import (
    ClassificationTask,
    ClassTask,
    MaskedLMTask,
    MultiLabelTask,
    MultipleChoiceTask,
    QuestionAnsweringTask,
    RegressionTask,
    TokenClassificationTask,
    WindowOptions,
    class_names,
)

_WINDOWS = "in qa: contexts are cut into windows (task.stride), and nothing is truncated"


def _questions(config: Config) -> Iterator[Problem]:
    """Check the options of question answering."""
    task, columns = config.task, config.data.columns
    if not isinstance(task, QuestionAnsweringTask):
        if columns.answer_start is not None:
            wanted = f"in {task.kind}; it is for task.kind: qa"
            yield no_effect("data.columns.answer_start", columns.answer_start, wanted, ("task.kind",))
        return
    if isinstance(columns.text_pair, list):
        yield Problem(
            f"data.columns.text_pair: {one_line(columns.text_pair)} joins columns, but the position of an answer "
            "counts in one column; name the column of the context",
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
            f"task.stride: {task.stride} must be less than data.max_length: {limit}, because neighbouring windows "
            "share that many tokens; a third of it is usual",
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
    names = class_names(config.task)
    twice = [label for label, count in Counter(map(str, labels)).items() if count > 1]
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
    """Check that no label contains the separator: prediction files join the labels of a row with it."""
    words = [str(label) for label in task.labels] + class_names(task)
    ambiguous = list(dict.fromkeys(word for word in words if task.separator in word))
    if ambiguous:
        yield Problem(
            f"task.separator: {one_line(task.separator)} occurs inside {', '.join(map(one_line, ambiguous))} of "
            "task.labels; use another separator, also for a column of lists",
            ("task.separator", "task.labels"),
            code="task.labels",
        )


def _tags(config: Config) -> Iterator[Problem]:
    """Check the options of token classification."""
    task, columns = config.task, config.data.columns
    if not isinstance(task, TokenClassificationTask):
        return
    twice = [tag for tag, count in Counter(task.labels).items() if count > 1]
    if twice or len(task.labels) < 2:
        problem = f"{', '.join(twice)} twice" if twice else f"{len(task.labels)} tags; at least 2 are needed"
        yield Problem(f"task.labels has {problem}", ("task.labels",), code="task.labels")
    if task.scheme == "iob2":
        wrong = [tag for tag in task.labels if tag != "O" and not re.fullmatch(r"[BI]-.+", tag)]
        begins = {tag[2:] for tag in task.labels if tag.startswith("B-")}
        alone = [tag for tag in task.labels if tag.startswith("I-") and tag[2:] not in begins]
        if wrong or alone or "O" not in task.labels:
            problem = f"{', '.join(wrong)}, which are not O, B-TYPE or I-TYPE" if wrong else "no O"
            problem = f"{', '.join(alone)} without B- of the same type" if alone and not wrong else problem
            yield Problem(
                f"task.labels has {problem}; correct it, or set task.scheme: none for classes of words",
                ("task.labels", "task.scheme"),
                code="task.labels",
            )
    else:
        if task.strict:
            yield no_effect("task.strict", True, "with task.scheme: none", ("task.scheme",))
        if config.evaluate.best in ("f1", "precision", "recall"):
            wanted = "with task.scheme: none, which has no entities; use accuracy or loss"
            yield no_effect("evaluate.best", config.evaluate.best, wanted, ("task.scheme",))
    if isinstance(columns.text, list):
        yield Problem(
            f"data.columns.text: {one_line(columns.text)} joins columns; name the one column with lists of words",
            ("data.columns.text",),
            code="data.column_conflict",
        )
    unused = {"data.columns.text_pair": columns.text_pair}
    unused["data.truncation"] = None if config.data.truncation == "longest_first" else config.data.truncation
    unused["evaluate.slices"] = "label" if "label" in (config.evaluate.slices or ()) else None
    for key, value in unused.items():
        if value is not None:
            yield no_effect(key, value, "in token_classification, whose rows are lists of words", ("task.kind",))


def _choices(config: Config) -> Iterator[Problem]:
    """Check the options of multiple choice."""
    task, columns = config.task, config.data.columns
    if not isinstance(task, MultipleChoiceTask):
        if columns.choices is not None:
            wanted = f"in {task.kind}; it is for task.kind: multiple_choice"
            yield no_effect("data.columns.choices", columns.choices, wanted, ("task.kind",))
        return
    if isinstance(columns.choices, list) and len(columns.choices) < 2:
        yield Problem(
            f"data.columns.choices: {one_line(columns.choices)} must name at least two columns, or one column with "
            "lists (without brackets)",
            ("data.columns.choices",),
            code="data.column_conflict",
        )
    if task.label_format == "name" and isinstance(columns.choices, str):
        wanted = f"with data.columns.choices: {columns.choices}, one column, whose choices have no names"
        yield no_effect("task.label_format", task.label_format, wanted, ("data.columns.choices",))
    if "label" in (config.evaluate.slices or ()):
        wanted = "in multiple_choice, whose labels are places of choices"
        yield no_effect("evaluate.slices", "label", wanted, ("task.kind",))


def _text_windows(config: Config) -> Iterator[Problem]:
    """Check the windows of long texts."""
    task, data = config.task, config.data
    windows = getattr(task, "windows", None)
    if not isinstance(windows, WindowOptions):
        return
    if config.baseline is not None:
        wanted = f"with baseline: {config.baseline.kind}, which reads whole texts"
        yield no_effect("task.windows.max_windows", windows.max_windows, wanted, ("baseline",))
    if data.max_length is not None and windows.stride >= data.max_length:
        yield Problem(
            f"task.windows.stride: {windows.stride} must be less than data.max_length: {data.max_length}, because "
            "neighbouring windows share that many tokens",
            ("task.windows.stride", "data.max_length"),
            code="task.stride",
        )
    if data.columns.text_pair is not None and data.truncation not in ("only_first", "only_second"):
        yield Problem(
            f"data.truncation: {data.truncation} does not tell which text of a pair task.windows cuts; set only_first "
            "or only_second",
            ("data.truncation", "task.windows"),
            code="config.conflict",
        )
    if data.columns.text_pair is None and data.truncation == "head_tail":
        yield conflict("data.truncation", data.truncation, "task.windows.max_windows", windows.max_windows)
    if data.truncation_side is not None:
        wanted = "with task.windows, which cuts from the start of a text"
        yield no_effect("data.truncation_side", data.truncation_side, wanted, ("task.windows",))


def _own_loss(config: Config) -> Iterator[Problem]:
    """Check that no other option changes or replaces a loss of the user's own code."""
    task = config.task
    loss = getattr(task, "loss", None)
    if not isinstance(loss, OwnCode):
        return
    if config.baseline is not None:
        wanted = f"with baseline: {config.baseline.kind}, which is fitted with a loss of its own"
        yield no_effect("task.loss.function", loss.function, wanted, ("baseline",))
    for key in ("class_weights", "label_smoothing", "focal_gamma") if isinstance(task, ClassificationTask) else ():
        if value := getattr(task, key):
            yield conflict("task.loss.function", loss.function, f"task.{key}", value)


def _class_loss(config: Config) -> Iterator[Problem]:
    """Check the options of the loss of a classification."""
    task = config.task
    if not isinstance(task, ClassificationTask):
        return
    if task.label_smoothing and task.focal_gamma is not None:
        yield conflict("task.label_smoothing", task.label_smoothing, "task.focal_gamma", task.focal_gamma)
    if config.baseline is not None and not task.has_plain_loss:
        for key in ("class_weights", "label_smoothing", "focal_gamma"):
            if value := getattr(task, key):
                wanted = f"with baseline: {config.baseline.kind}, which is fitted with a loss of its own"
                yield no_effect(f"task.{key}", value, wanted, ("baseline",))
    weights, names = task.class_weights, class_names(task)
    if isinstance(weights, list) and len(weights) != len(names):
        yield Problem(
            f"task.class_weights has {len(weights)} weights, and task.labels {len(names)} classes "
            f"({', '.join(map(one_line, names))}); give one weight for each class, in this order",
            ("task.class_weights", "task.labels"),
            code="task.class_weights",
        )
    if isinstance(weights, dict):
        given = list(map(str, weights))
        unknown = [name for name in given if name not in names]
        missing = [name for name in names if name not in given]
        if unknown or missing or len(set(given)) < len(given):
            yield Problem(
                f"task.class_weights has the classes {', '.join(map(one_line, given))}, and task.labels "
                f"{', '.join(map(one_line, names))}; give one weight for each class by its name",
                ("task.class_weights", "task.labels"),
                code="task.class_weights",
            )


def _glue(config: Config) -> Iterator[Problem]:
    """Check that the labels are those of the GLUE task: its scores and its submission depend on them."""
    task = config.task
    if not isinstance(task, ClassificationTask) or task.glue is None:
        return
    wanted, given = list(GLUE[task.glue].classes), class_names(task)
    if sorted(given) != sorted(wanted):
        yield Problem(
            f"task.labels has the classes {', '.join(given)}, and {task.glue} has {', '.join(wanted)}; map the "
            f"values of your files to these, as in {{{given[0]}: {wanted[0]}, ...}}, or leave task.glue out",
            ("task.labels", "task.glue"),
            code="task.labels",
        )
    elif given != wanted and "f1" in GLUE[task.glue].metrics:
        yield Problem(
            f"task.labels has {given[-1]} last, and the F1 of {task.glue} is that of {wanted[-1]}; list the values "
            f"of {wanted[0]} first",
            ("task.labels", "task.glue"),
            code="task.labels",
        )


def _bands(config: Config) -> Iterator[Problem]:
    """Check the scale of the scores that a regression reports."""
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
                f"task.range: {one_line(task.range)} ends at {one_line(off[0])}, which is not a multiple of "
                f"task.round_to: {one_line(task.round_to)}; change one of them",
                ("task.range", "task.round_to"),
                code="task.range",
            )


def is_on_scale(value: float, step: float) -> bool:
    """Return whether a number is a multiple of `step`, to rounding."""
    steps = value / step
    return abs(steps - round(steps)) < 1e-6


def _side(config: Config) -> Iterator[Problem]:
    """Check for a side of truncation where nothing is truncated."""
    side, task = config.data.truncation_side, config.task
    if side is not None and isinstance(task, MaskedLMTask) and task.windows == "joined":
        wanted = "with task.windows: joined, where documents continue in the next window"
        yield no_effect("data.truncation_side", side, wanted, ("task.windows", "task.kind"))


def _masked_lm(config: Config) -> Iterator[Problem]:
    """Check for options without effect in masked language modelling."""
    if not isinstance(config.task, MaskedLMTask):
        return
    for name in ("label", "text_pair", "id"):
        value = getattr(config.data.columns, name)
        if value is not None:
            wanted = "with task.kind: mlm, which uses the text only"
            yield no_effect(f"data.columns.{name}", value, wanted, ("task.kind",))
    if config.data.truncation in ("only_first", "head_tail"):
        wanted = "with task.kind: mlm, whose documents are single texts of which windows are made"
        yield no_effect("data.truncation", config.data.truncation, wanted, ("task.kind",))
    if config.evaluate.slices:
        wanted = "with task.kind: mlm, which scores windows and not rows"
        yield no_effect("evaluate.slices", config.evaluate.slices, wanted, ("task.kind",))
    if config.evaluate.cluster is not None:
        wanted = "with task.kind: mlm, whose scores are of windows and not of rows"
        yield no_effect("evaluate.cluster", config.evaluate.cluster, wanted, ("task.kind",))


TASK_CHECKS: tuple[Callable[[Config], Iterator[Problem]], ...] = (
    _questions,
    _labels,
    _own_loss,
    _class_loss,
    _tags,
    _choices,
    _text_windows,
    _glue,
    _bands,
    _masked_lm,
    check_embedding,
    _side,
)
