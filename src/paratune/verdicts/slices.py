"""The scores of a model on parts of a split, each with the interval of what it would be on other rows of its kind.

The scores come from predictions, with the definitions of `scoring`; the interval from jackknife pseudovalues, or of a
share of rows (accuracy, recall, exact match) Wilson's.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.config.metric_names import METRICS, score_range
from paratune.errors import DataError
from paratune.records.finished import RunRecord
from paratune.records.scores import LABEL, LENGTH, MAX_SLICES, MIN_ROWS, RECALL
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
        is_label = name == LABEL
        if is_label:
            slices = _by_label(task, rows, split)
        elif name == LENGTH:
            # Quarters of the lengths; rows of equal length stay together, so a quarter may be empty.
            lengths, slices = values[name], {}
            quarter = np.searchsorted(np.quantile(lengths, [0.25, 0.5, 0.75]), lengths, side="left")
            for number in np.unique(quarter):
                places = np.flatnonzero(quarter == number)
                tokens = f"{int(lengths[places].min())} to {int(lengths[places].max())} tokens"
                slices[f"Q{number + 1}"] = places, tokens
        else:
            slices = _of_values(values[name])
        records[name] = []
        for value, (places, detail) in slices.items():
            part = PredictionRows(rows.run, {column: cells[places] for column, cells in rows.columns.items()})
            scores = _scores(task, part, value if is_label else None) if len(places) else {}
            records[name].append({"value": value, "detail": detail, "num_rows": len(places), "scores": scores})
    return records


def split_records(task: RunRecord, split: str) -> dict[str, dict[str, Any]]:
    """Return the scores of a whole split by metric, each with `value` and `interval` (or null), as `slice_records`."""
    return _scores(task, read_rows(task, split), None)


def _of_values(values: npt.NDArray[Any]) -> Slices:
    """Return the rows of each value: numbers by their size, then texts."""

    def order(text: str) -> tuple[bool, float, str, str]:
        try:
            return False, float(text), "", text
        except ValueError:
            return True, 0.0, text.casefold(), text

    texts = np.asarray([str(value) for value in values], dtype=object)
    return {text: (np.flatnonzero(texts == text), None) for text in sorted(set(texts.tolist()), key=order)}


def _by_label(task: RunRecord, rows: PredictionRows, split: str) -> Slices:
    if task.task == "multi_label":
        masks = dict(zip(task.labels, members(task, rows, "label").T, strict=True))
    elif task.task == "qa":
        has_answer = np.asarray([bool(text) for text in rows.texts("label")])
        masks = {"answer": has_answer, "no answer": ~has_answer}
    elif task.task == "regression":
        values = np.asarray([f"{value:g}" for value in rows.numbers("label")], dtype=object)
        if (count := len(set(values.tolist()))) > MAX_SLICES:
            raise DataError(
                f"{split}: the label has {count:,} distinct values, and slices may have at most {MAX_SLICES}; slice "
                "by a column with ranges of the label",
                code="data.too_many_values", source=split, name=LABEL, num_values=count, limit=MAX_SLICES,
            )  # fmt: skip
        return _of_values(values)
    else:
        texts = np.asarray(rows.texts("label"), dtype=object)
        masks = {name: texts == name for name in task.labels}
    return {name: (np.flatnonzero(mask), None) for name, mask in masks.items()}


def _scores(task: RunRecord, rows: PredictionRows, label: str | None) -> dict[str, dict[str, Any]]:
    """Return the scores of rows with their intervals; of the rows with a class as their label its recall alone."""
    scored: dict[str, JackknifeScore | None] = {}
    shares = {RECALL}
    if label is not None and task.task == "multi_label":
        scored[RECALL] = of_mean(members(task, rows, "prediction")[:, list(task.labels).index(label)])
    elif label is not None and task.task == "classification":
        scored[RECALL] = of_mean(np.asarray(rows.texts("prediction"), dtype=object) == label)
    else:
        shares = _SHARES
        is_constant = "label" in rows.columns and len(set(rows.texts("label"))) == 1
        for metric in METRICS[task.task]:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of few rows; an undefined score is None
                    is_undefined = is_constant and metric in _NEED_OTHER_LABELS
                    scored[metric] = None if is_undefined else score_rows(task, rows, metric)
            except CannotTell:
                continue
    records: dict[str, dict[str, Any]] = {}
    for metric, one in scored.items():
        limits = score_range(metric, task.task)
        interval = None if one is None else _interval(one, limits, is_share=metric in shares)
        records[metric] = {"value": None if one is None else one.score, "interval": interval}
    return records


def _interval(scored: JackknifeScore, limits: tuple[float, float], *, is_share: bool) -> list[float] | None:
    """Return the interval, inside of `limits`; None where there are too few rows, or all have the same influence on the
    score. `is_share` is whether each row is right or wrong."""
    if scored.num_samples < MIN_ROWS or not scored.is_known:
        return None
    (lowest, highest), values = limits, scored.pseudovalues
    if is_share and len(values) == scored.num_samples and np.isin(values, (0.0, highest)).all():
        low, high = wilson(int((values > 0).sum()), len(values))
        return [highest * low, highest * high]
    variance = float(values.var(ddof=1)) / len(values)
    low, high = Estimate(scored.score, (), variance, len(values), "samples").interval()
    return [max(low, lowest), min(high, highest)] if variance else None


def wilson(num_right: int, num_rows: int) -> tuple[float, float]:
    """Return the 95% interval of a share of at least one row.

    Source: Wilson, Journal of the American Statistical Association 22, 1927.
    """
    z = float(special.ndtri((1 + LEVEL) / 2))
    share = num_right / num_rows
    middle = (share + z * z / (2 * num_rows)) / (1 + z * z / num_rows)
    half = z / (1 + z * z / num_rows) * math.sqrt(share * (1 - share) / num_rows + z * z / (4 * num_rows**2))
    return max(0.0, middle - half), min(1.0, middle + half)
