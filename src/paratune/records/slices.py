"""The scores of slices, the parts of a split by the values of a column, in summary.json and as text."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from paratune.config.metric_names import HEADLINES, METRICS

LABEL: Final = "label"
LENGTH: Final = "length"
BUILT_IN: Final = (LABEL, LENGTH)
"""Names of the task's label and of the number of tokens, also where a column of the data has such a name."""
MAX_SLICES: Final = 50
"""Maximum number of distinct values of a column."""
MIN_ROWS: Final = 10
"""Minimum number of rows for an interval."""
RECALL: Final = "recall"


def shown_metrics(kind: str, entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the metrics in tables of a column's slices: two known headline metrics, or else all known ones."""
    known = {metric for entry in entries for metric, score in entry["scores"].items() if score["value"] is not None}
    main = ("rmse", "pearson") if kind == "regression" else HEADLINES.get(kind, METRICS.get(kind, ()))
    return [metric for metric in main if metric in known][:2] or sorted(known)


def slice_score(entry: Mapping[str, Any], metric: str) -> tuple[float | None, tuple[float, float] | None]:
    """Return a score of a slice and its interval, None where they are unknown."""
    score = entry["scores"].get(metric) or {}
    interval = score.get("interval")
    return score.get("value"), None if interval is None else (interval[0], interval[1])


def score_text(entry: Mapping[str, Any], metric: str, *, digits: int = 4) -> str:
    """Return a score and its interval as text: "0.8123 [0.7710, 0.8530]"; "n/a" where one is unknown."""
    value, interval = slice_score(entry, metric)
    limits = "n/a" if interval is None else f"{interval[0]:.{digits}f}, {interval[1]:.{digits}f}"
    return "n/a" if value is None else f"{value:.{digits}f} [{limits}]"


def notes(kind: str, columns: Collection[str], *, are_single: bool = True, are_means: bool = False) -> Iterator[str]:
    """Yield the notes below tables of slices, of single runs with intervals or of means over runs."""
    if are_means:
        yield (
            "Mean ± sample standard deviation over the seeds of a configuration. It does not include the variation "
            "over other rows; report.json has the interval of each run for that."
        )
    few = f"fewer than {MIN_ROWS} rows, or " if are_single else ""
    about = "In brackets: the 95% interval over other rows, for this model. " if are_single else ""
    yield f"{about}n/a: {few}undefined on these rows."
    if LABEL in columns and kind in ("classification", "multi_label"):
        yield (
            "By label, recall is the share of the rows of a class that got this class. Other metrics are n/a: they "
            "also need rows of other classes."
        )
    elif LABEL in columns and kind in ("regression", "ordinal"):
        yield "By label, correlations, R² and quadratic kappa are n/a: the label is the same in all rows of a slice."
