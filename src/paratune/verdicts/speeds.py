"""Speeds of configurations, compared with each other: one variance, the order of runs, and the negative control."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from paratune.base.grouping import grouped
from paratune.verdicts.estimate import Estimate, Side, moments
from paratune.verdicts.finding import MeasureComparison, UncorrectedComparison, with_interval
from paratune.verdicts.groups import Group
from paratune.verdicts.margins import SPEED
from paratune.verdicts.order import OrderModel, RunTime, order_effect, order_model, run_time
from paratune.verdicts.placebo import NegativeControl, is_of_a_step, negative_control
from paratune.verdicts.pooling import common_sides
from paratune.verdicts.ratios import ratio

Rates = Sequence[float | None]
BASELINE_FACTOR = 2.0
"""The baseline's own variance counts so many times where it is above the common one: it is in all comparisons. Chosen
by simulation: benchmarks/verdicts_202611.md, section Speed."""
OWN_QUANTILE = 0.999
"""Of the F distribution: a configuration that varies more has its own degrees of freedom, too."""
LEAST_FREEDOM = 0.5
"""Degrees of freedom that a regression leaves a configuration, from which it has a variance of its own."""


@dataclass(frozen=True, eq=False)
class Speeds:
    """The logarithms of the rates of configurations with two runs or more, the baseline first."""

    logs: list[list[float]]
    """Without what the order of the runs explains, where `is_adjusted`."""
    sides: list[Side]
    """With one variance for those that vary alike."""
    pair_sides: list[Side]
    """The same for the comparison of two of them; see `sides_of_pairs`."""
    model: OrderModel | None
    """None where the times of a run are not recorded, or there are too few runs."""
    is_adjusted: bool
    control: NegativeControl | None
    """None where all configurations may differ."""

    def change(self, pairs: Sequence[tuple[int, int]], sides: Sequence[Side] | None = None) -> Estimate:
        """Return the mean over pairs of configurations of the change from the first to the second."""
        weight = 1 / len(pairs)
        places = [place for pair in pairs for place in pair]
        means = {place: moments(self.logs[place])[0] for place in places}
        of_places = [(sides or self.sides)[place] for place in places]
        scaled = tuple(replace(side, mean_square=side.mean_square * weight**2) for side in of_places)
        value = math.fsum(means[other] - means[base] for base, other in pairs) * weight
        estimate = Estimate(value, scaled, 0.0, 0, "runs")
        if self.control is not None and self.control.variance:
            estimate = replace(
                estimate, shared=2 * self.control.variance * weight, num_samples=self.control.freedom + 1
            )
        if self.model is None or not self.is_adjusted:
            return estimate
        apart = sum(self.model.difference(base, other) for base, other in pairs) * weight
        drift = float(apart @ self.model.covariance @ apart)
        return replace(estimate, drift=drift, drift_freedom=self.model.freedom)

    def compared(self, comparison: UncorrectedComparison, place: int) -> UncorrectedComparison:
        """Return a comparison of the baseline with the configuration at `place`, with these variances."""
        finding = replace(comparison.finding, control=self.control)
        if self.model is not None:
            finding = replace(finding, order=order_effect(self.model, place, is_adjusted=self.is_adjusted))
        if comparison.estimate is None:
            return replace(comparison, finding=finding)
        estimate = self.change([(0, place)], self.pair_sides)
        unadjusted = comparison.estimate if self.is_adjusted else None
        return replace(comparison, finding=with_interval(finding, estimate), estimate=estimate, unadjusted=unadjusted)


def speeds_of(groups: Sequence[Group], rates: Sequence[Rates], measures: Sequence[str] | None = None) -> Speeds:
    """Return the speeds of configurations; all rates are known and above 0, and each has at least 2.

    `measures` are those of the rates, by default samples/s. Goodput and times of whole runs are in no negative control.
    """
    logs = [[math.log(rate) for rate in some if rate] for some in rates]
    times = [known for group in groups if len(known := _times(group)) == len(group.runs)]
    model = order_model(logs, times) if len(times) == len(groups) else None
    is_adjusted = model is not None and model.has_to_adjust
    sides = [Side(moments(some)[1], len(some)) for some in logs]
    if model is not None and is_adjusted:
        logs = [model.adjusted(some, place) for place, some in enumerate(logs)]
        sides = list(_sides_of(model, logs))
    pooled = common_sides(sides) if len(groups) > 2 and not sides[0].pooled_freedom else sides
    are_of_steps = [is_of_a_step(measure) for measure in measures or [SPEED] * len(groups)]
    classes = [group.step_class if counts else None for group, counts in zip(groups, are_of_steps, strict=True)]
    control = negative_control(logs, classes)
    return Speeds(logs, pooled, sides_of_pairs(sides, pooled), model, is_adjusted, control)


def _sides_of(model: OrderModel, logs: Sequence[Sequence[float]]) -> Iterator[Side]:
    """Yield the variance of each configuration after the regression; the common one where it leaves too little."""
    freedoms = [len(some) - 1 - part for some, part in zip(logs, model.leverages, strict=True)]
    for some, freedom in zip(logs, freedoms, strict=True):
        if len(logs) == 2 or model.is_confounded or min(freedoms) < LEAST_FREEDOM:
            yield Side(model.mean_square, len(some), pooled_freedom=model.freedom)
        else:
            square = moments(some)[1] * (len(some) - 1) / freedom
            yield Side(square, len(some), own_freedom=freedom)


def sides_of_pairs(sides: Sequence[Side], pooled: Sequence[Side]) -> list[Side]:
    """Return the sides for the comparison of two configurations, the baseline's first.

    With few runs a larger variance is often not recognised by a test. So a configuration has the larger one of the
    common variance and of its own; far above the common one it also has its own degrees of freedom.

    Args:
        sides: Each with its own variance.
        pooled: The same, with one variance for those that vary alike; equal to `sides` where nothing is pooled.
    """
    from scipy import special

    alike = next((side for side in pooled if side.pooled_freedom), None)
    if alike is None or sides[0].pooled_freedom:
        return list(pooled)
    found = []
    for place, (side, shared) in enumerate(zip(sides, pooled, strict=True)):
        limit = float(special.fdtri(side.degrees_of_freedom, alike.pooled_freedom, OWN_QUANTILE)) * alike.mean_square
        own = side.mean_square * (1 if place else BASELINE_FACTOR)
        is_apart = not shared.pooled_freedom and side.mean_square > limit
        larger = replace(side, mean_square=max(alike.mean_square, own), pooled_freedom=alike.pooled_freedom)
        found.append(side if is_apart else larger)
    return found


def compare_speeds(
    base: Group, others: Sequence[Group], rates: Sequence[tuple[Rates, Rates]],
    measured: Sequence[UncorrectedComparison],
) -> list[UncorrectedComparison]:  # fmt: skip
    """Return comparisons with the variances of all configurations together; those without rates stay as they are.

    Speed and goodput are together where the baseline has the same figures in both: its batch is the reference.

    Args:
        rates: Of each other configuration: the baseline's rates, and its own.
        measured: Of each other configuration.
    """
    compared = list(measured)
    known = [
        place
        for place, comparison in enumerate(measured)
        if (comparison.estimate is not None or comparison.finding.code == "placebo")
        and all(len(side) > 1 and all(rate and rate > 0 for rate in side) for side in rates[place])
    ]
    for first, places in grouped((tuple(rates[place][0]), place) for place in known).items():
        measures = [measured[place].finding.measure for place in places]
        groups = [base, *(others[place] for place in places)]
        of_base = SPEED if SPEED in measures else measures[0]
        speeds = speeds_of(groups, [first, *(rates[place][1] for place in places)], [of_base, *measures])
        for number, place in enumerate(places, start=1):
            compared[place] = speeds.compared(measured[place], number)
    return compared


def changes_of(
    base: Group, others: Sequence[Group], measure: str, rates: Sequence[tuple[Rates, Rates]]
) -> list[MeasureComparison]:
    """Return the ratios of a time or a rate of configurations to a baseline's, with the intervals of verdicts."""
    measured = [ratio(measure, base, other, *sides) for other, sides in zip(others, rates, strict=True)]
    return [comparison.finding for comparison in compare_speeds(base, others, rates, measured)]


def _times(group: Group) -> list[RunTime]:
    return [time for run in group.runs if (time := run_time(run)) is not None]
