"""Checks the section of the task against other sections."""

import re
from collections import Counter
from collections.abc import Callable, Iterator

from paratune.config.check_embedding import check_embedding
from paratune.config.check_train import LOSS_KEYS
from paratune.config.contradictions import conflict, exclusive, no_effect, unused
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
        wanted = f"in {task.kind}; it is for task.kind: qa"
        yield from unused(config, "data.columns.answer_start", wanted, "task.kind")
        return
    if isinstance(columns.text_pair, list):
        message = (
            f"data.columns.text_pair: {one_line(columns.text_pair)} joins columns, but the position of an answer "
            "counts in one column; name the column of the context"
        )
        yield Problem(message, ("data.columns.text_pair",), code="data.column_conflict")
    yield from unused(config, ("data.truncation", "data.truncation_side"), _WINDOWS, "task.kind")
    limit = config.data.max_length
    if limit is not None and task.stride >= limit:
        message = (
            f"task.stride: {task.stride} must be less than data.max_length: {limit}, because neighbouring windows "
            "share that many tokens; a third of it is usual"
        )
        yield Problem(message, ("task.stride", "data.max_length"), code="task.stride")
    if task.unanswerable is False:
        wanted = "with task.unanswerable: false, where every question has an answer"
        yield from unused(config, "task.null_threshold", wanted, "task.unanswerable")


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
        message = (
            f"task.separator: {one_line(task.separator)} occurs inside {', '.join(map(one_line, ambiguous))} of "
            "task.labels; use another separator, also for a column of lists"
        )
        yield Problem(message, ("task.separator", "task.labels"), code="task.labels")


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
            message = f"task.labels has {problem}; correct it, or set task.scheme: none for classes of words"
            yield Problem(message, ("task.labels", "task.scheme"), code="task.labels")
    else:
        yield from unused(config, "task.strict", "with task.scheme: none", "task.scheme")
        if config.evaluate.best in ("f1", "precision", "recall"):
            wanted = "with task.scheme: none, which has no entities; use accuracy or loss"
            yield no_effect("evaluate.best", config.evaluate.best, wanted, "task.scheme")
    if isinstance(columns.text, list):
        message = f"data.columns.text: {one_line(columns.text)} joins columns; name the one column with lists of words"
        yield Problem(message, ("data.columns.text",), code="data.column_conflict")
    wanted = "in token_classification, whose rows are lists of words"
    yield from unused(config, ("data.columns.text_pair", "data.truncation"), wanted, "task.kind")
    if "label" in config.evaluate.slices:
        yield no_effect("evaluate.slices", "label", wanted, "task.kind")


def _choices(config: Config) -> Iterator[Problem]:
    """Check the options of multiple choice."""
    task, columns = config.task, config.data.columns
    if not isinstance(task, MultipleChoiceTask):
        wanted = f"in {task.kind}; it is for task.kind: multiple_choice"
        yield from unused(config, "data.columns.choices", wanted, "task.kind")
        return
    if isinstance(columns.choices, list) and len(columns.choices) < 2:
        message = (
            f"data.columns.choices: {one_line(columns.choices)} must name at least two columns, or one column with "
            "lists (without brackets)"
        )
        yield Problem(message, ("data.columns.choices",), code="data.column_conflict")
    if task.label_format == "name" and isinstance(columns.choices, str):
        wanted = f"with data.columns.choices: {columns.choices}, one column, whose choices have no names"
        yield no_effect("task.label_format", task.label_format, wanted, "data.columns.choices")
    if "label" in config.evaluate.slices:
        wanted = "in multiple_choice, whose labels are places of choices"
        yield no_effect("evaluate.slices", "label", wanted, "task.kind")


def _text_windows(config: Config) -> Iterator[Problem]:
    """Check the windows of long texts."""
    task, data = config.task, config.data
    windows = getattr(task, "windows", None)
    if not isinstance(windows, WindowOptions):
        return
    if config.baseline is not None:
        wanted = f"with baseline: {config.baseline.kind}, which reads whole texts"
        yield no_effect("task.windows.max_windows", windows.max_windows, wanted, "baseline")
    if data.max_length is not None and windows.stride >= data.max_length:
        message = (
            f"task.windows.stride: {windows.stride} must be less than data.max_length: {data.max_length}, because "
            "neighbouring windows share that many tokens"
        )
        yield Problem(message, ("task.windows.stride", "data.max_length"), code="task.stride")
    if data.columns.text_pair is not None and data.truncation not in ("only_first", "only_second"):
        message = (
            f"data.truncation: {data.truncation} does not name the text of a pair that task.windows cuts; set "
            "only_first or only_second"
        )
        yield Problem(message, ("data.truncation", "task.windows"), code="config.conflict")
    if data.columns.text_pair is None and data.truncation == "head_tail":
        yield conflict("data.truncation", data.truncation, "task.windows.max_windows", windows.max_windows)
    wanted = "with task.windows, which cuts from the start of a text"
    yield from unused(config, "data.truncation_side", wanted, "task.windows")


def _own_loss(config: Config) -> Iterator[Problem]:
    """Check that no other option changes or replaces a loss of the user's own code."""
    task = config.task
    loss = getattr(task, "loss", None)
    if not isinstance(loss, OwnCode):
        return
    if config.baseline is not None:
        wanted = f"with baseline: {config.baseline.kind}, which is fitted with a loss of its own"
        yield no_effect("task.loss.function", loss.function, wanted, "baseline")
    yield from exclusive(config, "task.loss.function", *LOSS_KEYS)


