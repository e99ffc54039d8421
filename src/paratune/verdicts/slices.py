"""The scores of a model on parts of a split, each with the interval of what it would be on other rows of its kind.

The scores come from predictions, with the definitions of `scoring`; the interval from jackknife pseudovalues, or of a
share of rows (accuracy, recall, exact match) Wilson's.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.config.metric_names import METRICS, score_range
from paratune.errors import DataError
from paratune.records.finished import RunRecord
from paratune.records.slices import LABEL, LENGTH, MAX_SLICES, MIN_ROWS, RECALL
from paratune.records.typed import RunFile, TaskFacts
from paratune.verdicts.estimate import LEVEL, Estimate
from paratune.verdicts.jackknife import JackknifeScore, of_mean
from paratune.verdicts.rows import CannotTell, PredictionRows, read_rows
from paratune.verdicts.scoring import members, score_rows

_NEED_OTHER_LABELS = {"r2", "pearson", "spearman", "qwk"}
"""These are undefined or meaningless for rows with one label."""
_SHARES = {
    *("accuracy", "f1_micro", "within_one", "exact_agreement", "adjacent_agreement"),
    *("exact", "has_answer_exact", "no_answer_exact", "recall_at_1"),
}
"""Scores that are a share of rows, if each row is right or wrong; others, such as a perfect F1, are not."""


def scored_task(
    name: str, folder: Path, kind: str, labels: Sequence[str] = (), options: Mapping[str, Any] = {}
) -> RunRecord:
    """Return a folder of prediction files as a run without figures.

    Args:
        name: For messages.
        folder: With prediction files.
        kind: Kind of the task.
        labels: Names of the classes.
        options: Section `task` of the configuration.
    """
    task = TaskFacts(kind=kind, labels=list(labels))
    return RunRecord(name, folder, RunFile(task=task, config={"task": dict(options)}, grades=options.get("grades")))


@dataclass(frozen=True)
class _Slice:
    value: str
    rows: npt.NDArray[np.int64]
    detail: str | None = None


def slice_records(
    task: RunRecord, split: str, names: Sequence[str], values: Mapping[str, npt.NDArray[Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Return the records of slices (see `paratune.records.slices`) by column, from the prediction file of a split.

    `values` has the value of each row, (N,), by name, except for `label`.

    Raises:
        CannotTell: The prediction file cannot be used.
        DataError: The label has too many values.
    """
    rows = read_rows(task, split)
    records = {}
    for name in names:
        if name == LABEL:
            slices = _by_label(task, rows, split)
        else:
            slices = _quartiles(values[name]) if name == LENGTH else _equal(values[name])
        records[name] = [_record(task, rows, part, is_label=name == LABEL) for part in slices]
    return records


def split_records(task: RunRecord, split: str) -> dict[str, dict[str, Any]]:
    """Return the scores of a whole split by metric, each with `value` and `interval` (or null); of slices see above.

    Raises:
        CannotTell: The prediction file cannot be used.
    """
    rows = read_rows(task, split)
    return dict(_scores(task, rows, _Slice(split, np.arange(len(rows["index"]))), is_label=False))


def _equal(values: npt.NDArray[Any]) -> list[_Slice]:
    texts = np.asarray([str(value) for value in values], dtype=object)
    return [_Slice(text, np.flatnonzero(texts == text)) for text in sorted(set(texts.tolist()), key=_order)]


def _order(text: str) -> tuple[bool, float, str]:
    """Return the sort key of a value: numbers by their size, then texts."""
    try:
        number = float(text)
    except ValueError:
        return True, 0.0, text.casefold()
    return False, number, text


def _quartiles(lengths: npt.NDArray[Any]) -> list[_Slice]:
    """Return the rows by quarters of their lengths; rows of equal length stay together, so a quarter may be empty."""
    edges = np.quantile(lengths, [0.25, 0.5, 0.75])
    quarter = np.searchsorted(edges, lengths, side="left")
    slices = []
    for number in range(4):
        rows = np.flatnonzero(quarter == number)
        if len(rows):
            low, high = int(lengths[rows].min()), int(lengths[rows].max())
            slices.append(_Slice(f"Q{number + 1}", rows, f"{low} to {high} tokens"))
    return slices


