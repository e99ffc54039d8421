"""A change that was measured over runs, with its standard error and degrees of freedom.

The unit of replication is the run: the steps of one run, or the samples that one model scored, are not replications.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

LEVEL = 0.95
"""Confidence level of intervals."""
ALPHA = 0.05
"""The chance of a false "different", and of a false "equal" when the true change is as large as the margin."""

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

    @property
    def variance(self) -> float:
        """Variance of the mean."""
        return self.mean_square / self.num_runs

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
    """One side for pairs, two for runs that are not paired; none where a side has one run: the variance is then that of
    samples alone."""
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

    @property
    def variance(self) -> float:
        return sum(side.variance for side in self.sides) + self.shared + self.drift

    @property
    def standard_error(self) -> float:
        return math.sqrt(self.variance)

    @property
    def degrees_of_freedom(self) -> float:
        """Satterthwaite's degrees of freedom of the sum of all variances; infinite where there is no variance.

        For pairs alone they are n - 1, for sides with equal numbers of runs Welch's. With a variance from n runs, the
        shared variance counts k^2 times, k = (n - 1)/(n + 1), and that of a side of m > n runs (k (m + 1)/(m - 1))^3
        times: a variance of few runs is often too small by chance, and intervals with the degrees of freedom of the
        other variance would cover as little as 88%. A pooled variance has its own degrees of freedom, and counts once
        where both sides have it.

        Source: Satterthwaite, Biometrics Bulletin 2(6), 1946; Hillis, Statistics in Medicine 26(3), 2007, for runs that
        are scored on the same samples. The factors: docs/explanation/verdicts.md.
        """
        if not self.variance:
            return math.inf
        if not self.sides:
            return self.num_samples - 1
        factors = [side.degrees_of_freedom / (side.degrees_of_freedom + 2) for side in self.sides]
        counted = self.shared * min(factors) ** 2
        above = counted + self.drift
        below = counted**2 / (self.num_samples - 1) if counted else 0.0
        below += self.drift**2 / self.drift_freedom
        for side, factor in zip(self.sides, factors, strict=True):
            of_side = side.variance * (min(factors) / factor) ** 3
            above += of_side
            below += of_side**2 / side.degrees_of_freedom
        freedom = above**2 / below if below else math.inf
        if self.drift:  # found with the sides' variances from the same residuals
            freedom = min(freedom, self.drift_freedom)
        return min(freedom, self.sides[0].pooled_freedom) if self._is_pooled else freedom

    @property
    def _is_pooled(self) -> bool:
        """Whether all sides have the same pooled variance."""
        return all(side.pooled_freedom for side in self.sides)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the confidence interval of the change."""
        half = self.half_width(level)
        return self.value - half, self.value + half

    def half_width(self, level: float = LEVEL) -> float:
        """Return half the width of the interval."""
        from scipy import special

        return float(special.stdtrit(self.degrees_of_freedom, (1 + level) / 2)) * self.standard_error

    def p_different(self) -> float:
        """Return the two-sided p-value of "there is no change"."""
        if not self.standard_error:
            return 1.0 if self.value == 0 else 0.0
        return min(1.0, 2 * _above(abs(self.value) / self.standard_error, self.degrees_of_freedom))

    def p_equal(self, low: float, high: float) -> float:
        """Return the p-value of "the change is outside of `low` to `high`"; small if it is shown to be inside.

        `low` is below 0, `high` above 0. Two one-sided tests; the larger p-value counts.

        Source: Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15(6), 1987.
        """
        if not self.standard_error:
            return 0.0 if low < self.value < high else 1.0
        nearest = min(self.value - low, high - self.value)
        return _above(nearest / self.standard_error, self.degrees_of_freedom)

    def with_runs(self, num_runs: int) -> "Estimate":
        """Return the estimate with at least this number of runs on each side, with the same variances."""
        counts = [max(num_runs, side.num_runs) for side in self.sides]
        now = sum(side.num_runs for side in self.sides)
        more = sum(counts) - now if self._is_pooled else 0
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


def paired(first: Sequence[float], second: Sequence[float], *, scope: Scope, shared: float = 0.0, num_samples: int = 0
) -> Estimate:  # fmt: skip
    """Return the mean of second - first over pairs: runs of the same seed.

    Args:
        first: (n,), of the baseline, at least 2.
        second: (n,), in the same order.
        shared: Variance of the mean difference that all pairs share.
        num_samples: Samples from which `shared` was estimated.
    """
    differences = [b - a for a, b in zip(first, second, strict=True)]
    mean, mean_square = moments(differences, max(map(abs, (*first, *second))))
    return Estimate(mean, (Side(mean_square, len(differences)),), shared, num_samples, scope)


def unpaired(first: Sequence[float], second: Sequence[float], *, scope: Scope, shared: float = 0.0, num_samples: int = 0
) -> Estimate:  # fmt: skip
    """Return the mean of `second` less that of `first`, for runs that have only the samples in common.

    Args:
        first: (n,), of the baseline, at least 2.
        second: (m,), at least 2.
        shared: Variance of the difference that all runs share.
        num_samples: Samples from which `shared` was estimated.

    Source: Welch, Biometrika 34, 1947, for sides with as many runs; for others see `Estimate.degrees_of_freedom`.
    """
    (a, a_square), (b, b_square) = (moments(side, max(map(abs, side))) for side in (first, second))
    return Estimate(b - a, (Side(a_square, len(first)), Side(b_square, len(second))), shared, num_samples, scope)


def mean_of(values: Sequence[float], *, scope: Scope) -> Estimate:
    """Return the mean of at least 2 figures over runs or seeds."""
    mean, mean_square = moments(values, max(map(abs, values)))
    return Estimate(mean, (Side(mean_square, len(values)),), 0.0, 0, scope)


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


def moments(values: Sequence[float], scale: float | None = None) -> tuple[float, float]:
    """Return mean and sample variance of at least 2 values; 0 when they are equal up to rounding at this scale.

    The scale of differences is that of the figures; None: that of the values.
    """
    scale = max(map(abs, values)) if scale is None else scale
    mean = math.fsum(values) / len(values)
    square = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, square if square > (1e-13 * scale) ** 2 else 0.0


def _above(statistic: float, degrees_of_freedom: float) -> float:
    from scipy import special

    return float(special.stdtr(degrees_of_freedom, -statistic))
