"""Checks the section of the task against other sections."""

import re
from collections import Counter
from typing import Final

from paratune.config.check_train import LOSS_KEYS, Contradictions
from paratune.config.glue import GLUE
from paratune.config.metric_names import EMBEDDING_SCORES, OWN_PREFIX
from paratune.config.plain import one_line
from paratune.config.sections import named_columns
from paratune.config.task_sections import (
    ClassificationTask,
    ClassTask,
    EmbeddingTask,
    MaskedLMTask,
    MultiLabelTask,
    MultipleChoiceTask,
    OwnTask,
    QuestionAnsweringTask,
    RegressionTask,
    TokenClassificationTask,
    WindowOptions,
    class_names,
)
from paratune.errors import did_you_mean

_UNUSED_IN: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "qa": (("data.truncation", "data.truncation_side"), "whose contexts are cut into windows (task.stride)"),
    "token_classification": (("data.columns.text_pair", "data.truncation"), "whose rows are lists of words"),
    "mlm": (
        ("data.columns.label", "data.columns.text_pair", "data.columns.id", "evaluate.slices", "evaluate.cluster"),
        "which uses the text only, and scores windows and not rows",
    ),
    "own": (("evaluate.slices",), "whose prediction files have no known meaning"),
}
"""By kind of task, options without effect, and why."""
_NEEDED: Final = {
    "cosine_similarity": ("label", "the similarity, a number"),
    "triplet": ("negative", "the text that is not related"),
    "contrastive": ("label", "the similarity, a number"),
}
"""By loss of embeddings, the required column besides both texts, and its meaning."""


def _columns(found: Contradictions) -> None:
    task, columns = found.config.task, found.config.data.columns
    keys, why = _UNUSED_IN.get(task.kind, ((), ""))
    found.unused(keys, f"with task.kind: {task.kind}, {why}", "task.kind")
    has_class = task.kind not in ("token_classification", "multiple_choice", "embedding")
    if not has_class and "label" in found.config.evaluate.slices:
        found.no_effect("evaluate.slices", "label", f"in {task.kind}, where a row has no class", "task.kind")
    if isinstance(task, QuestionAnsweringTask):
        _stride(found, "task.stride", task.stride)
    if isinstance(task, OwnTask) and len(set(task.scores)) < len(task.scores):
        found.add(f"task.scores: {one_line(task.scores)} has a name twice", "task.scores")
    if isinstance(columns.label, list) and not isinstance(task, MultiLabelTask | RegressionTask):
        message = f"data.columns.label: {one_line(columns.label)} is a list; a column for each label needs multi_label"
        found.add(message, "data.columns.label", "task.kind")
    if isinstance(task, RegressionTask) and (isinstance(columns.label, list) or task.targets or task.raters):
        own = named_columns(columns.label)
        names = task.targets or own
        if len(own) < 2 or len({len(own), len({*own}), len(names), len({*names})}) > 1:
            message = f"data.columns.label has {len(own)} columns: {one_line(columns.label)}; several targets, or "
            message += "raters, need two or more, each once, and task.targets as many names; else name one column "
            message += "without brackets, and no task.raters"
            keys = ("data.columns.label", "task.raters", "task.targets")
            found.add(message, *keys, code="config.invalid_value")
        unused = ("evaluate.slices", "evaluate.metrics", "baseline.kind", "distil.teacher")
        if task.raters is None:
            found.unused(unused, "with several targets (data.columns.label is a list)", "data.columns.label")
        found.exclusive("task.raters", "task.targets")
    # The position of an answer counts in one column, and words are a list of one column.
    for kind, name in (("qa", "text_pair"), ("token_classification", "text")):
        if task.kind == kind and isinstance(joined := getattr(columns, name), list):
            found.add(f"data.columns.{name}: {one_line(joined)} joins columns; name one", f"data.columns.{name}")


def _stride(found: Contradictions, key: str, stride: int) -> None:
    limit = found.config.data.max_length
    if limit is not None and stride >= limit:
        message = f"{key}: {stride} must be less than data.max_length: {limit}"
        found.add(f"{message}; a third of it is usual", key, "data.max_length", code="task.stride")