def _by_label(task: RunRecord, rows: PredictionRows, split: str) -> list[_Slice]:
    if task.task == "multi_label":
        true = members(task, rows, "label")
        return [_Slice(name, np.flatnonzero(true[:, number])) for number, name in enumerate(task.labels)]
    if task.task == "qa":
        has_answer = np.asarray([bool(text) for text in rows.texts("label")])
        return [_Slice("answer", np.flatnonzero(has_answer)), _Slice("no answer", np.flatnonzero(~has_answer))]
    if task.task == "regression":
        numbers = rows.numbers("label")
        values = np.asarray([f"{value:g}" for value in numbers], dtype=object)
        if (count := len(set(values.tolist()))) > MAX_SLICES:
            raise DataError(
                f"{split}: the label has {count:,} distinct values, and slices may have at most {MAX_SLICES}; slice "
                "by a column with ranges of the label",
                code="data.slices_too_many",
                source=split,
                name=LABEL,
                num_values=count,
                limit=MAX_SLICES,
            )
        return _equal(values)
    texts = np.asarray(rows.texts("label"), dtype=object)
    return [_Slice(name, np.flatnonzero(texts == name)) for name in task.labels]


def _record(task: RunRecord, rows: PredictionRows, part: _Slice, *, is_label: bool) -> dict[str, Any]:
    part_rows = PredictionRows(rows.run, {name: column[part.rows] for name, column in rows.columns.items()})
    scores = dict(_scores(task, part_rows, part, is_label=is_label)) if len(part.rows) else {}
    return {"value": part.value, "detail": part.detail, "num_rows": len(part.rows), "scores": scores}


def _scores(
    task: RunRecord, rows: PredictionRows, part: _Slice, *, is_label: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    if is_label and task.task in ("classification", "multi_label"):
        yield RECALL, _with_interval(task, RECALL, _recall(task, rows, part.value), is_share=True)
        return
    is_constant = "label" in rows.columns and len(set(rows.texts("label"))) == 1
    for metric in METRICS[task.task]:
        scored = None
        if not (is_constant and metric in _NEED_OTHER_LABELS):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of few rows; an undefined score is None
                    scored = score_rows(task, rows, metric)
            except CannotTell:
                continue
        yield metric, _with_interval(task, metric, scored, is_share=metric in _SHARES)


def _recall(task: RunRecord, rows: PredictionRows, name: str) -> JackknifeScore:
    if task.task == "multi_label":
        return of_mean(members(task, rows, "prediction")[:, list(task.labels).index(name)])
    return of_mean(np.asarray(rows.texts("prediction"), dtype=object) == name)


def _with_interval(task: RunRecord, metric: str, scored: JackknifeScore | None, *, is_share: bool) -> dict[str, Any]:
    if scored is None:
        return {"value": None, "interval": None}
    interval = _interval(scored, score_range(metric, task.task), is_share=is_share)
    return {"value": scored.score, "interval": None if interval is None else list(interval)}


def _interval(
    scored: JackknifeScore, limits: tuple[float, float], *, is_share: bool
) -> tuple[float, float] | None:  # fmt: skip
    """Return the interval, None where there are too few rows, or all rows have the same influence on the score.

    `limits` are the smallest and the largest possible score; `is_share` is whether each row is right or wrong.
    """
    lowest, highest = limits
    if scored.num_samples < MIN_ROWS or not scored.is_known:
        return None
    values = scored.pseudovalues
    if is_share and len(values) == scored.num_samples and np.isin(values, (0.0, highest)).all():
        low, high = wilson(int((values > 0).sum()), len(values))
        return highest * low, highest * high
    variance = float(values.var(ddof=1)) / len(values)
    if not variance:
        return None
    low, high = Estimate(scored.score, (), variance, len(values), "samples").interval()
    return max(low, lowest), min(high, highest)


def wilson(num_right: int, num_rows: int) -> tuple[float, float]:
    """Return the 95% interval of a share of at least one row.

    Source: Wilson, Journal of the American Statistical Association 22, 1927.
    """
    from scipy import special

    z = float(special.ndtri((1 + LEVEL) / 2))
    share = num_right / num_rows
    middle = (share + z * z / (2 * num_rows)) / (1 + z * z / num_rows)
    half = z / (1 + z * z / num_rows) * math.sqrt(share * (1 - share) / num_rows + z * z / (4 * num_rows**2))
    return max(0.0, middle - half), min(1.0, middle + half)
