"""A change that was measured over runs, with its standard error and degrees of freedom.

The unit of replication is the run: the steps of one run, or the samples that one model scored, are not replications.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Interval = tuple[float, float]
LEVEL = 0.95
"""Confidence level of intervals."""
ALPHA = 0.05
"""The chance of a false "different", and of a false "equal" when the true change is as large as the margin."""
_SMALLEST = 1e-100
"""p-value: quantiles of smaller ones are out of the range of numbers."""
_MANY = 1e6
"""Replaces infinite degrees of freedom."""

Scope = Literal["runs", "seeds", "seeds and samples", "samples"]


@dataclass(frozen=True)
class Side:
    """The variation from run to run on one side of a comparison, or from pair to pair."""

    mean_square: float
    """Sample variance over runs, or over the differences of pairs, with n - 1."""
    num_runs: int
    """At least 2."""
    pooled_freedom: float = 0
    """Degrees of freedom of a variance that is pooled over several configurations; 0 for one of these runs alone."""
    own_freedom: float | None = None
    """Degrees of freedom of a variance of these runs, where a regression takes a part of n - 1."""
    if_equal: float = 0.0
    """Variance of a run if all are equal: the part of a score's variance that the answers of a run do not share. On few
    samples the scores of two seeds can be equal by chance; that does not show that seeds do not matter."""

    @property
    def variance(self) -> float:
        """Variance of the mean."""
        return (self.mean_square or self.if_equal) / self.num_runs

    @property
    def degrees_of_freedom(self) -> float:
        """Degrees of freedom of `mean_square`."""
        own = self.num_runs - 1 if self.own_freedom is None else self.own_freedom
        return self.pooled_freedom or own


@dataclass(frozen=True)
class Estimate:
    """A change: a difference of scores, or the logarithm of a ratio of rates or times."""

    value: float
    sides: tuple[Side, ...]
    """Both sides; none where one has a single run: the variance is then that of samples alone."""
    shared: float
    """Part of the variance that more runs do not reduce: all runs are scored on the same samples."""
    num_samples: int
    """Samples (or blocks, or clusters of them) from which `shared` was estimated; 0 without any."""
    scope: Scope
    """The variation that the interval covers."""
    num_rows: int = 0
    """Number of samples, where `num_samples` counts blocks or clusters; else 0."""
    num_clusters: int = 0
    """Clusters of samples; 0 where samples count as independent."""
    drift: float = 0.0
    """Variance of the adjustment for the order of runs; see `paratune.verdicts.order`."""
    drift_freedom: float = math.inf
    """Degrees of freedom of `drift`."""
    is_paired: bool = False
    """Whether the seeds of both sides are the same."""
    reach: float = math.inf
    """Largest possible change, where intervals end: a score from 0 to 1 changes by 1 at most."""

    @functools.cached_property
    def variance(self) -> float:
        return sum(variance for variance, _ in self._parts)

    @property
    def variance_of_runs(self) -> float:
        return sum(side.variance for side in self.sides)

    @property
    def standard_error(self) -> float:
        return math.sqrt(self.variance)

    @functools.cached_property
    def _parts(self) -> list[tuple[float, float]]:
        """The variances of the change, each with its degrees of freedom: of runs, of samples, of the adjustment."""
        parts = (
            (self.variance_of_runs, self.freedom_of_runs),
            (self.shared, self.num_samples - 1),
            (self.drift, self.drift_freedom),
        )
        return [(variance, freedom) for variance, freedom in parts if variance > 0]

    @functools.cached_property
    def freedom_of_runs(self) -> float:
        """Degrees of freedom of the variance of runs: that of a common variance, else Satterthwaite's.

        For sides with equal numbers of runs they are Welch's. The variance of a side of m > n runs counts
        ((n - 1)(m + 1) / ((n + 1)(m - 1)))^3 times: a variance of few runs is often too small by chance, and with
        Welch's own ones intervals of 2 runs against 5 or 10 cover 89 to 94%. See docs/explanation/verdicts.md.

        Source: Satterthwaite, Biometrics Bulletin 2(6), 1946; Welch, Biometrika 34, 1947.
        """
        variances = [side.variance for side in self.sides]
        if not any(variances):
            return math.inf
        if self.has_common_variance:
            return self.sides[0].pooled_freedom
        factors = [side.degrees_of_freedom / (side.degrees_of_freedom + 2) for side in self.sides]
        counted = [value * (min(factors) / factor) ** 3 for value, factor in zip(variances, factors, strict=True)]
        below = sum(value**2 / side.degrees_of_freedom for value, side in zip(counted, self.sides, strict=True))
        return sum(counted) ** 2 / below

    @property
    def has_common_variance(self) -> bool:
        """Whether all sides have the variance that is pooled over the configurations of a family."""
        return bool(self.sides) and all(side.pooled_freedom for side in self.sides)

    @functools.cached_property
    def degrees_of_freedom(self) -> float:
        """Those of the t distribution that gives the same 95% interval; infinite where there is no variance."""
        from scipy import special

        if len({freedom for _, freedom in self._parts}) < 2:
            return self._parts[0][1] if self._parts else math.inf
        return float(special.stdtridf((1 + LEVEL) / 2, self.half_width() / self.standard_error))

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the confidence interval of the change."""
        half = self.half_width(level)
        return max(self.value - half, -self.reach), min(self.value + half, self.reach)

    def half_width(self, level: float = LEVEL) -> float:
        """Return half the width of the interval: the root of the sum of all variances, each times its own t squared.

        Whatever the true variances are, such an interval covers at least as often as `level` says, also far out in the
        tail where corrections for several comparisons and looks are made: given the estimated variances v_i, the
        coverage is a concave function of sum(v_i t_i^2), so at least the mean of the coverages of each part alone.

        Source: Banerjee, Sankhya 22, 1960. It replaces Satterthwaite's degrees of freedom of the sum (Hillis,
        Statistics in Medicine 26(3), 2007), whose intervals cover less with 2 or 3 seeds.
        """
        return _quantile(self._parts, (1 - level) / 2)

    def p_different(self) -> float:
        """Return the two-sided p-value of "there is no change"."""
        if not self.standard_error:
            return 1.0 if self.value == 0 else 0.0
        return min(1.0, 2 * _above(self._parts, abs(self.value)))

    def p_equal(self, low: float, high: float) -> float:
        """Return the p-value of "the change is outside of `low` to `high`"; small if it is shown to be inside.

        `low` is below 0, `high` above 0. Two one-sided tests; the larger p-value counts.

        Source: Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15(6), 1987.
        """
        if not self.standard_error:
            return 0.0 if low < self.value < high else 1.0
        return _above(self._parts, min(self.value - low, high - self.value))

    def with_runs(self, num_runs: int) -> "Estimate":
        """Return the estimate with at least this number of runs on each side, with the same variances."""
        counts = [max(num_runs, side.num_runs) for side in self.sides]
        now = sum(side.num_runs for side in self.sides)
        more = (sum(counts) - now) / (2 if self.is_paired else 1) if self.has_common_variance else 0
        sides = zip(self.sides, counts, strict=True)
        return replace(
            self,
            sides=tuple(
                replace(
                    side,
                    num_runs=count,
                    pooled_freedom=side.pooled_freedom + more,
                    own_freedom=None if side.own_freedom is None else side.own_freedom + count - side.num_runs,
                )
                for side, count in sides
            ),
            drift=self.drift * now / sum(counts) if self.drift else 0.0,
            drift_freedom=self.drift_freedom + sum(counts) - now,
        )


