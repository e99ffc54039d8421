"""Scores of ordered classes, computed by scikit-learn and SciPy.

Dimensions: `N` samples, `C` classes.
"""

import numpy as np
import numpy.typing as npt

from paratune.metrics.kappa import quadratic_kappa
from paratune.metrics.regression import regression_scores
from paratune.metrics.values import all_none
from paratune.records.predictions import predicted_ranks

NAMES = ("accuracy", "mae", "within_one", "qwk", "spearman")


def ordinal_scores(logits: npt.ArrayLike, labels: npt.ArrayLike) -> dict[str, float | None]:
    """Return the scores of the class that follows from the outputs "is it above class k?".

    `mae` is the mean distance in classes, `within_one` the share of rows at most one class off, `qwk` Cohen's kappa
    with quadratic weights over all C classes. `qwk` and `spearman` are None where they are undefined.

    Args:
        logits: (N, C - 1).
        labels: (N,), class ids from 0 to C - 1.

    Returns:
        A value for each of `NAMES`. All None without samples, or where a logit is NaN.

    Raises:
        ValueError: Shapes do not fit, or a label is not a class id.

    Source: sklearn.metrics.cohen_kappa_score, mean_absolute_error; scipy.stats.spearmanr.
    """
    logits_NK, labels_N = np.asarray(logits), np.asarray(labels)
    if logits_NK.ndim != 2 or labels_N.shape != logits_NK.shape[:1]:
        raise ValueError(f"logits have the shape {logits_NK.shape} and labels {labels_N.shape}; (N, C - 1) and (N,)")
    num_classes = logits_NK.shape[1] + 1
    if len(labels_N) and not 0 <= labels_N.min() <= labels_N.max() < num_classes:
        raise ValueError(f"labels contain values that are not class ids; ids are 0 to {num_classes - 1}")
    if len(labels_N) == 0 or np.isnan(logits_NK).any():
        return all_none(NAMES)
    ranks_N = predicted_ranks(logits_NK)
    off_N = np.abs(ranks_N - labels_N)
    numbers = regression_scores(ranks_N, labels_N)
    return {
        "accuracy": float((off_N == 0).mean()),
        "mae": numbers["mae"],
        "within_one": float((off_N <= 1).mean()),
        "qwk": quadratic_kappa(labels_N, ranks_N),
        "spearman": numbers["spearman"],
    }
