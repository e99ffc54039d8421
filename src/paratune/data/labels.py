"""Turns the values of a label column into class ids, sets of classes, or numeric targets.

Imports no torch.
"""

import logging
import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.base.text import listing
from paratune.config.glue import counts_as_glue
from paratune.config.task_sections import (
    ClassTask,
    EmbeddingTask,
    MultiLabelTask,
    RegressionTask,
    Task,
    TokenClassificationTask,
    class_names,
)
from paratune.errors import DataError, coded, did_you_mean

log = logging.getLogger(__name__)

_DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d+,\d+|\d{1,3}(\.\d{3})+,\d+)")
_NO_LABEL = ("n/a", "#n/a", "n.a.", "na", "<na>", "nan", "null", "-", "--", "?")
_MANY_VALUES = 20
"""With more distinct unknown numbers than this, the message suggests regression."""


def first_rows(rows: Sequence[int], num_shown: int = 5) -> str:
    """Return the first rows as text, such as "rows 3, 8, 9 and 12 more (counted from 0)"."""
    shown = ", ".join(map(str, rows[:num_shown]))
    more = f" and {len(rows) - num_shown} more" if len(rows) > num_shown else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {shown}{more} (counted from 0)"


def is_missing(value: Any, *, nan_is_missing: bool, blank_is_missing: bool = True) -> bool:
    """Return whether a label is null or, by the two flags, blank or NaN."""
    if value is None or (blank_is_missing and isinstance(value, str) and not value.strip()):
        return True
    return nan_is_missing and isinstance(value, float) and math.isnan(value)


def class_counts(labels: npt.NDArray[Any], names: Sequence[str]) -> dict[str, int]:
    """Return the rows of each class by its name, from (num_rows,) class ids or (num_rows, C) with 1 for each class."""
    counts = np.bincount(labels, minlength=len(names)) if labels.ndim == 1 else labels.sum(axis=0).astype(np.int64)
    return dict(zip(names, counts.tolist(), strict=True))


def balanced_weights(labels: npt.NDArray[Any], names: Sequence[str], source: str) -> list[float]:
    """Return the weight of each class with which all classes have the same sum of weights: N / (C * rows of the class).

    Raises:
        DataError: A class has no row in `source`, so that its weight would be infinite.

    Source: sklearn.utils.class_weight.compute_class_weight; King and Zeng, Political Analysis 9(2), 2001.
    """
    num_rows = class_counts(labels, names)
    if absent := [name for name, count in num_rows.items() if count == 0]:
        message = (
            f"{source}: task.class_weights: balanced needs training rows of each class, and no row has the label "
            f"{listing(map(repr, absent))}; give the weights, or remove these classes from task.labels"
        )
        raise DataError(message, code="task.class_weights", key="task.class_weights", source=source, absent=absent)
    return [len(labels) / (len(names) * count) for count in num_rows.values()]


def absence_warnings(split: str, num_rows: Mapping[str, int]) -> list[str]:
    """Return a sentence where a class has no row in a split; `num_rows` is from `class_counts`."""
    absent = [name for name, count in num_rows.items() if count == 0]
    return [f"{split}: no row has the label {listing(map(repr, absent))}"] if absent else []


def encode(
    values: Sequence[Any], rows: Sequence[int], task: Task, where: str
) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
    """Return the labels or targets of a label column; see `class_ids`, `label_sets` and `targets`."""
    if isinstance(task, MultiLabelTask):
        return label_sets(values, rows, task, where)
    if isinstance(task, ClassTask):
        return class_ids(values, rows, task, where)
    numbers = targets(values, rows, where)
    if isinstance(task, RegressionTask) and task.range is not None:
        check_range(numbers, rows, task.range, where)
    elif isinstance(task, EmbeddingTask) and task.loss == "cosine_similarity":
        if task.score_range is not None:
            check_range(numbers, rows, task.score_range, where, key="task.score_range")
    elif isinstance(task, EmbeddingTask) and (wrong := np.flatnonzero((numbers != 0) & (numbers != 1)).tolist()):
        problem = f"labels are neither 0 (unrelated) nor 1 (related), such as {numbers[wrong[0]]:g}"
        advice = "correct them, or set task.loss: cosine_similarity for scores"
        raise _wrong_values(where, problem, wrong, rows, advice, code="data.label_unseen")
    return numbers