def unpaired(first: Sequence[float], second: Sequence[float], *, scope: Scope) -> Estimate:
    """Return the mean of `second` less that of `first`, the baseline, for runs without partners; at least 2 a side."""
    (a, a_square), (b, b_square) = moments(first), moments(second)
    return Estimate(b - a, (Side(a_square, len(first)), Side(b_square, len(second))), 0.0, 0, scope)


def mean_of(values: Sequence[float], *, scope: Scope) -> Estimate:
    """Return the mean of at least 2 figures over runs or seeds."""
    mean, mean_square = moments(values)
    return Estimate(mean, (Side(mean_square, len(values)),), 0.0, 0, scope)


def mean_interval(values: Sequence[float], limits: Interval = (-math.inf, math.inf)) -> Interval | None:
    """Return the 95% interval of the mean of a figure over runs, cut to its smallest and largest possible value.

    None for fewer than 2 values, and for equal ones: by chance few runs are equal, which shows no certainty.
    """
    if len(values) < 2 or not (estimate := mean_of(values, scope="runs")).variance:
        return None
    low, high = estimate.interval()
    return max(low, limits[0]), min(high, limits[1])


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that are corrected for their number: each is compared with the level of one test.

    Source: Holm, Scandinavian Journal of Statistics 6(2), 1979.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, so_far = [0.0] * len(p_values), 0.0
    for place, position in enumerate(order):
        so_far = max(so_far, min(1.0, (len(p_values) - place) * p_values[position]))
        adjusted[position] = so_far
    return adjusted


