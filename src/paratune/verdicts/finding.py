"""What is found of one measure of two configurations."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paratune.verdicts.estimate import ALPHA, Estimate, holm
from paratune.verdicts.planning import RunRange, plan

Outcome = Literal["different", "equal", "cannot tell", "n/a"]


@dataclass(frozen=True)
class MeasureComparison:
    """A measure of a configuration beside that of the baseline."""

    measure: str
    """`speed`, `goodput`, or a metric; of other figures, their name."""
    is_ratio: bool
    """Whether the change is that of a ratio (0.27: 27% more), and not a difference."""
    baseline: float | None
    """The baseline's: mean over its runs, of ratios the geometric one; in its own unit. Of runs that are compared as
    pairs only those in a pair count, here and in all that follows."""
    value: float | None
    """The other's."""
    num_runs: tuple[int, int]
    """Of the baseline and of the other: seeds of a score, runs of all else."""
    change: float | None = None
    low: float | None = None
    """Lower end of its 95% interval; None where there is none, and `reason` says why."""
    high: float | None = None
    outcome: Outcome = "n/a"
    is_better: bool | None = None
    """Of what is different, whether it is the better side."""
    margin: float | None = None
    """Largest change that counts as none, in the unit of `change`."""
    p_different: float | None = None
    """Of "there is no change"; held to 5%, after Holm where several configurations are compared; None over samples."""
    p_equal: float | None = None
    """Of "the change is as large as the margin"; likewise."""
    standard_error: float | None = None
    """Of the change; of a ratio, of its logarithm."""
    degrees_of_freedom: float | None = None
    scope: str | None = None
    """Over what the interval is: runs; seeds and samples; seeds (on these samples); samples (of these models)."""
    is_paired: bool | None = None
    num_samples: int = 0
    runs_to_tell: RunRange | None = None
    """Of what cannot be told: runs a side, those at hand included, that would tell a change of the size found."""
    runs_to_equal: RunRange | None = None
    """Likewise, that would show a change of 0 to be inside of the margin."""
    num_samples_needed: int | None = None
    """Samples to be scored at least, where no number of runs would tell with those at hand."""
    reason: str | None = None
    """Why there is no interval, or why more cannot be said."""

    @property
    def is_guess(self) -> bool:
        """Whether the numbers of runs rest on a variance of two runs."""
        freedom = self.degrees_of_freedom
        return min(self.num_runs) == 2 and freedom is not None and freedom < 3


@dataclass(frozen=True)
class UncorrectedComparison:
    """A finding before it is known how many others it stands beside."""

    finding: MeasureComparison
    estimate: Estimate | None = None
    sign: int = 1
    """1 where more is better, -1 where less is."""


def decide(measured: Sequence[UncorrectedComparison]) -> list[MeasureComparison]:
    """Return findings of one measure, of several configurations against one baseline, with their outcomes.

    "equal" goes before "different": a change that is there, and smaller than the margin, counts as none.

    Args:
        measured: One a configuration; those without an estimate stay as they are, and those over samples alone cannot
            be told.
    """
    # Samples alone say nothing of other seeds: what is no test is not among those that Holm counts.
    known = [
        (position, one, one.estimate)
        for position, one in enumerate(measured)
        if one.estimate is not None and one.estimate.sides
    ]
    limits = [_limits(one.finding) for _, one, _ in known]
    different = holm([estimate.p_different() for _, _, estimate in known])
    equal = holm([estimate.p_equal(*limit) for (_, _, estimate), limit in zip(known, limits, strict=True)])
    findings = [
        one.finding if one.estimate is None else replace(one.finding, outcome="cannot tell") for one in measured
    ]
    for place, (position, one, estimate) in enumerate(known):
        found = replace(one.finding, p_different=different[place], p_equal=equal[place])
        findings[position] = _decided(found, estimate, one.sign, ALPHA / len(known))
    return findings


def with_interval(finding: MeasureComparison, estimate: Estimate) -> MeasureComparison:
    """Return a finding with the change, its interval, and how these were found."""
    low, high = estimate.interval()
    as_change = math.expm1 if finding.is_ratio else float
    return replace(
        finding,
        change=as_change(estimate.value),
        low=as_change(low),
        high=as_change(high),
        standard_error=estimate.standard_error,
        degrees_of_freedom=estimate.degrees_of_freedom if math.isfinite(estimate.degrees_of_freedom) else None,
        scope=estimate.scope,
        is_paired=len(estimate.sides) == 1 if estimate.sides else None,
        num_samples=estimate.num_rows or estimate.num_samples,
    )


def _limits(finding: MeasureComparison) -> tuple[float, float]:
    """Return the margin on the scale of the estimate; of a ratio both ways the same factor."""
    assert finding.margin is not None
    limit = math.log1p(finding.margin) if finding.is_ratio else finding.margin
    return -limit, limit


def _decided(found: MeasureComparison, estimate: Estimate, sign: int, alpha: float) -> MeasureComparison:
    assert found.p_equal is not None
    assert found.p_different is not None
    if found.p_equal <= ALPHA:
        return replace(found, outcome="equal")
    if found.p_different <= ALPHA:
        return replace(found, outcome="different", is_better=estimate.value * sign > 0)
    needed = plan(estimate, _limits(found)[1], alpha)
    return replace(
        found,
        outcome="cannot tell",
        runs_to_tell=needed.different,
        runs_to_equal=needed.equal,
        num_samples_needed=needed.num_samples,
    )
