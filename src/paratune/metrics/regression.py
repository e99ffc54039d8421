"""Scores of numeric predictions and of ordered classes, computed by scikit-learn and SciPy.

Dimensions: `N` samples, `C` classes.
"""

import warnings
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.metrics.values import known, no_scores
from paratune.records.predictions import NumberScale, predicted_ranks

MAX_GRADES = 1000
"""Most steps of a scale of grades; the matrix of kappa would fill the memory with more."""

Values = npt.NDArray[np.float64]


def regression_scores(
    predictions: npt.ArrayLike, targets: npt.ArrayLike, scale: NumberScale | None = None
) -> dict[str, float | None]:
    """Return the scores of predictions against targets, in float64.

    Errors and correlations use raw predictions; `qwk` (Cohen's kappa with quadratic weights) and the agreements use
    grades, see `grades`, and grades that do not occur count for the distances of kappa. Exact agreement is
    the share of predictions whose grade equals that of the target, adjacent agreement the share of those at most one
    step away, the exact ones included.

    Undefined scores are None: `r2` with one sample or equal targets; the correlations with one sample, or where
    predictions or targets are constant (up to rounding); `qwk` and the agreements without grades; and all scores
    without samples, or where a prediction is not finite.

    Args:
        predictions: (N,) or (N, 1).
        targets: (N,), finite.
        scale: Scale of grades, see `grade_scale`; None where it is unknown.

    Returns:
        A value for each metric; rmse and mae in the unit of the targets.

    Source: sklearn.metrics.mean_squared_error, root_mean_squared_error, mean_absolute_error, r2_score;
        scipy.stats.pearsonr, spearmanr. The agreements: Williamson, Xi and Breyer, Educational Measurement: Issues and
        Practice 31(1), 2012.
    """
    from scipy import stats
    from sklearn import metrics

    predicted_N, targets_N = _numbers(predictions, targets)
    if targets_N.size == 0 or not np.isfinite(predicted_N).all():
        return no_scores("regression")
    # Predictions of 1e200 overflow when squared; the infinity that results becomes None.
    with np.errstate(all="ignore"):
        return {
            "rmse": known(metrics.root_mean_squared_error(targets_N, predicted_N)),
            "mse": known(metrics.mean_squared_error(targets_N, predicted_N)),
            "mae": known(metrics.mean_absolute_error(targets_N, predicted_N)),
            "r2": _r2(predicted_N, targets_N),
            "pearson": correlation(stats.pearsonr, predicted_N, targets_N),
            "spearman": correlation(stats.spearmanr, predicted_N, targets_N),
            **_agreements(predicted_N, targets_N, scale),
        }


