"""Intervals of predicted numbers by split conformal prediction: calibrated on validation, checked on test.

Dimensions: `N` rows of the calibration, `M` rows of the check.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.verdicts.slices import wilson

Floats = npt.NDArray[np.float64]


def rank_of_half_width(num_rows: int, level: float) -> int:
    """Return the rank, from 1, of the absolute residual that is the half-width: ceil((N + 1) level)."""
    # Without rounding, 100 * 0.07 = 7.000000000000001 would have the rank 8.
    return math.ceil(round((num_rows + 1) * level, 9))


def half_width(residuals: Floats, level: float) -> float | None:
    """Return the half-width of intervals with at least this coverage; None where there are too few rows.

    Args:
        residuals: (N,), label minus prediction, of rows that the model was not trained on.
        level: Wanted coverage, between 0 and 1.

    Source: Lei et al., Distribution-Free Predictive Inference for Regression, JASA 2018, algorithm 2.
    """
    rank = rank_of_half_width(len(residuals), level)
    return None if rank > len(residuals) else float(np.sort(np.abs(residuals))[rank - 1])


@dataclass(frozen=True)
class Coverage:
    """How many labels of other rows are inside their intervals."""

    num_rows: int
    num_inside: int
    low: float
    high: float
    """95% interval of the share (Wilson)."""
    p_value: float
    """Probability of at most so many rows inside, if calibration and check have rows of the same kind."""

    @property
    def share(self) -> float:
        return self.num_inside / self.num_rows

    @property
    def is_kept(self) -> bool:
        """Whether the promise is compatible with the check: p is at least 0.025."""
        return self.p_value >= 0.025


def check_coverage(residuals: Floats, half: float, num_calibrated: int, level: float) -> Coverage:
    """Return the coverage of intervals on other rows.

    Given the calibration, the number of rows inside has a beta-binomial distribution: the coverage of a calibration
    with N rows is Beta(k, N + 1 - k) for the rank k of the half-width.

    Args:
        residuals: (M,), label minus prediction; at least one.
        half: Result of `half_width`.
        num_calibrated: N.
        level: Wanted coverage.

    Source: Vovk, Conditional Validity of Inductive Conformal Predictors, ACML 2012.
    """
    from scipy.stats import betabinom

    count, inside = len(residuals), int((np.abs(residuals) <= half).sum())
    rank = rank_of_half_width(num_calibrated, level)
    p: Any = betabinom.cdf(inside, count, rank, num_calibrated + 1 - rank)
    low, high = wilson(inside, count)
    return Coverage(count, inside, low, high, float(p))
