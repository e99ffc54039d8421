"""The scores of a model on parts of a split, each with the interval of what it would be on other rows of its kind.

The scores come from predictions, with the definitions of `scoring`; the interval from jackknife pseudovalues, or of a
share of rows (accuracy, recall, exact match) Wilson's.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.config.metric_names import METRICS, score_range
from paratune.errors import DataError
from paratune.records.finished import RunRecord
from paratune.records.scores import BIAS, LABEL, LENGTH, MAX_SLICES, MIN_ROWS, RATER_BIAS, RECALL
from paratune.records.typed import RunFile, TaskFacts
from paratune.verdicts import special
from paratune.verdicts.estimate import LEVEL, Estimate
from paratune.verdicts.jackknife import JackknifeScore, of_mean
from paratune.verdicts.scoring import CannotTell, PredictionRows, members, read_rows, score_rows

_NEED_OTHER_LABELS = {"r2", "pearson", "spearman", "qwk"}  # these are undefined or meaningless for rows with one label
_SHARES = {
    *("accuracy", "f1_micro", "within_one", "exact_agreement", "adjacent_agreement"),
    *("exact", "has_answer_exact", "no_answer_exact", "recall_at_1"),
}
"""Scores that are a share of rows, if each row is right or wrong; others, such as a perfect F1, are not."""
Slices = dict[str, tuple[npt.NDArray[np.int64], str | None]]  # slices of a column: rows, and a detail of the name


def scored_task(
    name: str, folder: Path, kind: str, labels: Sequence[str] = (), options: Mapping[str, Any] = {}
) -> RunRecord:
    """Return a folder of prediction files as a run without figures; `name` is for messages, `kind` that of the task,
    `labels` are the names of its classes, `options` the section `task` of the configuration."""
    task = TaskFacts(kind=kind, labels=list(labels))
    return RunRecord(name, folder, RunFile(task=task, config={"task": dict(options)}, grades=options.get("grades")))


def slice_records(
    task: RunRecord, split: str, names: Sequence[str], values: Mapping[str, npt.NDArray[Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Return the records of slices (see `paratune.records.scores`) by column, from the prediction file of a split.

    `values` has the value of each row, (N,), by name, except for `label`.

    Raises:
        CannotTell, DataError: The prediction file cannot be used; the label has too many values.
    """
    rows = read_rows(task, split)
    records: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        is_label, slices = name == LABEL, Slices()
        column = None if is_label else values[name]
        if is_label and task.task == "regression":
            column = np.asarray([f"{value:g}" for value in rows.numbers("label")], dtype=object)
            if (count := len(set(column.tolist()))) > MAX_SLICES:
                raise DataError(
                    f"{split}: the label has {count:,} distinct values, and slices may have at most {MAX_SLICES}; "
                    "slice by a column with ranges of the label",
                    code="data.too_many_values", source=split, name=LABEL, num_values=count, limit=MAX_SLICES,
                )  # fmt: skip
        if column is None:
            slices = {name: (np.flatnonzero(mask), None) for name, mask in _by_label(task, rows).items()}
        elif name == LENGTH:
            # Quarters of the lengths; rows of equal length stay together, so a quarter may be empty.
            quarter = np.searchsorted(np.quantile(column, [0.25, 0.5, 0.75]), column, side="left")
            for number in np.unique(quarter):
                places = np.flatnonzero(quarter == number)
                tokens = f"{int(column[places].min())} to {int(column[places].max())} tokens"
                slices[f"Q{number + 1}"] = places, tokens
        else:
            texts = np.asarray([str(value) for value in column], dtype=object)
            found, numbers_of, counts = np.unique(texts, return_inverse=True, return_counts=True)
            parts = np.split(np.argsort(numbers_of, kind="stable"), np.cumsum(counts)[:-1])
            places_of = dict(zip(found.tolist(), parts, strict=True))
            numbers: dict[str, float] = {}
            for text in places_of:
                with suppress(ValueError):
                    numbers[text] = float(text)
            ordered = sorted(numbers, key=lambda text: (numbers[text], text))
            ordered += sorted(places_of.keys() - numbers.keys(), key=lambda text: (text.casefold(), text))
            slices = {text: (places_of[text], None) for text in ordered}
        records[name] = []
        for value, (places, detail) in slices.items():
            part = PredictionRows(rows.run, {column: cells[places] for column, cells in rows.columns.items()})
            scores = score_records(task, part, value if is_label else None) if len(places) else {}
            records[name].append({"value": value, "detail": detail, "num_rows": len(places), "scores": scores})
    return records


def _by_label(task: RunRecord, rows: PredictionRows) -> dict[str, npt.NDArray[np.bool_]]:
    """Return which rows have each label, or answer."""
    if task.task == "multi_label":
        return dict(zip(task.labels, members(task, rows, "label").T, strict=True))
    texts = np.asarray(rows.texts("label"), dtype=object)
    if task.task == "qa":
        return {"answer": texts != "", "no answer": texts == ""}
    return {name: texts == name for name in task.labels}


def score_records(task: RunRecord, rows: PredictionRows, label: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the scores of rows by metric, each with `value` and `interval` (or null).

    Of the rows with a class as their `label` it is its recall alone. An interval is inside of the limits of a score;
    null where there are too few rows, or all have the same influence on the score.
    """
    scored: dict[str, JackknifeScore | None] = {}
    shares = {RECALL}
    if label is not None and task.task == "multi_label":
        scored[RECALL] = of_mean(members(task, rows, "prediction")[:, list(task.labels).index(label)])
    elif label is not None and task.task == "classification":
        scored[RECALL] = of_mean(np.asarray(rows.texts("prediction"), dtype=object) == label)
    else:
        shares = _SHARES
        is_constant = "label" in rows.columns and len(set(rows.texts("label"))) == 1
        biases = [name for name in rows.columns if name.startswith(RATER_BIAS)]
        for metric in (*METRICS[task.task], *[BIAS, *biases] * (task.task == "regression")):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of few rows; an undefined score is None
                    is_undefined = is_constant and metric in _NEED_OTHER_LABELS
                    scored[metric] = None if is_undefined else score_rows(task, rows, metric)
            except CannotTell:
                continue
    records: dict[str, dict[str, Any]] = {}
    for metric, one in scored.items():
        records[metric] = {"value": None if one is None else one.score, "interval": None}
        if one is None or one.num_samples < MIN_ROWS or not one.is_known:
            continue
        (lowest, highest), values = score_range(metric, task.task), one.pseudovalues
        is_of_rows = len(values) == one.num_samples  # and not of blocks or clusters of them
        if metric in shares and is_of_rows and np.isin(values, (0.0, highest)).all():
            low, high = wilson(int((values > 0).sum()), len(values))
            records[metric]["interval"] = [highest * low, highest * high]
        elif variance := float(values.var(ddof=1)) / len(values):
            low, high = Estimate(one.score, (), variance, len(values), "samples").interval()
            records[metric]["interval"] = [max(low, lowest), min(high, highest)]
    return records


def wilson(num_right: int, num_rows: int) -> tuple[float, float]:
    """Return the 95% interval of a share of at least one row.

    Source: Wilson, Journal of the American Statistical Association 22, 1927.
    """
    z = float(special.ndtri((1 + LEVEL) / 2))
    share = num_right / num_rows
    middle = (share + z * z / (2 * num_rows)) / (1 + z * z / num_rows)
    half = z / (1 + z * z / num_rows) * math.sqrt(share * (1 - share) / num_rows + z * z / (4 * num_rows**2))
    return max(0.0, middle - half), min(1.0, middle + half)
