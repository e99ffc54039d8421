"""A change that was measured over runs, with its standard error and degrees of freedom.

The unit of replication is the run: the steps of one run, or the samples that one model scored, are not replications.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from paratune.verdicts import special

LEVEL = 0.95  # confidence level of intervals
ALPHA = 0.05  # the chance of a false "different", and of a false "equal" when the true change is as large as the margin
MANY = 1e6  # replaces infinite degrees of freedom where a function needs a number
CHANCE = 0.05
"""Of the F distribution: the largest of k variances that is above that of the others at 5% / k keeps its own. With a
higher chance the common variance of few runs is too small. The baseline's is in all comparisons: it has 5%, not 5% / k.
"""
LARGEST_LOG = 700.0  # logarithm of the largest ratio that is computed: larger ones are out of the range of numbers
_SMALLEST = 1e-100  # p-value: quantiles of smaller ones are out of the range of numbers
_NORMAL_NODES, _FLAT_NODES = np.polynomial.hermite_e.hermegauss(20), np.polynomial.legendre.leggauss(40)
"""Nodes and weights of integrals over a normal variable, and over -1 to 1."""

Scope = Literal["runs", "seeds", "seeds and samples", "samples"]


def change_of_means(
    first: Sequence[float], second: Sequence[float], *, scope: Scope, is_paired: bool = False
) -> "Estimate":
    """Return the mean of `second` less that of `first`, the baseline; both have at least 2 runs, or seeds.

    Paired ones are in the same order. The variance of a difference of a pair is that of two scores without what a seed
    has in common, so each side has half of it.
    """
    if is_paired:
        differences = [b - a for a, b in zip(first, second, strict=True)]
        mean, square = moments(differences, scale=max(map(abs, (*first, *second))))
        side = Side(square / 2, len(differences), len(differences) - 1, is_pooled=True)
        return Estimate(mean, (side, side), 0.0, 0, scope, is_paired=True)
    (a, a_square), (b, b_square) = moments(first), moments(second)
    sides = Side(a_square, len(first), len(first) - 1), Side(b_square, len(second), len(second) - 1)
    return Estimate(b - a, sides, 0.0, 0, scope)


def moments(values: Sequence[float], scale: float | None = None) -> tuple[float, float]:
    """Return mean and sample variance of at least 2 values; 0 when they are equal up to rounding at this scale.

    The scale of differences is that of the figures; None: that of the values.
    """
    scale = max(map(abs, values)) if scale is None else scale
    mean = math.fsum(values) / len(values)
    square = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, square if square > (1e-13 * scale) ** 2 else 0.0


@dataclass(frozen=True)
class Side:
    """The variation from run to run on one side of a comparison, or from pair to pair."""

    mean_square: float  # sample variance over runs, or over the differences of pairs, with n - 1
    num_runs: int  # at least 2
    freedom: float  # degrees of freedom of `mean_square`: n - 1, less what a regression takes, or pooled ones
    is_pooled: bool = False  # whether `mean_square` is pooled over several configurations
    if_equal: float = 0.0
    """Variance of a run if all are equal: the part of a score's variance that the answers of a run do not share. On few
    samples the scores of two seeds can be equal by chance; that does not show that seeds do not matter."""

    @property
    def variance(self) -> float:
        """Variance of the mean."""
        return (self.mean_square or self.if_equal) / self.num_runs


@dataclass(frozen=True)
class Estimate:
    """A change: a difference of scores, or the logarithm of a ratio of rates or times."""

    value: float
    sides: tuple[Side, ...]  # both sides; none where one has a single run: the variance is then that of samples alone
    shared: float  # part of the variance that more runs do not reduce: all runs are scored on the same samples
    num_samples: int  # samples (or blocks, or clusters of them) from which `shared` was estimated; 0 without any
    scope: Scope  # the variation that the interval covers
    num_rows: int = 0  # scored samples; 0 for a change that is not of scores, or where predictions are unknown
    num_clusters: int = 0  # clusters of samples; 0 where samples count as independent
    drift: float = 0.0  # variance of the adjustment for the order of runs; see `paratune.verdicts.order`
    drift_freedom: float = math.inf
    is_paired: bool = False  # whether the seeds of both sides are the same
    reach: float = math.inf  # largest possible change, where intervals end: a score from 0 to 1 changes by 1 at most

    @functools.cached_property
    def parts(self) -> list[tuple[float, float]]:
        """The variances of the change, each with its degrees of freedom: of runs, of samples, of the adjustment.

        Those of runs are the degrees of freedom of a common variance, else Satterthwaite's. For sides with equal
        numbers of runs they are Welch's. The variance of a side of m > n runs counts
        ((n - 1)(m + 1) / ((n + 1)(m - 1)))^3 times: a variance of few runs is often too small by chance, and with
        Welch's own ones intervals of 2 runs against 5 or 10 cover 89 to 94%. See docs/explanation/verdicts.md.

        Source: Satterthwaite, Biometrics Bulletin 2(6), 1946; Welch, Biometrika 34, 1947.
        """
        variances = [side.variance for side in self.sides]
        freedom = math.inf
        if any(variances) and all(side.is_pooled for side in self.sides):
            freedom = self.sides[0].freedom
        elif any(variances):
            # (n - 1) / (n + 1) of each side
            factors = [side.freedom / (side.freedom + 2) for side in self.sides]
            counted = [value * (min(factors) / factor) ** 3 for value, factor in zip(variances, factors, strict=True)]
            below = sum(value**2 / side.freedom for value, side in zip(counted, self.sides, strict=True))
            freedom = sum(counted) ** 2 / below
        of_samples, of_order = (self.shared, self.num_samples - 1), (self.drift, self.drift_freedom)
        return [part for part in ((sum(variances), freedom), of_samples, of_order) if part[0] > 0]

    def tail(self, distance: float) -> float:
        """Return the probability that the change, if there is none, is found at this distance or beyond it.

        With one variance this is a t test. With several it is the tail of which `distance` is the `quantile`.
        """
        from scipy import optimize

        if distance < 0:
            return 1 - self.tail(-distance)
        t, freedoms = distance / self.standard_error, [freedom for _, freedom in self.parts]
        least, most = (float(special.stdtr(freedom, -t)) for freedom in (max(freedoms), min(freedoms)))
        if most - least <= 1e-9 * most:  # all variances have the same degrees of freedom
            return most
        least = max(least, _SMALLEST)
        if self.quantile(least) <= distance:
            return least
        # Beyond one half the quantile rises again.
        logs = math.log(least), min(math.log(most) + 1e-6, math.log(0.5))
        return math.exp(optimize.brentq(lambda log: self.quantile(math.exp(log)) - distance, *logs, xtol=1e-9))

    def quantile(self, tail: float) -> float:
        """Return the distance that a change exceeds with a probability of at most `tail`, below one half.

        It is the root of the sum of all variances, each times its own t squared. Whatever the true variances are, an
        interval of this half width covers at least as often as it should, also far out in the tail: given the estimated
        variances v_i, the coverage is a concave function of sum(v_i t_i^2), so at least the mean of the coverages of
        each part alone. Intervals with Satterthwaite's degrees of freedom cover less with 2 or 3 seeds.

        Source: Banerjee, Sankhya 22, 1960.
        """
        if len({freedom for _, freedom in self.parts}) == 1:
            return -float(special.stdtrit(self.parts[0][1], tail)) * self.standard_error
        return math.sqrt(sum(variance * float(special.stdtrit(free, tail)) ** 2 for variance, free in self.parts))

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the confidence interval of the change."""
        half = self.quantile((1 - level) / 2)
        return max(self.value - half, -self.reach), min(self.value + half, self.reach)

    def p_different(self) -> float:
        """Return the two-sided p-value of "there is no change"."""
        if not self.standard_error:
            return 1.0 if self.value == 0 else 0.0
        return min(1.0, 2 * self.tail(abs(self.value)))

    def p_equal(self, low: float, high: float) -> float:
        """Return the p-value of "the change is outside of `low` to `high`"; small if it is shown to be inside.

        `low` is below 0, `high` above 0. Two one-sided tests; the larger p-value counts.

        Source: Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15(6), 1987.
        """
        if not self.standard_error:
            return 0.0 if low < self.value < high else 1.0
        return self.tail(min(self.value - low, high - self.value))

    @functools.cached_property
    def variance(self) -> float:
        return sum(variance for variance, _ in self.parts)

    @property
    def standard_error(self) -> float:
        return math.sqrt(self.variance)

    @functools.cached_property
    def degrees_of_freedom(self) -> float:
        """Those of the t distribution that gives the same 95% interval; infinite where there is no variance."""
        if len({freedom for _, freedom in self.parts}) < 2:
            return self.parts[0][1] if self.parts else math.inf
        return float(special.stdtridf((1 + LEVEL) / 2, self.quantile((1 - LEVEL) / 2) / self.standard_error))

    def with_runs(self, num_runs: int) -> "Estimate":
        """Return the estimate with at least this number of runs on each side, with the same variances."""
        counts = [max(num_runs, side.num_runs) for side in self.sides]
        now = sum(side.num_runs for side in self.sides)
        # A common variance gains from the runs of both sides.
        is_common = all(side.is_pooled for side in self.sides)
        more = (sum(counts) - now) / (2 if self.is_paired else 1) if is_common else 0
        sides = []
        for side, count in zip(self.sides, counts, strict=True):
            freedom = side.freedom + (more if side.is_pooled else count - side.num_runs)
            sides.append(replace(side, num_runs=count, freedom=freedom))
        drift = self.drift * now / sum(counts) if self.drift else 0.0
        return replace(self, sides=tuple(sides), drift=drift, drift_freedom=self.drift_freedom + sum(counts) - now)


