"""Checks and formats the scores of slices, the parts of a split by the values of a column.

`summary.slices.SPLIT.COLUMN` is a list with an entry for each slice: `value`, `detail` (or null), `num_rows`, and
`scores`, by metric a `value` with its 95% `interval` ([low, high], or null).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

LABEL: Final = "label"
LENGTH: Final = "length"
BUILT_IN: Final = (LABEL, LENGTH)
"""Names of the task's label and of the number of tokens, also where a column of the data has such a name."""
MAX_SLICES: Final = 50
"""Maximum number of distinct values of a column."""
MIN_ROWS: Final = 10
"""Minimum number of rows for an interval."""
RECALL: Final = "recall"
MAIN_METRICS: Final[dict[str, tuple[str, ...]]] = {
    "classification": ("accuracy", "f1_macro"),
    "multi_label": ("f1_micro", "f1_macro"),
    "ordinal": ("qwk", "mae"),
    "regression": ("rmse", "pearson"),
    "multiple_choice": ("accuracy",),
    "qa": ("exact", "f1"),
    "token_classification": ("f1", "accuracy"),
    "embedding": ("spearman", "recall_at_1", "mrr", "accuracy", "average_precision"),
}
"""Metrics in tables, by the kind of the task; the record has all metrics."""


def are_slices(slices: Any) -> bool:
    """Return whether a value has the format of `summary.slices`."""
    if not isinstance(slices, dict) or not all(isinstance(columns, dict) for columns in slices.values()):
        return False
    parts = [entries for columns in slices.values() for entries in columns.values()]
    return all(isinstance(entries, list) and all(map(_is_entry, entries)) for entries in parts)


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("value"), str):
        return False
    detail, num_rows, scores = (entry.get(key) for key in ("detail", "num_rows", "scores"))
    if not isinstance(scores, dict) or not (detail is None or isinstance(detail, str)):
        return False
    return type(num_rows) is int and all(map(_is_score, scores.values()))


def _is_score(score: Any) -> bool:
    if not isinstance(score, dict) or not _is_number(score.get("value")):
        return False
    interval = score.get("interval")
    if interval is None:
        return True
    return isinstance(interval, list) and len(interval) == 2 and None not in interval and all(map(_is_number, interval))


def _is_number(value: Any) -> bool:
    """Return whether a value is a number or None; limits of intervals may be infinite."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def shown_metrics(kind: str, entries: list[dict[str, Any]]) -> list[str]:
    """Return the metrics in tables of a column's slices: the main metrics that are known, or else all known metrics."""
    known = {metric for entry in entries for metric, score in entry["scores"].items() if score["value"] is not None}
    return [metric for metric in MAIN_METRICS.get(kind, ()) if metric in known] or sorted(known)


def slice_score(entry: Mapping[str, Any], metric: str) -> tuple[float | None, tuple[float, float] | None]:
    """Return a score of a slice and its interval, None where they are unknown."""
    score = entry["scores"].get(metric) or {}
    interval = score.get("interval")
    return score.get("value"), None if interval is None else (interval[0], interval[1])


def score_text(entry: Mapping[str, Any], metric: str, *, digits: int = 4) -> str:
    """Return a score and its interval as text: "0.8123 [0.7710, 0.8530]"; "n/a" where one is unknown."""
    value, interval = slice_score(entry, metric)
    if value is None:
        return "n/a"
    if interval is None:
        return f"{value:.{digits}f} [n/a]"
    return f"{value:.{digits}f} [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"


def notes(
    kind: str, columns: Mapping[str, list[dict[str, Any]]], *, are_single: bool = True, are_means: bool = False
) -> Iterator[str]:
    """Yield the notes below tables of slices, of single runs with intervals or of means over runs."""
    if are_means:
        yield (
            "Mean ± sample standard deviation over the seeds of a configuration. It does not include the variation "
            "over other rows; report.json has the interval of each run for that."
        )
    if are_single:
        yield (
            "In brackets: the 95% interval over other rows, for this model. "
            f"n/a: fewer than {MIN_ROWS} rows, or undefined on these rows."
        )
    else:
        yield "n/a: undefined on these rows."
    if LABEL not in columns:
        return
    if kind in ("classification", "multi_label"):
        yield (
            "By label, recall is the share of the rows of a class that got this class. Other metrics are n/a: they "
            "also need rows of other classes."
        )
    elif kind in ("regression", "ordinal"):
        yield "By label, correlations, R² and quadratic kappa are n/a: the label is the same in all rows of a slice."
