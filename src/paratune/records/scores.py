"""Scores in records and as text: of an evaluation and of slices, and confusion matrices.

Slices are the parts of a split by the values of a column. A confusion matrix is rows of counts or, for many classes,
only the counts above zero.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Final

from paratune.base.units import format_number
from paratune.config.metric_names import HEADLINES, METRICS

Scores = Mapping[str, float | None]
MAX_SCORES = 3  # scores in a line; a record has all of them


def ordered_scores(scores: Scores, metric: str | None) -> dict[str, float | None]:
    """Return the scores with the selecting metric first.

    `f1` is left out if it equals `f1_macro`, as with more than two classes, and does not select.
    """
    is_f1_macro = "f1_macro" in scores and scores.get("f1") == scores["f1_macro"]
    names = sorted(scores, key=lambda name: name != metric)
    return {name: scores[name] for name in names if name != "f1" or metric == "f1" or not is_f1_macro}


def scores_text(scores: Scores, metric: str | None) -> str:
    """Return "loss 0.412, accuracy 0.834, f1 0.829": the loss, the selecting metric, and others."""
    others = [name for name in ordered_scores(scores, metric) if name != "loss"][: MAX_SCORES - 1]
    names = ["loss", *others] if "loss" in scores else others
    return ", ".join(f"{name} {format_number(scores[name])}" for name in names)


def evaluation_text(
    event: Mapping[str, Any], *, num_steps: int, metric: str | None, best: Mapping[str, Any] | None
) -> str:
    """Return the line of an `evaluation` event; `metric` selects the kept model, `best` has step and value so far."""
    scores = scores_text(event["scores"], metric)
    text = f"step {event['step']:,}/{num_steps:,}, epoch {event['epoch']:.2f}: {event['split']} {scores}"
    if metric is None:
        return text
    if event["is_best"]:
        return f"{text}; best so far by {metric}, kept"
    if best is None:
        return f"{text}; not kept: {metric} is unknown"
    return f"{text}; not kept: best {metric} {format_number(best['value'])} at step {best['step']:,}"


LABEL: Final = "label"
LENGTH: Final = "length"
BUILT_IN: Final = (LABEL, LENGTH)  # the task's label and the number of tokens, also where a column has such a name
MAX_SLICES: Final = 50  # values of a column up to which tables have all slices
MIN_ROWS: Final = 10  # minimum number of rows for an interval
RECALL: Final = "recall"
BIAS: Final = "bias"  # of a regression: mean of predicted minus actual
RATER_BIAS: Final = "bias_"  # of a rater, bias_NAME: mean of its score minus the mean of the others
_EXTREMES = 10


def shown_metrics(kind: str, entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the metrics in tables of a column's slices: two known headline metrics, or else all known ones."""
    known = {metric for entry in entries for metric, score in entry["scores"].items() if score["value"] is not None}
    main = ("rmse", BIAS, "pearson") if kind == "regression" else HEADLINES.get(kind, METRICS.get(kind, ()))
    raters = sorted(metric for metric in known if metric.startswith(RATER_BIAS))
    return [*[metric for metric in main if metric in known][:2], *raters] or sorted(known)


def extreme_slices(values: Sequence[float | None], num_rows: Sequence[int]) -> list[int]:
    """Return the places of the slices that a table shows: all, or of more than `MAX_SLICES` the highest and lowest 10.

    Small slices are extreme by chance, so they are of the slices with at least `MIN_ROWS` rows or, where fewer than 20
    have these, with as many rows as the 20th largest.
    """
    if len(values) <= MAX_SLICES:
        return [*range(len(values))]
    known = {at: value for at, value in enumerate(values) if value is not None}
    least = min([MIN_ROWS, *sorted((num_rows[at] for at in known), reverse=True)[: 2 * _EXTREMES]])
    ordered = sorted((at for at in known if num_rows[at] >= least), key=lambda at: -known[at])
    return ordered if len(ordered) <= 2 * _EXTREMES else [*ordered[:_EXTREMES], *ordered[-_EXTREMES:]]


def slice_score(
    entry: Mapping[str, Any], metric: str, *, digits: int = 4
) -> tuple[float | None, tuple[float, float] | None, str]:
    """Return a score of a slice, its interval, and both as text, such as "0.8123 [0.7710, 0.8530]".

    None, and "n/a", where they are unknown.
    """
    score = entry["scores"].get(metric) or {}
    value, interval = score.get("value"), score.get("interval")
    limits = "n/a" if interval is None else ", ".join(f"{limit:.{digits}f}" for limit in interval)
    text = "n/a" if value is None else f"{value:.{digits}f} [{limits}]"
    return value, None if interval is None else (interval[0], interval[1]), text


def notes(
    kind: str, columns: Mapping[str, Collection[Mapping[str, Any]]], *, are_single: bool = True, are_means: bool = False
) -> Iterator[str]:
    """Yield the notes below tables of slices, of single runs with intervals or of means over runs."""
    if are_means:
        yield (
            "Mean ± sample standard deviation over the seeds of a configuration. It does not include the variation "
            "over other rows; report.json has the interval of each run for that."
        )
    for column, entries in columns.items():
        if (count := len({entry["value"] for entry in entries})) > MAX_SLICES:
            yield (
                f"Of the {count:,} values of {column}: the {_EXTREMES} highest and the {_EXTREMES} lowest figures of "
                "the largest slices. slices.csv of a report and evaluate --json have all values."
            )
    if kind == "regression":
        raters = any(RATER_BIAS in name for own in columns.values() for entry in own for name in entry["scores"])
        yield "bias: mean of predicted minus actual" + "; bias_RATER: of this rater minus the others" * raters + "."
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


MAX_DENSE_CLASSES = 200  # matrices of more classes are recorded as lists of their counts above zero


@dataclass(frozen=True)
class Confusion:
    num_classes: int
    counts: Mapping[tuple[int, int], int]  # rows by true and predicted class id; pairs without a row are absent

    @cached_property
    def row_sums(self) -> dict[int, int]:
        """Rows of each true class that occurs."""
        sums: dict[int, int] = {}
        for (true, _), count in self.counts.items():
            sums[true] = sums.get(true, 0) + count
        return sums

    @cached_property
    def confused(self) -> list[tuple[int, int, int]]:
        """True class, predicted class and rows of all pairs of different classes, the most frequent first."""
        pairs = [(true, predicted, count) for (true, predicted), count in self.counts.items() if true != predicted]
        return sorted(pairs, key=lambda pair: (-pair[2], pair[:2]))


def read_confusion(value: Any) -> Confusion | None:
    """Return the matrix of a record, from either layout; None where it is absent or damaged."""
    try:
        if isinstance(value, dict):
            size, counts = value["num_classes"], {(true, given): count for true, given, count in value["counts"]}
        else:
            size = len(value) or None
            cells = [(true, given, count) for true, row in enumerate(value) for given, count in enumerate(row)]
            counts = {(true, given): count for true, given, count in cells if type(count) is not int or count != 0}
            if any(len(row) != size for row in value):
                return None
        numbers = [size, *counts.values(), *chain.from_iterable(counts)]
        is_whole = all(type(number) is int and number >= 0 for number in numbers)
    except (KeyError, TypeError, ValueError):
        return None
    return Confusion(size, counts) if is_whole and all(max(pair) < size for pair in counts) else None
