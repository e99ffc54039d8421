"""Scores of numeric predictions, as scikit-learn and SciPy compute them.

Dimension: `N` samples.
"""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.metrics.values import all_none, known

NAMES = ("rmse", "mse", "mae", "r2", "pearson", "spearman", "qwk")
MAX_GRADES = 1000
"""Kappa is for grades: a scale of more steps than this is no scale of grades, and its matrix would fill the memory."""

Values = npt.NDArray[np.float64]


def regression_scores(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> dict[str, float | None]:
    """Score predictions against targets, in float64.

    Undefined is None: `r2` with one sample or equal targets, the correlations with one sample or when either side is
    constant (to rounding), `qwk` as its own function says, and all of them when there is no sample or a prediction is
    not finite.

    Args:
        predictions: (N,) or (N, 1).
        targets: (N,), finite.

    Returns:
        A value for each of `NAMES`; rmse and mae in the unit of the targets.

    Raises:
        ValueError: Shapes do not fit, or a target is not finite.

    Source: sklearn.metrics.mean_squared_error, root_mean_squared_error, mean_absolute_error, r2_score;
        scipy.stats.pearsonr, spearmanr.
    """
    from scipy import stats
    from sklearn import metrics

    predicted_N, targets_N = _checked(predictions, targets)
    if targets_N.size == 0 or not np.isfinite(predicted_N).all():
        return all_none(NAMES)
    # Predictions of 1e200 overflow when squared; the infinity that results becomes None.
    with np.errstate(all="ignore"):
        return {
            "rmse": known(metrics.root_mean_squared_error(targets_N, predicted_N)),
            "mse": known(metrics.mean_squared_error(targets_N, predicted_N)),
            "mae": known(metrics.mean_absolute_error(targets_N, predicted_N)),
            "r2": _r2(predicted_N, targets_N),
            "pearson": _correlation(stats.pearsonr, predicted_N, targets_N),
            "spearman": _correlation(stats.spearmanr, predicted_N, targets_N),
            "qwk": quadratic_weighted_kappa(predicted_N, targets_N),
        }


def quadratic_weighted_kappa(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> float | None:
    """Return Cohen's kappa with quadratic weights between targets that are grades and predictions brought to grades.

    The step of the scale is 1 when all targets are integers, and 0.5 when all are multiples of 0.5 (half bands). Each
    prediction goes to the nearest step, a tie to the higher one (6.25 is 6.5), and not beyond the smallest and the
    largest target. Grades are counted in steps between these two, those that do not occur included, so that the weights
    are the squared distances on the scale.

    Args:
        predictions: (N,) or (N, 1), finite.
        targets: (N,), finite.

    Returns:
        At most 1; 0 is what chance would give. None when the targets are no multiples of 0.5, span more than
        `MAX_GRADES` steps or are all equal, or when there are none.

    Source: sklearn.metrics.cohen_kappa_score; Cohen, Psychological Bulletin 70(4), 1968.
    """
    from sklearn.metrics import cohen_kappa_score

    predicted_N, targets_N = _checked(predictions, targets)
    step = grade_step(targets_N)
    if step is None:
        return None
    lowest, highest = targets_N.min(), targets_N.max()
    num_steps = (highest - lowest) / step
    if not 1 <= num_steps < MAX_GRADES:
        return None
    clipped_N = np.clip(predicted_N, lowest, highest)
    # In steps above the lowest grade; clipping first keeps the numbers small enough to be exact.
    given_N = np.floor((clipped_N - lowest) / step + 0.5).astype(np.int64)
    true_N = np.rint((targets_N - lowest) / step).astype(np.int64)
    grades = np.arange(int(num_steps) + 1)
    return known(cohen_kappa_score(true_N, given_N, labels=grades, weights="quadratic"))


def grade_step(targets: Values) -> float | None:
    """Return the step of the scale on which all targets lie: 1.0, else 0.5, else None (also when there are none)."""
    if targets.size == 0:
        return None
    for step in (1.0, 0.5):
        if np.array_equal(np.rint(targets / step) * step, targets):
            return step
    return None


def _r2(predicted: Values, targets: Values) -> float | None:
    from sklearn.metrics import r2_score

    if targets.size < 2:
        return None
    with warnings.catch_warnings():
        # Equal targets divide by zero; `force_finite` would put 0 or 1 there, which is a guess.
        warnings.simplefilter("ignore", RuntimeWarning)
        return known(r2_score(targets, predicted, force_finite=False))


def _correlation(function: Any, predicted: Values, targets: Values) -> float | None:
    from scipy import stats

    if targets.size < 2:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("error", stats.DegenerateDataWarning)
        try:
            return known(function(predicted, targets).statistic)
        except stats.DegenerateDataWarning:
            return None


def _checked(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> tuple[Values, Values]:
    predicted_N = np.asarray(predictions, dtype=np.float64)
    targets_N = np.asarray(targets, dtype=np.float64)
    if predicted_N.ndim == 2 and predicted_N.shape[1] == 1:
        predicted_N = predicted_N[:, 0]
    if targets_N.ndim != 1 or predicted_N.shape != targets_N.shape:
        raise ValueError(
            f"predictions have the shape {predicted_N.shape} and targets {targets_N.shape}; one number for each sample"
            " is needed on both sides"
        )
    if not np.isfinite(targets_N).all():
        raise ValueError(f"targets hold {targets_N[~np.isfinite(targets_N)][0]}; finite numbers are needed")
    return predicted_N, targets_N