def _class_loss(config: Config) -> Iterator[Problem]:
    """Check the options of the loss of a classification."""
    task = config.task
    if not isinstance(task, ClassificationTask):
        return
    yield from exclusive(config, "task.label_smoothing", "task.focal_gamma")
    if config.baseline is not None:
        wanted = f"with baseline: {config.baseline.kind}, which is fitted with a loss of its own"
        yield from unused(config, LOSS_KEYS, wanted, "baseline")
    weights, names = task.class_weights, class_names(task)
    if isinstance(weights, list) and len(weights) != len(names):
        message = (
            f"task.class_weights has {len(weights)} weights, and task.labels {len(names)} classes "
            f"({', '.join(map(one_line, names))}); give one weight for each class, in this order"
        )
        yield Problem(message, ("task.class_weights", "task.labels"), code="task.class_weights")
    if isinstance(weights, dict):
        given = list(map(str, weights))
        unknown = [name for name in given if name not in names]
        missing = [name for name in names if name not in given]
        if unknown or missing or len(set(given)) < len(given):
            message = (
                f"task.class_weights has the classes {', '.join(map(one_line, given))}, and task.labels "
                f"{', '.join(map(one_line, names))}; give one weight for each class by its name"
            )
            yield Problem(message, ("task.class_weights", "task.labels"), code="task.class_weights")


def _glue(config: Config) -> Iterator[Problem]:
    """Check that the labels are those of the GLUE task: its scores and its submission depend on them."""
    task = config.task
    if not isinstance(task, ClassificationTask) or task.glue is None:
        return
    wanted, given = list(GLUE[task.glue].classes), class_names(task)
    if sorted(given) != sorted(wanted):
        message = (
            f"task.labels has the classes {', '.join(given)}, and {task.glue} has {', '.join(wanted)}; map the "
            f"values of your files to these, as in {{{given[0]}: {wanted[0]}, ...}}, or leave task.glue out"
        )
        yield Problem(message, ("task.labels", "task.glue"), code="task.labels")
    elif given != wanted and "f1" in GLUE[task.glue].metrics:
        message = (
            f"task.labels has {given[-1]} last, and the F1 of {task.glue} is that of {wanted[-1]}; list the values "
            f"of {wanted[0]} first"
        )
        yield Problem(message, ("task.labels", "task.glue"), code="task.labels")


def _bands(config: Config) -> Iterator[Problem]:
    """Check the scale of the scores that a regression reports."""
    task = config.task
    if not isinstance(task, RegressionTask):
        return
    if task.grades is not None:
        yield from _grades(task)
    if task.range is None:
        return
    low, high = task.range
    if low >= high:
        message = f"task.range: {one_line(task.range)} must name a lower and then a higher score"
        yield Problem(message, ("task.range",), code="task.range")
    elif task.round_to is not None:
        off = [end for end in task.range if not is_on_scale(end, task.round_to)]
        if off:
            message = (
                f"task.range: {one_line(task.range)} ends at {one_line(off[0])}, which is not a multiple of "
                f"task.round_to: {one_line(task.round_to)}; change one of them"
            )
            yield Problem(message, ("task.range", "task.round_to"), code="task.range")


def _grades(task: RegressionTask) -> Iterator[Problem]:
    assert task.grades is not None
    low, high, step = task.grades
    other = next((key for key in ("round_to", "range") if getattr(task, key) is not None), None)
    if other is not None:
        message = f"task.grades has no effect beside task.{other}, which sets the scale of the scores; remove one"
        yield Problem(message, ("task.grades", f"task.{other}"), code="config.no_effect")
    elif low >= high or step <= 0 or not (is_on_scale(low, step) and is_on_scale(high, step)):
        message = (
            f"task.grades: {one_line(task.grades)} must name a lower and then a higher grade, both multiples of the "
            "step, and the step, such as [0, 9, 0.5]"
        )
        yield Problem(message, ("task.grades",), code="task.range")


def is_on_scale(value: float, step: float) -> bool:
    """Return whether a number is a multiple of `step`, to rounding."""
    steps = value / step
    return abs(steps - round(steps)) < 1e-6


def _side(config: Config) -> Iterator[Problem]:
    """Check for a side of truncation where nothing is truncated."""
    if isinstance(config.task, MaskedLMTask) and config.task.windows == "joined":
        wanted = "with task.windows: joined, where documents continue in the next window"
        yield from unused(config, "data.truncation_side", wanted, "task.windows", "task.kind")


def _masked_lm(config: Config) -> Iterator[Problem]:
    """Check for options without effect in masked language modelling."""
    if not isinstance(config.task, MaskedLMTask):
        return
    columns = ("data.columns.label", "data.columns.text_pair", "data.columns.id")
    yield from unused(config, columns, "with task.kind: mlm, which uses the text only", "task.kind")
    if config.data.truncation in ("only_first", "head_tail"):
        wanted = "with task.kind: mlm, whose documents are single texts of which windows are made"
        yield no_effect("data.truncation", config.data.truncation, wanted, "task.kind")
    wanted = "with task.kind: mlm, which scores windows and not rows"
    yield from unused(config, ("evaluate.slices", "evaluate.cluster"), wanted, "task.kind")


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