def label_sets(values: Sequence[Any], rows: Sequence[int], task: MultiLabelTask, where: str) -> npt.NDArray[np.float32]:
    """Return (num_rows, C): 1 where a row has the class; arguments and errors as in `class_ids`.

    A value is a list of labels, or a text of labels separated by `task.separator`, with spaces around them or none.
    """
    lengths = {len(value) if isinstance(value, list) else -1 for value in values}
    flags = {str(item) for value in values if isinstance(value, list) for item in value}
    is_vector = len(lengths) == 1 and -1 not in lengths and flags <= {"0", "1", "0.0", "1.0", "True", "False"}
    # A set has no label twice, and not all rows have all labels.
    if is_vector and (lengths == {len(class_names(task))} or any(len({*map(str, row)}) < len(row) for row in values)):
        advice = "write the names of the labels, or a column for each label (data.columns.label: [a, b])"
        problem = f"values are vectors of 0 and 1, such as {str(values[0])[:40]}"
        raise _wrong_values(where, problem, range(len(values)), rows, advice, code="data.label_unfit")
    sets = [_members(value, task.separator) for value in values]
    flat = [label for members in sets for label in members]
    of_row = np.repeat(np.arange(len(sets)), [len(members) for members in sets])
    ids = class_ids(flat, [rows[row] for row in of_row.tolist()], task, f"{where} (task.separator: {task.separator!r})")
    encoded = np.zeros((len(values), len(class_names(task))), dtype=np.float32)
    encoded[of_row, ids] = 1
    return encoded


def _members(value: Any, separator: str) -> list[Any]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(separator)] if value.strip() else []
    return ["null" if item is None else item for item in value] if isinstance(value, list) else [value]


def class_ids(
    values: Sequence[Any], rows: Sequence[int], task: ClassTask | TokenClassificationTask, where: str
) -> npt.NDArray[np.int64]:
    """Return the class id of each value, none of which is missing; `rows` and `where` are for messages.

    A value matches a label of the task when both are the same text. Integers, and floats and texts with a zero fraction
    (1.0, "1.0"), are compared as the text of the integer. "001" is not 1. Booleans are "true" and "false".

    Raises:
        DataError: Values are not labels of the task.
    """
    ids_by_label = _ids_by_value(task, where)
    keys = [value if isinstance(value, str | int | float) else str(value) for value in values]
    cache = {key: _lookup(key, ids_by_label) for key in dict.fromkeys(keys)}
    if None in cache.values():
        unseen: dict[Any, list[int]] = {}
        for key, row in zip(keys, rows, strict=True):
            if cache[key] is None:
                unseen.setdefault(key, []).append(row)
        raise _unseen_error(unseen, ids_by_label, where)
    class_ids = np.fromiter((cache[key] for key in keys), dtype=np.int64, count=len(keys))
    names = class_names(task)
    # The minus is a class next to a plus, and all marks may be tags of words.
    marks = {*_NO_LABEL} - ({"-"} if "+" in ids_by_label else set())
    marks = set() if isinstance(task, TokenClassificationTask) else marks
    _warn_of_odd_labels({str(key): number for key, number in cache.items() if number is not None}, marks, where)
    if counts_as_glue(task) and any(str(key) not in names for key in cache):
        listed = ", ".join(f"{number} = {name}" for number, name in enumerate(names))
        log.info("%s: numbers are the class ids of GLUE, %s; set task.labels if the file differs", where, listed)
    return class_ids


def _warn_of_odd_labels(ids: Mapping[str, int], marks: Container[str], where: str) -> None:
    """Log a warning of labels that differ only in case and spaces, and of `marks`, which stand for no label."""
    by_word: dict[str, list[str]] = {}
    for label in ids:
        by_word.setdefault(" ".join(label.casefold().split()), []).append(label)
    for word, labels in by_word.items():
        if len({ids[label] for label in labels}) > 1:
            listed = listing(map(repr, labels))
            remedy = f"if they are one class, write task.labels as a mapping, in which {listed} have the same name"
            extra = coded("data.labels_alike", labels=labels)
            log.warning("%s: the classes %s differ only in case or spaces; %s", where, listed, remedy, extra=extra)
        if word in marks:
            remedy = "remove it from task.labels and set data.missing: drop"
            extra = coded("data.label_na", label=labels[0])
            log.warning(
                "%s: %r is a class; if it means that there is no label, %s", where, labels[0], remedy, extra=extra
            )


def _ids_by_value(task: ClassTask | TokenClassificationTask, where: str) -> dict[str, int]:
    """Return the id of each value of `task.labels`, as text; a DataError where two values have the same text."""
    names = class_names(task)
    number_of = {name: number for number, name in enumerate(names)}
    ids: dict[str, int] = {}
    pairs = task.labels.items() if isinstance(task.labels, dict) else ((value, str(value)) for value in task.labels)
    for value, name in pairs:
        if str(value) in ids:
            message = f"task.labels names {value!r} twice (as a number and as text); {where} cannot distinguish them"
            raise DataError(message, code="task.labels", key="task.labels", value=value, where=where)
        ids[str(value)] = number_of[name]
    # Labels without names, as transformers calls them; not where a value is one of these ids, and may be another label.
    has_no_names = all(name == f"LABEL_{number}" for number, name in enumerate(names))
    default = {str(number): number for number in range(len(names))} if has_no_names else {}
    return ids | (default if ids.keys().isdisjoint(default) else {})