def common_sides(sides: Sequence[Side]) -> list[Side]:
    """Return the sides of configurations, the baseline's first; those that vary alike with one common variance.

    Two configurations with three runs each have 4 degrees of freedom for their variances; nine have 18 for a common
    variance, and so detect differences that a pair does not detect.
    """

    alike = list(range(len(sides)))
    while len(alike) > 2:
        largest = max(alike, key=lambda place: sides[place].mean_square)
        others = [sides[place] for place in alike if place != largest]
        freedom = sum(side.freedom for side in others)
        rest = sum(side.mean_square * side.freedom for side in others) / freedom
        chance = CHANCE / len(alike) if largest else CHANCE
        limit = special.fdtri(sides[largest].freedom, freedom, 1 - chance)
        if sides[largest].mean_square <= limit * rest:
            break
        alike.remove(largest)
    freedom = sum(sides[place].freedom for place in alike)
    square = sum(sides[place].mean_square * sides[place].freedom for place in alike) / freedom
    common = [replace(side, mean_square=square, freedom=freedom, is_pooled=True) for side in sides]
    return [common[place] if place in alike else side for place, side in enumerate(sides)]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that are corrected for their number: each is compared with the level of one test.

    Source: Holm, Scandinavian Journal of Statistics 6(2), 1979.
    """
    order, adjusted = np.argsort(p_values, kind="stable"), np.zeros(len(p_values))
    scaled = np.arange(len(p_values), 0, -1) * np.asarray(p_values)[order]
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, scaled))
    return [float(p_value) for p_value in adjusted]


def dunnett(p_values: Sequence[float], shares: Sequence[float | None], freedom: float) -> list[float]:
    """Return p-values of comparisons with one baseline, corrected for their number; smaller than those of `holm`.

    The comparisons have the baseline in common, and one estimate of the variance, so they are right or wrong together:
    with u the estimated standard deviation over the true one and z the baseline's error, the rest is independent.

    `p_values` are two-sided, of Student's t with the `freedom` of the common variance. `shares` are the baseline's part
    of the variance of each; None where it has a variance of its own, and counts as independent of the others.

    Source: Dunnett, Journal of the American Statistical Association 50, 1955; Dunnett and Tamhane, Statistics in
    Medicine 10(6), 1991, for the steps: the largest change is compared with all, the next with those that are left;
    Sidak, Journal of the American Statistical Association 62, 1967, for what is taken as independent.
    """
    freedom, (z, z_weights), (chances, u_weights) = min(freedom, MANY), _NORMAL_NODES, _FLAT_NODES
    u = np.sqrt(special.chdtri(freedom, (1 - chances) / 2) / freedom)
    z_weights, u_weights = z_weights / z_weights.sum(), u_weights / u_weights.sum()
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    known = np.asarray([shares[position] or 0.0 for position in order])[:, None, None]
    is_apart = np.asarray([shares[position] is None for position in order])
    # (comparisons, nodes of z, 1), (comparisons, 1, 1)
    middle, rest = np.sqrt(known) * z[:, None], np.maximum(np.sqrt(1 - known), _SMALLEST)
    adjusted, so_far = [0.0] * len(p_values), 0.0
    for place, position in enumerate(order):
        p_value = p_values[position]
        so_far = max(so_far, p_value)
        if place + 1 < len(order):
            bound = -special.stdtrit(freedom, max(p_value, _SMALLEST) / 2) * u
            of_rest = middle[place:], rest[place:]
            inside = special.ndtr((of_rest[0] + bound) / of_rest[1]) - special.ndtr((of_rest[0] - bound) / of_rest[1])
            inside[is_apart[place:]] = 1 - p_value
            so_far = max(so_far, 1 - float(z_weights @ inside.prod(axis=0) @ u_weights))
        adjusted[position] = min(1.0, so_far)
    return adjusted
