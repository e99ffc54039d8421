"""The comparison of one measure of two configurations."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paratune.config.metric_names import direction
from paratune.verdicts.estimate import ALPHA, LEVEL, Estimate, dunnett, holm
from paratune.verdicts.order import OrderEffect
from paratune.verdicts.placebo import NegativeControl
from paratune.verdicts.planning import RunRange, plan
from paratune.verdicts.sequential import Looks, last_level, sequential_p, spent_share

Outcome = Literal["different", "equal", "cannot tell", "n/a"]
Code = Literal[
    "not_same_experiment", "unknown_value", "unknown_noise_scale", "zero_baseline", "different_memory_kind", "one_run",
    "same_change", "samples_only", "order_confounded", "placebo", "negative_control", "many_comparisons",
    "repeated_looks", "too_few_samples", "too_few_runs",
]  # fmt: skip
"""Why a comparison is not decided."""
_NEED_RUNS = frozenset(
    ("one_run", "same_change", "samples_only", "order_confounded", "many_comparisons", "repeated_looks", "too_few_runs")
)


@dataclass(frozen=True)
class MeasureComparison:
    """A measure of a configuration compared with that of the baseline."""

    measure: str
    """`speed`, `goodput`, or a metric; of other figures, their name."""
    is_ratio: bool
    """Whether the change is that of a ratio (0.27: 27% more), and not a difference."""
    baseline: float | None
    """Mean over its runs, of ratios the geometric one; in its own unit. Of paired runs only those in a pair count."""
    value: float | None
    num_runs: tuple[int, int]
    """Of the baseline and of the other: seeds of a score, runs of all else."""
    change: float | None = None
    """With `order.is_adjusted`, adjusted for the order of the runs."""
    low: float | None = None
    """Lower end of its interval; None where there is none."""
    high: float | None = None
    outcome: Outcome = "n/a"
    is_better: bool | None = None
    """Whether a different value is better than the baseline's."""
    margin: float | None = None
    """Largest change that counts as none, in the unit of `change`."""
    p_different: float | None = None
    """p-value of "there is no change", corrected for looks and for several configurations; None over samples."""
    p_equal: float | None = None
    """p-value of "the change is as large as the margin", corrected likewise."""
    standard_error: float | None = None
    """Of the change; of a ratio, of its logarithm."""
    degrees_of_freedom: float | None = None
    scope: str | None = None
    """The interval covers: runs; seeds and samples; seeds (on these samples); or samples (of these models)."""
    is_paired: bool | None = None
    num_samples: int = 0
    num_clusters: int = 0
    """Clusters of samples, such as questions about one passage; 0 where samples count as independent."""
    look: int = 1
    """Number of times that this comparison was made while runs were added, this one included."""
    level: float | None = None
    """Level of this look alone at which all looks together have an error of 5%; None without a test."""
    interval_level: float = LEVEL
    """Of the interval: 95% at the first look, 1 - `level` at later ones."""
    runs_to_tell: RunRange | None = None
    """Of "cannot tell": runs a side, those at hand included, that would tell a change of the size found."""
    runs_to_equal: RunRange | None = None
    """Likewise, that would show a change of 0 to be inside of the margin."""
    num_samples_needed: int | None = None
    """Smallest number of scored samples, where no number of runs is enough with the present samples."""
    order: OrderEffect | None = None
    """None where it is unknown, or has no influence on this measure."""
    control: NegativeControl | None = None
    code: Code | None = None
    """Why it is not decided; None where it is."""
    reason: str | None = None
    """The same in words, where the numbers do not show it."""
    split: str | None = None

    @property
    def is_shown(self) -> bool:
        """Whether it is decided, and not only for the rows on which these runs were scored."""
        return self.outcome in ("different", "equal") and self.scope != "seeds"

    @property
    def can_be_decided(self) -> bool:
        """Whether it is not decided, and more runs could decide it."""
        return self.code in _NEED_RUNS

    @property
    def is_guess(self) -> bool:
        """Whether the numbers of runs rest on a variance of two runs."""
        freedom = self.degrees_of_freedom
        return min(self.num_runs) == 2 and freedom is not None and freedom < 3


@dataclass(frozen=True)
class UncorrectedComparison:
    """A comparison before the corrections for repeated looks and for other configurations."""

    finding: MeasureComparison
    estimate: Estimate | None = None
    unadjusted: Estimate | None = None
    """The estimate without the adjustment for the order of runs, where there is one."""

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return 1 if self.finding.is_ratio or direction(self.finding.measure) == "max" else -1

    @property
    def limit(self) -> float:
        """The margin on the scale of the estimate; of a ratio both ways the same factor."""
        assert self.finding.margin is not None
        return math.log1p(self.finding.margin) if self.finding.is_ratio else self.finding.margin


def without_change(finding: MeasureComparison, code: Code, reason: str) -> UncorrectedComparison:
    """Return the figures of both sides without a change."""
    return UncorrectedComparison(
        MeasureComparison(
            finding.measure, finding.is_ratio, finding.baseline, finding.value, finding.num_runs,
            margin=finding.margin, code=code, reason=reason, split=finding.split,
        )
    )  # fmt: skip


