"""Number of runs that decide a comparison: the power of the two tests, from the present variances."""

import functools
import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from paratune.verdicts import special
from paratune.verdicts.estimate import ALPHA, MANY, Estimate

POWER = 0.8
"""Probability of a decision for which a plan is made."""
MOST_RUNS = 200
"""Largest number of runs in a plan: the variances of a few runs are not known well enough for more."""
_NODES = 400
SPREAD = 0.8
"""Probability that the true variance of runs is between those from which a range of numbers of runs is computed."""


@dataclass(frozen=True)
class RunRange:
    """Runs (or seeds) that each side needs, the present ones included; None where it is above `MOST_RUNS`."""

    low: int
    middle: int | None
    """With the median of what the variance may be."""
    high: int | None


def power_equal(estimate: Estimate, margin: float, alpha: float = ALPHA) -> float:
    """Return the probability that both one-sided tests find a change of 0 to be within the margin.

    `margin` is above 0; `alpha` is the level of each test. The mean is normal, and its squared standard error has a
    chi-squared distribution; the probability is averaged over `_NODES` quantiles of the latter.

    Source: Phillips, Journal of Pharmacokinetics and Biopharmaceutics 18(2), 1990.
    """
    if not estimate.standard_error:
        return 1.0
    errors = _standard_errors(min(estimate.degrees_of_freedom, MANY))
    distance = (margin - estimate.half_width(1 - 2 * alpha) * errors) / estimate.standard_error
    return float(np.maximum(2 * special.ndtr(distance) - 1, 0).mean())


@functools.lru_cache(maxsize=1024)
def _standard_errors(freedom: float) -> npt.NDArray[np.float64]:
    """Return `_NODES` quantiles of an estimated standard error over the true one; most of the time of a plan."""
    return np.asarray(np.sqrt(special.chdtri(freedom, (np.arange(_NODES) + 0.5) / _NODES) / freedom))


def power_different(estimate: Estimate, change: float, alpha: float = ALPHA) -> float:
    """Return the probability that the two-sided test finds a change of this size."""
    if not estimate.standard_error:
        return 1.0 if change else 0.0
    freedom = min(estimate.degrees_of_freedom, MANY)
    noncentrality = abs(change) / estimate.standard_error
    # The other tail, a finding of the wrong sign, is left out.
    critical = estimate.half_width(1 - alpha) / estimate.standard_error
    below = float(special.nctdtr(freedom, noncentrality, critical))
    return 1.0 if math.isnan(below) else 1 - below  # SciPy returns NaN where a result is below the smallest number


def plan(
    estimate: Estimate, margin: float, alpha: float = ALPHA
) -> tuple[RunRange | None, RunRange | None, int | None]:
    """Return how many runs decide a comparison, as ranges: the variance of a few runs is not known well.

    A range is for the variance of runs at the lower end, at the median and at the upper end of its interval. The change
    that was found counts as the true one. `margin` is above 0; `alpha` is the level of each test.

    Returns:
        The runs that find a change of the present size, None when it is within the margin or no number is enough; those
        that show that a change of 0 is within the margin; and, when neither number is up to `MOST_RUNS`, the least
        number of scored samples with any number of runs; None when samples are not the limit.
    """
    if not estimate.sides:
        return None, None, None
    change, different = abs(estimate.value), None
    if change > margin:
        different = _range(estimate, lambda there: power_different(there, change, alpha) >= POWER)
    equal = _range(estimate, lambda there: power_equal(there, margin, alpha) >= POWER)
    if different is not None or equal is not None or not estimate.num_samples or estimate.scope == "runs":
        return different, equal, None
    quantiles = -float(special.ndtri(alpha)) - float(special.ndtri((1 - POWER) / 2))
    wanted = (margin / quantiles) ** 2
    if estimate.shared <= wanted:
        return None, None, None
    return None, None, int((estimate.num_rows or estimate.num_samples) * estimate.shared / wanted) + 1


def _range(estimate: Estimate, decides: Callable[[Estimate], bool]) -> RunRange | None:
    """Return the runs with which a test decides, for variances of runs at both ends of their interval."""
    freedom = min(side.degrees_of_freedom for side in estimate.sides)
    least = min(side.num_runs for side in estimate.sides) + 1

    def first(share: float) -> int | None:
        factor = freedom / float(special.chdtri(freedom, share))
        sides = tuple(replace(side, mean_square=side.mean_square * factor) for side in estimate.sides)
        scaled = replace(estimate, sides=sides)
        if least > MOST_RUNS or not decides(scaled.with_runs(MOST_RUNS)):
            return None
        return least + bisect_left(range(least, MOST_RUNS), True, key=lambda count: decides(scaled.with_runs(count)))

    low, middle, high = (first(share) for share in ((1 - SPREAD) / 2, 0.5, (1 + SPREAD) / 2))
    return None if low is None else RunRange(low, middle, high)
