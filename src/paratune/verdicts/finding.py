"""The comparison of one measure of two configurations, and the number of runs that would decide it.

That number follows from the power of the two tests with the present variances.
"""

import functools
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from paratune.config.metric_names import direction
from paratune.verdicts import special
from paratune.verdicts.estimate import ALPHA, LARGEST_LOG, LEVEL, MANY, Estimate, Scope, dunnett, holm
from paratune.verdicts.groups import Group, NegativeControl
from paratune.verdicts.order import OrderEffect
from paratune.verdicts.sequential import Looks, last_level, sequential_p, spent_share

POWER = 0.8  # probability of a decision for which a plan is made
MOST_RUNS = 200  # largest number of runs in a plan: the variances of a few runs are not known well enough for more
_NODES = 400
SPREAD = 0.8  # probability that the true variance of runs is between those of both ends of a range of runs
Outcome = Literal["different", "equal", "cannot tell", "n/a"]
Code = Literal[
    "not_same_experiment", "unknown_value", "unknown_noise_scale", "zero_baseline", "different_memory_kind", "one_run",
    "same_change", "samples_only", "order_confounded", "placebo", "neighbours", "negative_control", "many_comparisons",
    "repeated_looks", "too_few_samples", "too_few_runs",
]  # fmt: skip
"""Why a comparison is not decided."""
NEED_RUNS = frozenset(
    ("one_run", "same_change", "samples_only", "order_confounded", "many_comparisons", "repeated_looks", "too_few_runs")
)
PLACEBO: tuple[Code, str] = ("placebo", "it cannot differ: the options that differ do not change a step")


def why_no_times(first: Group, second: Group) -> tuple[Code, str] | None:
    """Return why times of two groups are not compared: other runs disturbed them, or they cannot differ; else None."""
    if first.num_neighbours is None or first.num_neighbours != second.num_neighbours:
        return "neighbours", "other numbers of runs were beside them, which changed their times; use sweep --timing"
    return PLACEBO if first.cannot_differ(second) else None


@dataclass(frozen=True)
class RunRange:
    """Runs (or seeds) that each side needs, the present ones included; None where it is above `MOST_RUNS`."""

    low: int
    middle: int | None  # with the median of what the variance may be
    high: int | None