def grades(
    predictions: npt.ArrayLike, targets: npt.ArrayLike, scale: NumberScale | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """Return predictions and targets as steps of a scale of grades, each (N,).

    Each prediction is limited to the scale and rounded to the nearest step, ties to the higher one (6.25 to 6.5). The
    scale is never derived from `targets`: the grade of a row must not depend on the other rows. None without a step,
    where targets are not multiples of it, grades span more than `MAX_GRADES` steps, or there are no targets.
    """
    predicted_N, targets_N = _numbers(predictions, targets)
    if scale is None or scale.step is None or grade_step(targets_N, scale.step) is None:
        return None
    lowest, highest = targets_N.min(), targets_N.max()
    if (highest - lowest) / scale.step >= MAX_GRADES:
        return None
    # Counted from the lowest grade, so that the numbers are small enough to be exact.
    given_N = np.rint((scale.reported(predicted_N) - lowest) / scale.step)
    if np.ptp(given_N) >= MAX_GRADES:
        return None
    return given_N.astype(np.int64), np.rint((targets_N - lowest) / scale.step).astype(np.int64)


def training_grades(targets: npt.ArrayLike) -> list[float] | None:
    """Return `task.grades` from the targets of the training data, (N,): lowest, highest and step.

    None where they are not multiples of 1 or of 0.5, or all are equal.
    """
    targets_N = np.asarray(targets, dtype=np.float64)
    step = grade_step(targets_N)
    if step is None or targets_N.min() == targets_N.max():
        return None
    return [float(targets_N.min()), float(targets_N.max()), step]


def grade_scale(
    step: float | None, limits: Sequence[float] | None, of_grades: Sequence[float] | None
) -> NumberScale | None:
    """Return the scale of grades from `task.round_to`, `task.range` and `task.grades`; None where they give no step."""
    if step is None and of_grades is not None:
        limits, step = limits or of_grades[:2], of_grades[2]
    return None if step is None else NumberScale(step, None if limits is None else (limits[0], limits[1]))


def length_bias(errors: npt.ArrayLike, lengths: npt.ArrayLike) -> dict[str, Any]:
    """Return how errors (predicted minus actual, (N,)) depend on lengths of texts in tokens, (N,).

    `pearson` is the correlation of both, None where it is undefined. `quintiles`, from the shortest texts to the
    longest, have `shortest` and `longest` (tokens), `num_rows`, `rmse` and `bias` (the mean error). Texts of a length
    are in one quintile, so that there may be fewer than five; there is none where an error is not finite.
    """
    from scipy import stats

    errors_N, lengths_N = _numbers(errors, lengths)
    if errors_N.size == 0 or not np.isfinite(errors_N).all():
        return {"pearson": None, "quintiles": []}
    quintile_N = np.searchsorted(np.quantile(lengths_N, [0.2, 0.4, 0.6, 0.8]), lengths_N, side="left")
    quintiles = []
    for number in np.unique(quintile_N):
        own, tokens = errors_N[quintile_N == number], lengths_N[quintile_N == number]
        ends = {"shortest": int(tokens.min()), "longest": int(tokens.max()), "num_rows": len(own)}
        quintiles.append({**ends, "rmse": known(np.sqrt(np.square(own).mean())), "bias": known(own.mean())})
    return {"pearson": correlation(stats.pearsonr, errors_N, lengths_N), "quintiles": quintiles}


def rater_errors(ratings: npt.ArrayLike) -> Values:
    """Return each rater's score minus the mean of the other raters, (N, R), of (N, R); NaN where there is none."""
    ratings_NR = np.asarray(ratings, dtype=np.float64)
    others_N1 = np.isfinite(ratings_NR).sum(axis=1, keepdims=True) - 1.0
    others_N1[others_N1 < 1] = np.nan
    errors_NR: Values = ratings_NR - (np.nansum(ratings_NR, axis=1, keepdims=True) - ratings_NR) / others_N1
    return errors_NR


def rater_scores(
    predictions: npt.ArrayLike, ratings: npt.ArrayLike, names: Sequence[str], scale: NumberScale | None = None
) -> list[dict[str, Any]]:
    """Return how far raters agree with each other, and the model with them, on rows with two ratings or more.

    Each line has `who`, two sides, and `num_rows`, `qwk` (both sides rounded to the scale), `pearson`, `rmse` and
    `bias`, the mean of the first side minus the second; of several pairs it is the mean over pairs, and their number
    of rows in all. None where undefined. Predictions are (N,) or (N, 1), finite; ratings (N, R), NaN for none.

    Source: two raters beside model and rater: Williamson, Xi and Breyer, see `regression_scores`.
    """
    errors_RN, ratings_RN = rater_errors(ratings).T, np.asarray(ratings, dtype=np.float64).T
    used: Any = np.isfinite(errors_RN).any(axis=0)
    model_N, ratings_RN = np.asarray(predictions, dtype=np.float64).reshape(len(used))[used], ratings_RN[:, used]
    sides = {"two raters": [*combinations(ratings_RN, 2)], "model and a rater": [(model_N, own) for own in ratings_RN]}
    for name, own_N, errors_N in zip(names, ratings_RN, errors_RN[:, used], strict=True):
        sides[f"{name} and the others"] = [(own_N, own_N - errors_N)]
    sides["model and mean of raters"] = [(model_N, np.nanmean(ratings_RN, axis=0))]
    lines: list[dict[str, Any]] = []
    for who, pairs in sides.items():
        rated = [(x[own], y[own]) for x, y in pairs if (own := np.isfinite(x) & np.isfinite(y)).any()]
        grades = [_agreements(x, y if scale is None else scale.reported(y), scale) for x, y in rated]
        found = [regression_scores(*pair) | own for pair, own in zip(rated, grades, strict=True)]
        values: dict[str, Any] = {
            name: [one[name] for one in found if one[name] is not None] for name in ("qwk", "pearson", "rmse")
        }
        values["bias"] = [float((x - y).mean()) for x, y in rated if who != "two raters"]
        means = {name: float(np.mean(own)) if own else None for name, own in values.items()}
        lines.append({"who": who, "num_rows": sum(len(x) for x, _ in rated), **means})
    return lines


def _agreements(predicted: Values, targets: Values, scale: NumberScale | None) -> dict[str, float | None]:
    """Return kappa, and the shares of predictions with the grade of their target, and at most one step away."""
    grades_of_both = grades(predicted, targets, scale)
    if grades_of_both is None:
        return dict.fromkeys(("qwk", "exact_agreement", "adjacent_agreement"))
    steps = np.abs(grades_of_both[0] - grades_of_both[1])
    return {
        "qwk": quadratic_kappa(*grades_of_both),
        "exact_agreement": float((steps == 0).mean()),
        "adjacent_agreement": float((steps <= 1).mean()),
    }


def grade_step(targets: Values, step: float | None = None) -> float | None:
    """Return the step of which all targets, (N,), are multiples; None without such a step, or without targets.

    `step` is the only candidate; without it, the candidates are 1.0 and 0.5.
    """
    if targets.size == 0:
        return None
    for candidate in (1.0, 0.5) if step is None else (step,):
        # A step such as 0.1 is not exact as a float, and targets are float32, in which 8.3 has an error of 2e-7.
        rtol, atol = (0.0, 0.0) if step is None else (1e-7, 1e-6 * candidate)
        if np.allclose(np.rint(targets / candidate) * candidate, targets, rtol=rtol, atol=atol):
            return candidate
    return None


def _r2(predicted: Values, targets: Values) -> float | None:
    from sklearn.metrics import r2_score

    if targets.size < 2:
        return None
    with warnings.catch_warnings():
        # For equal targets, r2 divides by zero: None is returned, and not the 0 or 1 of `force_finite`.
        warnings.simplefilter("ignore", RuntimeWarning)
        return known(r2_score(targets, predicted, force_finite=False))


def correlation(function: Any, predicted: npt.NDArray[Any], targets: npt.NDArray[Any]) -> float | None:
    """Return a correlation of `scipy.stats`, such as `spearmanr`, of two (N,); None where one is constant."""
    from scipy import stats

    if targets.size < 2:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("error", stats.DegenerateDataWarning)
        try:
            return known(function(predicted, targets).statistic)
        except stats.DegenerateDataWarning:
            return None


def _numbers(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> tuple[Values, Values]:
    predicted_N = np.asarray(predictions, dtype=np.float64)
    return predicted_N.reshape(len(predicted_N)), np.asarray(targets, dtype=np.float64)


def quadratic_kappa(
    true: npt.NDArray[Any], given: npt.NDArray[Any], weights: npt.NDArray[Any] | None = None
) -> float | None:
    """Return Cohen's kappa of two gradings, (N,) integers of one scale; None where all grades are equal.

    With the weights (i - j)^2, the observed disagreement is the mean of (x - y)^2. The one expected by chance is that
    of independent x and y: E(x^2) + E(y^2) - 2 E(x) E(y). Kappa is 1 - observed / expected.
    `weights`, (N,), are those of the samples; None for 1 each. A matrix of all pairs of grades would grow with their
    square.

    Source: Cohen, Psychological Bulletin 70(4), 1968; equal to sklearn.metrics.cohen_kappa_score.
    """
    lowest = min(true.min(), given.min())
    x_N, y_N = (np.asarray(grades - lowest, dtype=np.float64) for grades in (true, given))
    w_N = np.ones(len(x_N)) if weights is None else np.asarray(weights, dtype=np.float64) / np.mean(weights)
    used = w_N > 0
    if np.ptp(np.concatenate([x_N[used], y_N[used]])) == 0:
        return None
    expected = (w_N @ (x_N**2 + y_N**2) - 2 * (w_N @ x_N) * (w_N @ y_N) / len(x_N)) / len(x_N)
    return float(1 - np.average((x_N - y_N) ** 2, weights=w_N) / expected)


def ordinal_scores(logits: npt.ArrayLike, labels: npt.ArrayLike) -> dict[str, float | None]:
    """Return the scores of the class that follows from the outputs "is it above class k?".

    `mae` is the mean distance in classes, `within_one` the share of rows at most one class off, `qwk` Cohen's kappa
    with quadratic weights over all C classes. `qwk` and `spearman` are None where they are undefined.

    Args:
        logits: (N, C - 1).
        labels: (N,), class ids from 0 to C - 1.

    Returns:
        A value for each metric. All None without samples, or where a logit is NaN.

    Source: sklearn.metrics.cohen_kappa_score, mean_absolute_error; scipy.stats.spearmanr.
    """
    logits_NK, labels_N = np.asarray(logits), np.asarray(labels)
    if len(labels_N) == 0 or np.isnan(logits_NK).any():
        return no_scores("ordinal")
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
