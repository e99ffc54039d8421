"""Ratios of rates, times and sizes between two configurations, on the scale of their logarithms."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from paratune.base.text import plain
from paratune.records.finished import RunRecord
from paratune.verdicts.estimate import unpaired
from paratune.verdicts.finding import MeasureComparison, UncorrectedComparison, with_interval
from paratune.verdicts.groups import Group, why_one
from paratune.verdicts.placebo import is_of_a_step


def change_of(
    base: Group, other: Group, measure: str, figure: Callable[[RunRecord], float | None]
) -> MeasureComparison:
    """Return the ratio of any figure of runs, such as a time or a peak of memory, with its interval and no outcome."""
    finding = ratio(measure, base, other, [*map(figure, base.runs)], [*map(figure, other.runs)]).finding
    return without_change(finding) if is_of_a_step(measure) and base.cannot_differ(other) else finding


def without_change(finding: MeasureComparison) -> MeasureComparison:
    """Return the figures of two configurations that cannot differ in them."""
    return MeasureComparison(
        finding.measure, finding.is_ratio, finding.baseline, finding.value, finding.num_runs, margin=finding.margin,
        code="placebo", reason="it cannot differ: the options that differ do not change a step",
    )  # fmt: skip


def ratio(
    measure: str, base: Group, other: Group, first: Sequence[float | None], second: Sequence[float | None]
) -> UncorrectedComparison:
    """Return the ratio of the geometric means of a figure over runs; None is a run for which it is unknown."""
    counts = len(first), len(second)
    unknown = [
        plain(run.name)
        for run, value in zip((*base.runs, *other.runs), (*first, *second), strict=True)
        if value is None or value <= 0
    ]
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        reason = f"unknown for {', '.join(unknown[:3])}{more}"
        return UncorrectedComparison(
            MeasureComparison(measure, True, None, None, counts, code="unknown_value", reason=reason)
        )
    logs = [[math.log(value) for value in side if value is not None] for side in (first, second)]
    a, b = fmean(logs[0]), fmean(logs[1])
    finding = MeasureComparison(measure, True, math.exp(a), math.exp(b), counts, change=math.expm1(b - a))
    too_few = why_one(*counts, "run")
    if too_few is not None:
        return UncorrectedComparison(replace(finding, code="one_run", reason=too_few))
    # Not paired by seed: the time of a run does not follow from its seed.
    estimate = unpaired(logs[0], logs[1], scope="runs")
    return UncorrectedComparison(with_interval(finding, estimate), estimate)