def _unseen_error(unseen: Mapping[Any, list[int]], ids: Mapping[str, int], where: str) -> DataError:
    """Return the error of labels that the task does not have; `unseen` has the rows of each value."""
    most = sorted(unseen.items(), key=lambda item: -len(item[1]))[:5]
    listed = "; ".join(
        f"{repr(value)[:60]}{did_you_mean(str(value)[:200], ids)}: {first_rows([*dict.fromkeys(rows)], 3)}"
        for value, rows in most
    )
    listed += f"; and {len(unseen) - len(most)} more values" if len(unseen) > len(most) else ""
    num_labels = sum(map(len, unseen.values()))
    problem = f"{where}: {num_labels} labels are not among task.labels ({listing(map(repr, ids))}): {listed}"
    if len(unseen) > _MANY_VALUES and all(as_number(value) is not None for value in unseen):
        problem += "; a numeric target needs task.kind: regression"
    facts: dict[str, Any] = {"problem": problem, "values": sorted(str(value)[:200] for value in unseen)[:_MANY_VALUES]}
    return DataError(f"{problem}. Add them to task.labels, or correct the file", code="data.label_unseen", **facts)


def _lookup(value: str | int | float, ids: dict[str, int]) -> int | None:
    if isinstance(value, bool):
        keys = [str(value).lower(), str(value), str(int(value))]
    elif isinstance(value, float):
        keys = [str(value), *([str(int(value))] if value.is_integer() else [])]
    else:
        whole = re.fullmatch(r"(-?(?:0|[1-9][0-9]*))\.0+", str(value))
        keys = [str(value), *([whole[1]] if whole else [])]
    return next((ids[key] for key in keys if key in ids), None)


def targets(values: Sequence[Any], rows: Sequence[int], where: str) -> npt.NDArray[np.float32]:
    """Return each value, a number or its text, as a finite float32; arguments as in `class_ids`."""
    numbers = [as_number(value) for value in values]
    if wrong := [index for index, number in enumerate(numbers) if number is None]:
        example = values[wrong[0]]
        decimal_comma = isinstance(example, str) and as_number(example.replace(",", ".")) is not None
        class_advice = "for class labels, set task.kind: classification and task.labels"
        advice = "write numbers with a decimal point" if decimal_comma else class_advice
        problem = f"targets are not numbers, such as {str(example)[:40]!r}"
        raise _wrong_values(where, problem, wrong, rows, advice, code="data.target_not_number")
    with np.errstate(over="ignore"):
        targets = np.asarray(numbers, dtype=np.float64).astype(np.float32)
    if infinite := np.flatnonzero(~np.isfinite(targets)).tolist():
        problem = f"targets are not finite, such as {values[infinite[0]]!r}"
        advice = "correct them, or leave the field empty and set data.missing: drop"
        raise _wrong_values(where, problem, infinite, rows, advice, code="data.target_not_finite")
    return targets


def _wrong_values(
    where: str, problem: str, wrong: Sequence[int], rows: Sequence[int], advice: str, *, code: str
) -> DataError:
    """Return the error for values with the indices `wrong`; `rows` has the row of each value."""
    first = first_rows([rows[index] for index in wrong])
    return DataError(f"{where}: {len(wrong)} of {len(rows)} {problem}: {first}; {advice}", code=code, where=where)


def check_range(
    targets: npt.NDArray[Any], rows: Sequence[int], limits: Sequence[float], where: str, *, key: str = "task.range"
) -> None:
    """Raise a DataError where a target, (len(rows),), is below the lowest or above the highest of `key`."""
    if outside := np.flatnonzero((targets < limits[0]) | (targets > limits[1])).tolist():
        problem = f"targets are not between {limits[0]:g} and {limits[1]:g} ({key}), such as {targets[outside[0]]:g}"
        advice = f"correct them, or change {key}"
        raise _wrong_values(where, problem, outside, rows, advice, code="data.target_out_of_range")


def without_marks(values: Sequence[Any], known: Iterable[object]) -> list[Any]:
    """Return labels with None for texts such as n/a and -, which stand for no label, where they are not `known`."""
    marks = {*_NO_LABEL} - {str(label).strip().casefold() for label in known}
    return [None if isinstance(value, str) and value.strip().casefold() in marks else value for value in values]


def without_lists(values: list[Any]) -> list[Any]:
    """Return the labels of a column of lists where each has at most one, None for an empty list; others as they are."""
    is_single = all(value is None or (isinstance(value, list) and len(value) < 2) for value in values)
    return [value[0] if value else None for value in values] if is_single else values


def with_points(values: Sequence[Any], separator: str | None) -> list[Any]:
    """Return numbers with a decimal comma, of a table separated by semicolons, with a point: `7,5`, `1.234,5`."""
    texts = [value.strip() for value in values if isinstance(value, str) and value.strip()]
    has_commas = separator == ";" and any("," in text for text in texts)
    if not has_commas or not all(_DECIMAL_COMMA.fullmatch(text) for text in texts):
        return list(values)
    return [value.replace(".", "").replace(",", ".") if isinstance(value, str) else value for value in values]


def as_number(value: Any) -> float | None:
    """Return a number, or the text of a number, as a float; None for other values, for booleans and for "1_000"."""
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def whole_number(value: Any) -> int | None:
    """Return a whole number, or its text, as an int; None for other values."""
    number = as_number(value)
    return int(number) if number is not None and number.is_integer() else None