def placebo(finding: MeasureComparison) -> UncorrectedComparison:
    """Return the figures of two configurations that cannot differ in them."""
    return without_change(finding, "placebo", "it cannot differ: the options that differ do not change a step")


def with_interval(finding: MeasureComparison, estimate: Estimate, level: float = LEVEL) -> MeasureComparison:
    """Return a comparison with the change, its interval, and how these were found."""
    low, high = estimate.interval(level)
    as_change = math.expm1 if finding.is_ratio else float
    return replace(
        finding,
        change=as_change(estimate.value),
        low=as_change(low),
        high=as_change(high),
        standard_error=estimate.standard_error,
        degrees_of_freedom=estimate.degrees_of_freedom if math.isfinite(estimate.degrees_of_freedom) else None,
        scope=estimate.scope,
        is_paired=estimate.is_paired if estimate.sides else None,
        num_samples=0 if estimate.scope == "runs" else estimate.num_rows or estimate.num_samples,
        num_clusters=estimate.num_clusters,
        interval_level=level,
    )


def decide(
    measured: Sequence[UncorrectedComparison], looks: Sequence[Looks], num_planned: int | None = None
) -> list[MeasureComparison]:
    """Return the comparisons of one measure, of several configurations with one baseline, with their outcomes.

    "equal" has priority over "different": a change that exists and is smaller than the margin counts as none.
    Comparisons without an estimate are returned unchanged; those over samples alone are "cannot tell". `looks` are
    those at each configuration, `num_planned` its runs at the end of the planned rounds; None where none are planned.
    """
    # An interval over samples does not cover other seeds: there is no test, and none to correct for.
    tests = [
        (one, one.estimate, look)
        for one, look in zip(measured, looks, strict=True)
        if one.estimate is not None and one.estimate.sides
    ]
    different = [sequential_p(estimate.p_different(), look) for _, estimate, look in tests]
    equal = [sequential_p(estimate.p_equal(-one.limit, one.limit), look) for one, estimate, look in tests]
    estimates = [estimate for _, estimate, _ in tests]
    corrected = zip(tests, _many_to_one(estimates, different), holm(equal), different, strict=True)
    findings = []
    for one in measured:
        if one.estimate is None:
            findings.append(one.finding)
        elif not one.estimate.sides:
            findings.append(replace(one.finding, outcome="cannot tell", code="samples_only"))
        else:
            test, *p_values = next(corrected)
            findings.append(_decided(*test, num_planned, len(tests), *p_values))
    return findings


def _many_to_one(estimates: Sequence[Estimate], p_values: Sequence[float]) -> list[float]:
    """Return p-values of "no change", corrected for their number by Dunnett's test of those that have one variance."""
    common = max((estimate.sides[0].pooled_freedom for estimate in estimates), default=0)
    alike = [bool(common) and all(side.pooled_freedom == common for side in one.sides) for one in estimates]
    pooled = [one for one, is_alike in zip(estimates, alike, strict=True) if is_alike and one.variance_of_runs]
    # What samples and the order of runs add is as if it were independent: then the correction is larger.
    freedom = max((common * (one.variance / one.variance_of_runs) ** 2 for one in pooled), default=math.inf)
    shares = [one.sides[0].variance / one.variance if one in pooled else None for one in estimates]
    return dunnett(p_values, shares, freedom)


def _decided(
    comparison: UncorrectedComparison, estimate: Estimate, looks: Looks, num_planned: int | None, num_tests: int,
    p_different: float, p_equal: float, p_alone: float,
) -> MeasureComparison:  # fmt: skip
    """Return a comparison over runs with its outcome.

    `p_different` and `p_equal` are corrected for looks and for the number of tests, `p_alone` for looks alone.
    """
    finding, level = comparison.finding, last_level(ALPHA, looks)
    if len(looks) > 1:
        finding = with_interval(finding, estimate, 1 - level)
    finding = replace(finding, p_different=p_different, p_equal=p_equal, look=len(looks), level=level)
    if p_equal <= ALPHA:
        return replace(finding, outcome="equal")
    if p_different <= ALPHA:
        return replace(finding, outcome="different", is_better=estimate.value * comparison.sign > 0)
    twice = 2 * looks[-1][0]  # the information of a next look
    share = max(looks[-1][1], spent_share(twice, looks[0][0], num_planned))
    next_level = last_level(ALPHA / num_tests, (*looks, (twice, share)))
    to_tell, to_equal, num_samples = plan(estimate, comparison.limit, next_level)

    def why() -> Code:
        confounded = comparison.unadjusted if finding.order is not None and finding.order.is_confounded else None
        limits = -comparison.limit, comparison.limit
        if confounded and min(confounded.p_different(), confounded.p_equal(*limits)) <= ALPHA:
            return "order_confounded"
        if estimate.scope == "runs" and estimate.shared and replace(estimate, shared=0.0).p_different() <= ALPHA:
            return "negative_control"
        if p_alone <= ALPHA:
            return "many_comparisons"
        if estimate.p_different() <= ALPHA:
            return "repeated_looks"
        return "too_few_runs" if num_samples is None else "too_few_samples"

    return replace(
        finding,
        outcome="cannot tell",
        runs_to_tell=to_tell,
        runs_to_equal=to_equal,
        num_samples_needed=num_samples,
        code=why(),
    )