def dunnett(p_values: Sequence[float], shares: Sequence[float | None], freedom: float) -> list[float]:
    """Return p-values of comparisons with one baseline, corrected for their number; smaller than those of `holm`.

    The comparisons have the baseline in common, and one estimate of the variance, so they are right or wrong together:
    with u the estimated standard deviation over the true one and z the baseline's error, the rest is independent.

    Args:
        p_values: Two-sided, of Student's t.
        shares: Of each comparison: the baseline's part of its variance, below 1; None where it has a variance of its
            own, and counts as independent of the others. Both a smaller share and none are conservative.
        freedom: Degrees of freedom of the common variance.

    Source: Dunnett, Journal of the American Statistical Association 50, 1955; Dunnett and Tamhane, Statistics in
    Medicine 10(6), 1991, for the steps: the largest change is compared with all, the next with those that are left;
    Sidak, Journal of the American Statistical Association 62, 1967, for what is taken as independent.
    """
    from scipy import special

    (z, z_weights), (chances, u_weights) = _nodes()
    freedom = min(freedom, _MANY)
    u = np.sqrt(special.chdtri(freedom, (1 - chances) / 2) / freedom)
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, so_far = [0.0] * len(p_values), 0.0
    for place, position in enumerate(order):
        p_value, left = p_values[position], order[place:]
        so_far = max(so_far, p_value)
        if len(left) > 1:
            bound = -special.stdtrit(freedom, max(p_value, _SMALLEST) / 2) * u
            inside = np.ones((len(z), len(u)))
            for share in (shares[other] for other in left):
                if share is None:
                    inside *= 1 - p_value
                else:
                    middle, rest = math.sqrt(share) * z[:, None], math.sqrt(1 - share) or _SMALLEST
                    inside *= special.ndtr((middle + bound) / rest) - special.ndtr((middle - bound) / rest)
            so_far = max(so_far, 1 - float(z_weights @ inside @ u_weights))
        adjusted[position] = min(1.0, so_far)
    return adjusted


@functools.cache
def _nodes() -> tuple[tuple[Floats, Floats], ...]:
    """Return nodes and weights of integrals over a normal variable, and over -1 to 1."""
    rules = np.polynomial.hermite_e.hermegauss(20), np.polynomial.legendre.leggauss(40)
    return tuple((nodes, weights / weights.sum()) for nodes, weights in rules)


def moments(values: Sequence[float], scale: float | None = None) -> tuple[float, float]:
    """Return mean and sample variance of at least 2 values; 0 when they are equal up to rounding at this scale.

    The scale of differences is that of the figures; None: that of the values.
    """
    scale = max(map(abs, values)) if scale is None else scale
    mean = math.fsum(values) / len(values)
    square = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, square if square > (1e-13 * scale) ** 2 else 0.0


def _quantile(parts: Sequence[tuple[float, float]], tail: float) -> float:
    """Return the distance that a change exceeds with a probability of at most `tail`, from variances and freedoms."""
    from scipy import special

    if len({freedom for _, freedom in parts}) == 1:
        return -float(special.stdtrit(parts[0][1], tail)) * math.sqrt(sum(variance for variance, _ in parts))
    return math.sqrt(sum(variance * special.stdtrit(freedom, tail) ** 2 for variance, freedom in parts))


def _above(parts: Sequence[tuple[float, float]], distance: float) -> float:
    """Return the tail of which `distance` is the quantile."""
    from scipy import optimize, special

    if distance < 0:
        return 1 - _above(parts, -distance)
    statistic = distance / math.sqrt(sum(variance for variance, _ in parts))
    # With one freedom for all parts this is a t test; else the tail is between those of the extreme freedoms.
    least, most = (float(special.stdtr(choose(freedom for _, freedom in parts), -statistic)) for choose in (max, min))
    if most - least <= 1e-9 * most:
        return most
    least = max(least, _SMALLEST)
    if _quantile(parts, least) <= distance:
        return least
    logs = math.log(least), min(math.log(most) + 1e-6, math.log(0.5))  # beyond one half the quantile rises again
    return math.exp(optimize.brentq(lambda log: _quantile(parts, math.exp(log)) - distance, *logs, xtol=1e-9))
