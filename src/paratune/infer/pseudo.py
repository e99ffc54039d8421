"""Decides which rows get a pseudo-label, and why other rows do not: every row has exactly one outcome.

`N` rows, `M` models, `C` classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from paratune.records.predictions import softmax

KEPT = "kept"
OUTCOMES: Final[dict[str, str]] = {
    "without_text": "without a text",
    "repeated": "a text of an earlier row",
    "in_train": "a text of the training set",
    "in_validation": "a text of the validation set",
    "in_test": "a text of the test set",
    "in_extra": "a text of another set that a run was scored on (data.extra)",
    "not_finite": "a prediction that is not finite",
    "disagreement": "the models name different classes",
    "below_threshold": "confidence below the threshold",
    "above_threshold": "spread above the threshold",
    "over_max_per_class": "beyond --max-per-class",
    "over_limit": "beyond --limit",
    KEPT: "kept",
}
"""The possible outcomes of a row in the order in which they are checked, with their descriptions."""

SEEN = ("in_train", "in_validation", "in_test", "in_extra")
"""Outcomes of texts that are in a data set of a run."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CombinedPrediction:
    """The combined prediction of one or several models for N rows."""

    values: npt.NDArray[Any]
    """(N,): class ids, int64, or numbers, float64."""
    certainty: Floats
    """(N,): mean probability of the class, or standard deviation of the numbers over the models."""
    agreed: npt.NDArray[np.bool_]
    """(N,): whether all models predict this class; True for numbers."""
    is_spread: bool
    """Whether `certainty` is a spread, so that a smaller value is better."""


@dataclass(frozen=True)
class SelectionRule:
    """The rule by which rows are kept."""

    threshold: float
    """Smallest confidence, or largest spread, of a kept row."""
    max_per_class: int | None = None
    """Maximum number of kept rows of each class; the most confident ones are kept."""
    limit: int | None = None
    """Maximum number of kept rows; the most certain ones are kept."""


def combine_classes(logits: Sequence[npt.NDArray[Any]]) -> CombinedPrediction:
    """Return the class with the largest mean probability over M models with logits (N, C), and this probability."""
    shares = np.stack([softmax(model_outputs.astype(np.float64)) for model_outputs in logits])
    mean = shares.mean(axis=0)
    classes = mean.argmax(axis=1).astype(np.int64)
    agreed = (shares.argmax(axis=2) == classes).all(axis=0)
    return CombinedPrediction(classes, mean.max(axis=1), agreed, is_spread=False)


def combine_numbers(numbers: Sequence[npt.NDArray[Any]]) -> CombinedPrediction:
    """Return the mean over at least two models with numbers (N, 1), and the sample standard deviation (n - 1)."""
    stacked = np.stack([model_outputs[:, 0].astype(np.float64) for model_outputs in numbers])
    agreed = np.ones(stacked.shape[1], dtype=np.bool_)
    with np.errstate(invalid="ignore"):  # infinite numbers give NaN
        return CombinedPrediction(stacked.mean(axis=0), stacked.std(axis=0, ddof=1), agreed, is_spread=True)


def decide(combined: CombinedPrediction, excluded: Sequence[str | None], rule: SelectionRule) -> list[str]:
    """Return the outcome of each row, a key of `OUTCOMES`; among equally certain rows earlier ones are kept.

    `excluded`, (N,), has the outcome of rows that are excluded for another reason, and None for other rows.
    """
    better = -combined.certainty if combined.is_spread else combined.certainty
    least = -rule.threshold if combined.is_spread else rule.threshold
    outcomes: list[str] = []
    for row, reason in enumerate(excluded):
        if reason is not None:
            outcomes.append(reason)
        elif not np.isfinite(combined.certainty[row]):
            outcomes.append("not_finite")
        elif not combined.agreed[row]:
            outcomes.append("disagreement")
        elif better[row] < least:
            outcomes.append("above_threshold" if combined.is_spread else "below_threshold")
        else:
            outcomes.append(KEPT)
    ranked = np.argsort(-better, kind="stable")
    if rule.max_per_class is not None:
        _cap(outcomes, ranked, combined.values, rule.max_per_class, "over_max_per_class")
    if rule.limit is not None:
        _cap(outcomes, ranked, np.zeros(len(outcomes)), rule.limit, "over_limit")
    return outcomes


def _cap(outcomes: list[str], ranked: Ints, groups: npt.NDArray[Any], most: int, outcome: str) -> None:
    """Set the outcome of kept rows of each group, except its `most` most certain rows, in place."""
    num_kept: dict[Any, int] = {}
    for row in ranked:
        if outcomes[row] == KEPT:
            group = groups[row].item()
            num_kept[group] = num_kept.get(group, 0) + 1
            if num_kept[group] > most:
                outcomes[row] = outcome


def seen_outcome(name: str) -> str:
    """Return the outcome of texts that are in this data set of a run."""
    return outcome if (outcome := f"in_{name}") in SEEN else "in_extra"


def is_predicted(outcomes: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return whether the outcome of each row depends on the predictions, (N,)."""
    return np.array([outcome not in {"repeated", *SEEN} for outcome in outcomes], dtype=np.bool_)


def histogram(combined: CombinedPrediction, predicted: npt.NDArray[np.bool_]) -> list[dict[str, float | int]]:
    """Return a histogram of the certainty of predicted rows: 20 bins, from 0 to 1 or to the largest spread.

    Rows without a finite prediction are in no bin.
    """
    values = combined.certainty[predicted & np.isfinite(combined.certainty)]
    highest = float(values.max(initial=0.0)) if combined.is_spread else 1.0
    counts, edges = np.histogram(values, bins=20, range=(0.0, highest or 1.0))
    return [
        {"from": float(low), "to": float(high), "num_rows": int(count)}
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
