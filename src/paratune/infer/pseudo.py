"""Which rows get a label from models, and why the others do not: every row has one fate, and they sum to all rows.

`N` rows, `M` models, `C` classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from paratune.records.predictions import softmax

KEPT = "kept"
FATES: Final[dict[str, str]] = {
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
"""What can become of a row, in the order in which it is looked at, and how it is said."""

SEEN = ("in_train", "in_validation", "in_test", "in_extra")
"""Fates of texts that a run knows."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Opinion:
    """What one or several models say of N rows."""

    values: npt.NDArray[Any]
    """(N,): class ids, int64, or numbers, float64."""
    certainty: Floats
    """(N,): mean probability of the class, or standard deviation of the numbers over the models."""
    agreed: npt.NDArray[np.bool_]
    """(N,): whether all models name the class; true of numbers."""
    is_spread: bool
    """Whether less certainty is better, as it is a spread."""


@dataclass(frozen=True)
class SelectionRule:
    """Which of the rows are kept."""

    threshold: float
    """Least confidence, or largest spread, that is kept."""
    max_per_class: int | None = None
    """Rows of each class that are kept at most, the most confident ones."""
    limit: int | None = None
    """Rows that are kept at most in all, the most certain ones."""


def class_opinion(logits: Sequence[npt.NDArray[Any]]) -> Opinion:
    """Return the class of the largest mean probability over models, and that probability.

    Args:
        logits: (N, C) of each of M models.
    """
    shares = np.stack([softmax(each.astype(np.float64)) for each in logits])
    mean = shares.mean(axis=0)
    classes = mean.argmax(axis=1).astype(np.int64)
    agreed = (shares.argmax(axis=2) == classes).all(axis=0)
    return Opinion(classes, mean.max(axis=1), agreed, is_spread=False)


def number_opinion(numbers: Sequence[npt.NDArray[Any]]) -> Opinion:
    """Return the mean over models, and the sample standard deviation (n - 1).

    Args:
        numbers: (N, 1) of each of at least two models.
    """
    stacked = np.stack([each[:, 0].astype(np.float64) for each in numbers])
    agreed = np.ones(stacked.shape[1], dtype=np.bool_)
    with np.errstate(invalid="ignore"):  # of infinite ones, which are no opinion
        return Opinion(stacked.mean(axis=0), stacked.std(axis=0, ddof=1), agreed, is_spread=True)


def decide(opinion: Opinion, refused: Sequence[str | None], rule: SelectionRule) -> list[str]:
    """Return the fate of each row, a key of `FATES`.

    Of equally certain rows the earlier one is kept.

    Args:
        opinion: On the N rows.
        refused: (N,): the fate of rows that are out for another reason; None for those that are asked of.
        rule: What is kept of these.
    """
    better = -opinion.certainty if opinion.is_spread else opinion.certainty
    least = -rule.threshold if opinion.is_spread else rule.threshold
    fates: list[str] = []
    for row, reason in enumerate(refused):
        if reason is not None:
            fates.append(reason)
        elif not np.isfinite(opinion.certainty[row]):
            fates.append("not_finite")
        elif not opinion.agreed[row]:
            fates.append("disagreement")
        elif better[row] < least:
            fates.append("above_threshold" if opinion.is_spread else "below_threshold")
        else:
            fates.append(KEPT)
    ranked = np.argsort(-better, kind="stable")
    if rule.max_per_class is not None:
        _cap(fates, ranked, opinion.values, rule.max_per_class, "over_max_per_class")
    if rule.limit is not None:
        _cap(fates, ranked, np.zeros(len(fates)), rule.limit, "over_limit")
    return fates


def _cap(fates: list[str], ranked: Ints, group_of: npt.NDArray[Any], most: int, fate: str) -> None:
    """Let go, in place, what is kept of a group beyond its `most` most certain rows."""
    kept: dict[Any, int] = {}
    for row in ranked:
        if fates[row] == KEPT:
            group = group_of[row].item()
            kept[group] = kept.get(group, 0) + 1
            if kept[group] > most:
                fates[row] = fate


def seen_fate(name: str) -> str:
    """Return the fate of the texts of a run's set."""
    return fate if (fate := f"in_{name}") in SEEN else "in_extra"


def asked_of(fates: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which rows were a matter of what the models say, (N,)."""
    return np.array([fate not in {"repeated", *SEEN} for fate in fates], dtype=np.bool_)


def histogram(opinion: Opinion, asked: npt.NDArray[np.bool_]) -> list[dict[str, float | int]]:
    """Return how certain models are of the rows that were asked of: 20 bins, from 0 to 1 or to the largest spread.

    Rows without a finite prediction are in none.
    """
    values = opinion.certainty[asked & np.isfinite(opinion.certainty)]
    highest = float(values.max(initial=0.0)) if opinion.is_spread else 1.0
    counts, edges = np.histogram(values, bins=20, range=(0.0, highest or 1.0))
    return [
        {"from": float(low), "to": float(high), "num_rows": int(count)}
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