def _labels(found: Contradictions) -> None:
    task = found.config.task
    if not isinstance(task, ClassTask | TokenClassificationTask):
        return
    names, labels = class_names(task), task.labels
    if twice := [label for label, count in Counter(map(str, labels)).items() if count > 1]:
        message = f"task.labels has {', '.join(twice)} twice; labels must differ in their text"
        found.add(message, "task.labels", code="task.labels")
    elif len(names) < 2:
        message = f"task.labels has {len(names)} class{'es' * (len(names) != 1)}: {one_line(labels)}"
        found.add(f"{message}; at least 2 are needed", "task.labels", code="task.labels")
    if isinstance(task, MultiLabelTask):
        # Prediction files join the labels of a row with the separator.
        words = dict.fromkeys([*map(str, task.labels), *names])
        if ambiguous := [one_line(word) for word in words if task.separator in word]:
            message = f"task.separator: {one_line(task.separator)} occurs inside {', '.join(ambiguous)} of task.labels"
            found.add(f"{message}; use another separator", "task.separator", "task.labels", code="task.labels")


def _tags(found: Contradictions) -> None:
    task, best = found.config.task, found.config.evaluate.best
    if not isinstance(task, TokenClassificationTask):
        return
    names = class_names(task)
    if task.scheme == "iob2":
        wrong = [tag for tag in names if tag != "O" and not re.fullmatch(r"[BI]-.+", tag)]
        begins = {tag[2:] for tag in names if tag.startswith("B-")}
        alone = [tag for tag in names if tag.startswith("I-") and tag[2:] not in begins]
        if wrong or alone or "O" not in names:
            problem = f"{', '.join(wrong)}, which are not O, B-TYPE or I-TYPE" if wrong else "no O"
            problem = f"{', '.join(alone)} without B- of the same type" if alone and not wrong else problem
            message = f"task.labels has {problem}; correct it, or set task.scheme: none for classes of words"
            found.add(message, "task.labels", "task.scheme", code="task.labels")
    elif best in ("f1", "precision", "recall"):
        wanted = "with task.scheme: none, which has no entities; use accuracy or loss"
        found.no_effect("evaluate.best", best, wanted, "task.scheme")


def _choices(found: Contradictions) -> None:
    task, choices = found.config.task, found.config.data.columns.choices
    if not isinstance(task, MultipleChoiceTask):
        return
    if isinstance(choices, list) and len(choices) < 2:
        message = f"data.columns.choices: {one_line(choices)} must name two columns or more"
        found.add(f"{message}, or one column with lists (without brackets)", "data.columns.choices")
    if task.label_format == "name" and isinstance(choices, str):
        wanted = f"with data.columns.choices: {choices}, one column, whose choices have no names"
        found.no_effect("task.label_format", task.label_format, wanted, "data.columns.choices")


def _text_windows(found: Contradictions) -> None:
    data, windows = found.config.data, getattr(found.config.task, "windows", None)
    if not isinstance(windows, WindowOptions):
        return
    _stride(found, "task.windows.stride", windows.stride)
    if data.columns.text_pair is not None and data.truncation not in ("only_first", "only_second"):
        message = f"data.truncation: {data.truncation} does not name the text of a pair that task.windows cuts"
        found.add(f"{message}; set only_first or only_second", "data.truncation", "task.windows")
    if data.columns.text_pair is None and data.truncation == "head_tail":
        message = "data.truncation: head_tail and task.windows are both given; keep one of them"
        found.add(message, "data.truncation", "task.windows.max_windows")
    wanted = "with task.windows, which cuts from the start of a text"
    found.unused("data.truncation_side", wanted, "task.windows")


