"""The area under the ROC curve and the average precision of a class, with the pseudovalues of samples.

Dimensions: `N` samples, `G` groups of samples with the same score, in descending order.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.verdicts.jackknife import Floats, JackknifeScore, scored_without

Bools = npt.NDArray[np.bool_]


def mean_over_classes(
    metric: str, is_class: Sequence[Bools], scores: Sequence[npt.NDArray[Any]]
) -> JackknifeScore | None:
    """Return the mean over classes of a score of each class; None where a class has no sample, or all of them.

    Args:
        metric: roc_auc or average_precision.
        is_class: For each class (N,), whether a sample is of this class.
        scores: For each class (N,), finite; larger where this class is more likely.
    """
    function = {"roc_auc": _roc_auc, "average_precision": _average_precision}[metric]
    if any(mask.all() or not mask.any() for mask in is_class):
        return None
    with np.errstate(all="ignore"):  # without a class that has a single sample, the score is undefined
        by_class = [function(mask.astype(np.float64), score) for mask, score in zip(is_class, scores, strict=True)]
    without = np.mean([without for _, without in by_class], axis=0)
    return scored_without(float(np.mean([score for score, _ in by_class])), without, len(without))


def _grouped(is_class: Floats, scores: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """Return the group of each sample, and for each group its samples of the class and of other classes."""
    group = np.asarray(np.unique(-scores, return_inverse=True)[1], dtype=np.int64)
    positive_G, negative_G = (np.bincount(group, weights=weights) for weights in (is_class, 1 - is_class))
    return group, positive_G.astype(np.float64), negative_G.astype(np.float64)


def _roc_auc(is_class: Floats, scores: npt.NDArray[Any]) -> tuple[float, Floats]:
    """Return the score, and the score without each sample, (N,).

    The area is the share of pairs (sample of the class, other sample) in the right order; a tie counts one half.
    Without a sample, its pairs are left out.
    """
    group, positive_G, negative_G = _grouped(is_class, scores)
    num_positive, num_negative = positive_G.sum(), negative_G.sum()
    below_G = num_negative - np.cumsum(negative_G) + negative_G / 2
    above_G = np.cumsum(positive_G) - positive_G / 2
    right = float(positive_G @ below_G)
    of_sample = np.where(is_class == 1, below_G[group], above_G[group])
    pairs = (num_positive - is_class) * (num_negative - (1 - is_class))
    return right / (num_positive * num_negative), (right - of_sample) / pairs


def _average_precision(is_class: Floats, scores: npt.NDArray[Any]) -> tuple[float, Floats]:
    """Return the score, and the score without each sample, (N,).

    The score is the sum over groups of (share of the class in this group) * (precision down to this group).
    """
    group, positive_G, negative_G = _grouped(is_class, scores)
    hits_G, size_G = np.cumsum(positive_G), np.cumsum(positive_G + negative_G)
    parts_G = positive_G * hits_G / size_G
    before_G = np.cumsum(parts_G) - parts_G
    total = float(parts_G.sum())
    # Groups below the sample have one sample less above them, and for a sample of the class also one hit less.
    without = np.empty_like(is_class)
    for value in (0.0, 1.0):
        rest_G = np.where(size_G > 1, (hits_G - value) / np.maximum(size_G - 1, 1), 0.0)
        after_G = (positive_G * rest_G)[::-1].cumsum()[::-1] - positive_G * rest_G
        own_G = (positive_G - value) * rest_G
        chosen = is_class == value
        without[chosen] = (before_G + own_G + after_G)[group[chosen]] / (positive_G.sum() - value)
    return total / positive_G.sum(), without