@dataclass(frozen=True)
class MeasureComparison:
    """A measure of a configuration compared with that of the baseline."""

    measure: str  # `speed`, `goodput`, or a metric; of other figures, their name
    is_ratio: bool  # whether the change is that of a ratio (0.27: 27% more), and not a difference
    baseline: float | None  # mean over its runs, of ratios the geometric one; of paired runs only those in a pair
    value: float | None
    num_runs: tuple[int, int]  # of the baseline and of the other: seeds of a score, runs of all else
    change: float | None = None  # with `order.is_adjusted`, adjusted for the order of the runs
    low: float | None = None  # lower end of its interval; None where there is none
    high: float | None = None
    outcome: Outcome = "n/a"
    is_better: bool | None = None  # whether a different value is better than the baseline's
    margin: float | None = None  # largest change that counts as none, in the unit of `change`
    p_different: float | None = None  # of "no change", corrected for looks and configurations; None over samples
    p_equal: float | None = None  # of "the change is as large as the margin", corrected likewise
    look: int = 1  # number of times that this comparison was made while runs were added, this one included
    level: float | None = None  # level of this look alone at which all looks have an error of 5%; None without a test
    interval_level: float = LEVEL  # of the interval: 95% at the first look, 1 - `level` at later ones
    runs_to_tell: RunRange | None = None  # of "cannot tell": runs a side, with those at hand, to tell this change
    runs_to_equal: RunRange | None = None  # likewise, to show that a change of 0 is inside of the margin
    num_samples_needed: int | None = None  # least scored samples, where no number of runs is enough with those at hand
    order: OrderEffect | None = None  # None where it is unknown, or has no influence on this measure
    control: NegativeControl | None = None
    code: Code | None = None  # why it is not decided; None where it is
    reason: str | None = None  # the same in words, where the numbers do not show it
    split: str | None = None

    estimate: Estimate | None = None  # change with its variances, of a ratio its logarithm; None without an interval
    unadjusted: Estimate | None = None  # the estimate without the adjustment for the order of runs, where there is one

    @property
    def scope(self) -> Scope | None:
        """The interval covers: runs; seeds and samples; seeds (on these samples); or samples (of these models)."""
        return None if self.estimate is None else self.estimate.scope

    @property
    def is_shown(self) -> bool:
        """Whether it is decided, and not only for the rows on which these runs were scored."""
        return self.outcome in ("different", "equal") and self.scope != "seeds"

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return 1 if self.is_ratio or direction(self.measure) == "max" else -1

    def with_interval(self, estimate: Estimate, level: float = LEVEL) -> "MeasureComparison":
        """Return the comparison with the change of an estimate and its interval."""
        as_change = change_of_log if self.is_ratio else float
        change, low, high = map(as_change, (estimate.value, *estimate.interval(level)))
        return replace(self, change=change, low=low, high=high, interval_level=level, estimate=estimate)

    def without_change(self, code: Code, reason: str) -> "MeasureComparison":
        """Return the figures of both sides without a change."""
        return MeasureComparison(
            self.measure, self.is_ratio, self.baseline, self.value, self.num_runs,
            margin=self.margin, code=code, reason=reason, split=self.split,
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, with the standard error (of a ratio, of its logarithm) and its degrees of freedom."""
        values, one = asdict(replace(self, estimate=None, unadjusted=None)), self.estimate
        del values["estimate"], values["unadjusted"]
        freedom = None if one is None else one.degrees_of_freedom
        return values | {
            "standard_error": None if one is None else one.standard_error,
            "degrees_of_freedom": freedom if freedom is not None and math.isfinite(freedom) else None,
            "scope": self.scope,
            "is_paired": one.is_paired if one is not None and one.sides else None,
            "num_samples": 0 if one is None else one.num_rows,
            "num_clusters": 0 if one is None else one.num_clusters,
        }


def change_of_log(log: float) -> float:
    """Return the ratio less 1 of its logarithm, at most a number that a float can hold."""
    return math.expm1(min(log, LARGEST_LOG))


def decide(
    measured: Sequence[MeasureComparison], looks: Sequence[Looks], num_planned: int | None = None
) -> list[MeasureComparison]:
    """Return the comparisons of one measure, of several configurations with one baseline, with their outcomes.

    "equal" has priority over "different": a change that exists and is smaller than the margin counts as none.
    Comparisons without an estimate are returned unchanged; those over samples alone are "cannot tell". `looks` are
    those at each configuration, `num_planned` its runs at the end of the planned rounds; None where none are planned.
    """
    findings = list(measured)
    tests: list[tuple[int, Estimate]] = []
    limits: list[float] = []  # the margins on the scale of the estimates; of a ratio both ways the same factor
    for place, one in enumerate(measured):
        if one.estimate is not None and one.estimate.sides:
            assert one.margin is not None
            tests.append((place, one.estimate))
            limits.append(math.log1p(one.margin) if one.is_ratio else one.margin)
        elif one.estimate is not None:
            # An interval over samples does not cover other seeds: there is no test, and none to correct for.
            findings[place] = replace(one, outcome="cannot tell", code="samples_only")
    # The p-values of both tests are corrected for repeated looks first, then for the number of configurations.
    alone, different, equal = [], [], []
    for (place, estimate), limit in zip(tests, limits, strict=True):
        alone.append(estimate.p_different())
        different.append(sequential_p(alone[-1], looks[place]))
        equal.append(sequential_p(estimate.p_equal(-limit, limit), looks[place]))
    # Those with one variance are compared with the baseline by Dunnett's test. What samples and the order of runs add
    # to it is as if it were independent: then the correction is larger.
    common = max((one.sides[0].freedom for _, one in tests if one.sides[0].is_pooled), default=0)
    shares: list[float | None] = []
    freedoms = []
    for _, estimate in tests:
        of_runs = sum(side.variance for side in estimate.sides)
        is_pooled = of_runs and all(side.is_pooled and side.freedom == common for side in estimate.sides)
        shares.append(estimate.sides[0].variance / estimate.variance if is_pooled else None)
        freedoms += [common * (estimate.variance / of_runs) ** 2] if is_pooled else []
    dunnetts = dunnett(different, shares, max(freedoms, default=math.inf))
    for number, ((place, estimate), p_different, p_equal) in enumerate(zip(tests, dunnetts, holm(equal), strict=True)):
        one, look = measured[place], looks[place]
        level = last_level(ALPHA, look)
        if len(look) > 1:
            one = one.with_interval(estimate, 1 - level)
        one = replace(one, p_different=p_different, p_equal=p_equal, look=len(look), level=level)
        if p_equal <= ALPHA:
            one = replace(one, outcome="equal")
        elif p_different <= ALPHA:
            one = replace(one, outcome="different", is_better=estimate.value * one.sign > 0)
        else:
            p_values = different[number], alone[number]
            one = _undecided(one, estimate, limits[number], look, num_planned, len(tests), p_values)
        findings[place] = one
    return findings


def _undecided(
    one: MeasureComparison, estimate: Estimate, limit: float, looks: Looks, num_planned: int | None, num_tests: int,
    p_values: tuple[float, float],
) -> MeasureComparison:  # fmt: skip
    """Return a comparison that is not decided, with the reason, and the runs that would decide it.

    `p_values` are of "no change", corrected for looks alone, and not corrected.
    """
    twice = 2 * looks[-1][0]  # the information of a next look
    share = max(looks[-1][1], spent_share(twice, looks[0][0], num_planned))
    next_level = last_level(ALPHA / num_tests, (*looks, (twice, share)))
    to_tell, to_equal, num_samples = plan(estimate, limit, next_level)
    confounded = one.unadjusted if one.order is not None and one.order.is_confounded else None
    code: Code = "too_few_runs" if num_samples is None else "too_few_samples"
    if confounded and min(confounded.p_different(), confounded.p_equal(-limit, limit)) <= ALPHA:
        code = "order_confounded"
    elif estimate.scope == "runs" and estimate.shared and replace(estimate, shared=0.0).p_different() <= ALPHA:
        code = "negative_control"
    elif p_values[0] <= ALPHA:
        code = "many_comparisons"
    elif p_values[1] <= ALPHA:
        code = "repeated_looks"
    one = replace(one, runs_to_tell=to_tell, runs_to_equal=to_equal, num_samples_needed=num_samples)
    return replace(one, outcome="cannot tell", code=code)


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
    change = abs(estimate.value)
    ranges: list[RunRange | None] = []
    for can_be_shown, power in (
        (change > margin, lambda more: power_different(more, change, alpha)),
        (True, lambda more: power_equal(more, margin, alpha)),
    ):
        shares = ((1 - SPREAD) / 2, 0.5, (1 + SPREAD) / 2)
        low, middle, high = (_least_runs(estimate, power, share) if can_be_shown else None for share in shares)
        ranges.append(None if low is None else RunRange(low, middle, high))
    different, equal = ranges
    if different is not None or equal is not None or not estimate.num_rows:
        return different, equal, None
    quantiles = -float(special.ndtri(alpha)) - float(special.ndtri((1 - POWER) / 2))
    wanted = (margin / quantiles) ** 2
    if estimate.shared <= wanted:
        return None, None, None
    return None, None, int(estimate.num_rows * estimate.shared / wanted) + 1


def _least_runs(estimate: Estimate, power: Callable[[Estimate], float], share: float) -> int | None:
    """Return the runs with which a test decides, for variances of runs at a quantile of their interval."""
    freedom = min(side.freedom for side in estimate.sides)
    least = min(side.num_runs for side in estimate.sides) + 1
    factor = freedom / float(special.chdtri(freedom, share))
    sides = tuple(replace(side, mean_square=side.mean_square * factor) for side in estimate.sides)
    more = replace(estimate, sides=sides)
    if least > MOST_RUNS or power(more.with_runs(MOST_RUNS)) < POWER:
        return None
    counts = range(least, MOST_RUNS)
    return least + bisect_left(counts, True, key=lambda count: power(more.with_runs(count)) >= POWER)


def power_equal(estimate: Estimate, margin: float, alpha: float = ALPHA) -> float:
    """Return the probability that both one-sided tests find a change of 0 to be within the margin.

    `margin` is above 0; `alpha` is the level of each test. The mean is normal, and its squared standard error has a
    chi-squared distribution; the probability is averaged over `_NODES` quantiles of the latter.

    Source: Phillips, Journal of Pharmacokinetics and Biopharmaceutics 18(2), 1990.
    """
    if not estimate.standard_error:
        return 1.0
    errors = _standard_errors(min(estimate.degrees_of_freedom, MANY))
    distance = (margin - estimate.quantile(alpha) * errors) / estimate.standard_error
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
    critical = estimate.quantile(alpha / 2) / estimate.standard_error
    below = float(special.nctdtr(freedom, noncentrality, critical))
    return 1.0 if math.isnan(below) else 1 - below  # SciPy returns NaN where a result is below the smallest number