def _class_loss(found: Contradictions) -> None:
    task = found.config.task
    found.exclusive(*LOSS_KEYS)
    found.exclusive("task.label_smoothing", "task.focal_gamma")
    if not isinstance(task, ClassificationTask):
        return
    weights, names = task.class_weights, class_names(task)
    has = how = ""
    if isinstance(weights, dict) and sorted(map(str, weights)) != sorted(names):
        has, how = f"the classes {', '.join(map(one_line, map(str, weights)))}", "by its name"
    elif isinstance(weights, list) and len(weights) != len(names):
        has, how = f"{len(weights)} weights", "in this order"
    if has:
        message = f"task.class_weights has {has}, and task.labels {len(names)} classes "
        message += f"({', '.join(map(one_line, names))}); give one weight for each class, {how}"
        found.add(message, "task.class_weights", "task.labels", code="task.class_weights")
    if task.glue is None:
        return
    # The scores of the benchmark and its submission depend on the classes.
    wanted = list(GLUE[task.glue].classes)
    if sorted(names) != sorted(wanted):
        message = f"task.labels has the classes {', '.join(names)}, and {task.glue} has {', '.join(wanted)}"
        advice = f"map the values of your files to these ({{{names[0]}: {wanted[0]}, ...}}), or leave task.glue out"
        found.add(f"{message}; {advice}", "task.labels", "task.glue", code="task.labels")
    elif names != wanted and "f1" in GLUE[task.glue].metrics:
        message = f"task.labels has {names[-1]} last, and the F1 of {task.glue} is that of {wanted[-1]}"
        found.add(f"{message}; list the values of {wanted[0]} first", "task.labels", "task.glue", code="task.labels")


def _bands(found: Contradictions) -> None:
    task = found.config.task
    if not isinstance(task, RegressionTask):
        return
    if task.grades is not None:
        low, high, step = task.grades
        for key in ("task.round_to", "task.range"):
            found.unused(key, "beside task.grades, which sets the scale; remove one", "task.grades")
        if low >= high or step <= 0 or not (is_on_scale(low, step) and is_on_scale(high, step)):
            message = f"task.grades: {one_line(task.grades)} must be two ascending grades and a step that divides both"
            found.add(f"{message}, such as [0, 9, 0.5]", "task.grades", code="task.range")
    for end in task.range or ():
        if task.round_to is not None and not is_on_scale(end, task.round_to):
            message = f"task.range: {one_line(end)} is not a multiple of task.round_to: {one_line(task.round_to)}"
            found.add(f"{message}; change one of them", "task.range", "task.round_to", code="task.range")


def is_on_scale(value: float, step: float) -> bool:
    """Return whether a number is a multiple of `step`, to rounding."""
    steps = value / step
    return abs(steps - round(steps)) < 1e-6


def _masked_lm(found: Contradictions) -> None:
    task, truncation = found.config.task, found.config.data.truncation
    if not isinstance(task, MaskedLMTask):
        return
    if truncation in ("only_first", "head_tail"):
        wanted = "with task.kind: mlm, whose documents are single texts of which windows are made"
        found.no_effect("data.truncation", truncation, wanted, "task.kind")
    if task.windows != "documents":
        wanted = f"with task.windows: {task.windows}, where documents continue in the next window"
        found.unused("data.truncation_side", wanted, "task.windows", "task.kind")


def _embedding(found: Contradictions) -> None:
    task, config, columns = found.config.task, found.config, found.config.data.columns
    if not isinstance(task, EmbeddingTask):
        return
    with_loss = f"with task.loss: {task.loss}"
    needed, meaning = _NEEDED.get(task.loss, ("negative", ""))
    if meaning and getattr(columns, needed) is None:
        message = f"data.columns.{needed} is required {with_loss}: the column of {meaning}"
        found.add(message, f"data.columns.{needed}", "data.columns", "data", code="config.required")
    other = "label" if needed == "negative" else "negative"
    found.unused(f"data.columns.{other}", with_loss, "task.loss")
    best, known = config.evaluate.best, (*EMBEDDING_SCORES[task.loss], "loss")
    if best is not None and not best.startswith(OWN_PREFIX) and best not in known:
        message = f"evaluate.best: {best} is not a metric of task.loss: {task.loss}{did_you_mean(best, known)}"
        found.add(f"{message}; allowed: {', '.join(known)}", "evaluate.best", "task.loss", code="metric.unknown")
    elif best == "accuracy" and columns.negative is None:
        wanted = "without data.columns.negative: it is the accuracy of triplets"
        found.no_effect("evaluate.best", best, wanted, "data.columns.negative")
    if (truncation := config.data.truncation) in ("only_first", "only_second"):
        found.no_effect("data.truncation", truncation, "in embedding, where each text is encoded alone", "task.kind")
    if config.train.freeze_encoder:
        message = "train.freeze_encoder: true leaves nothing to train in embedding, which has no head; use train.freeze"
        found.add(message, "train.freeze_encoder", "task.kind")


TASK_CHECKS: Final = (_columns, _labels, _tags, _choices, _text_windows, _class_loss, _bands, _masked_lm, _embedding)
