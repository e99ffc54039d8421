"""Comparisons of speed, adjusted for the order of the runs where it matters."""

import math
from collections.abc import Sequence
from dataclasses import replace

from paratune.verdicts.finding import UncorrectedComparison, with_interval
from paratune.verdicts.groups import Group
from paratune.verdicts.order import RunTime, has_to_adjust, order_effect, order_model, run_time

Rates = Sequence[float | None]


def adjust_for_order(
    base: Group,
    others: Sequence[Group],
    rates: Sequence[tuple[Rates, Rates]],
    measured: Sequence[UncorrectedComparison],
) -> list[UncorrectedComparison]:
    """Return comparisons with the effect of the order of runs, and adjusted for it where `has_to_adjust` requires it.

    Comparisons of different measures (speed, goodput) are adjusted separately. A comparison without an estimate, or of
    runs without time stamps, is returned unchanged.

    Args:
        rates: Of each other configuration: the baseline's rates, and its own.
        measured: Of each other configuration.
    """
    adjusted = list(measured)
    base_times = _times(base)
    for measure in {comparison.finding.measure for comparison in measured}:
        places = [
            place
            for place, comparison in enumerate(measured)
            if comparison.finding.measure == measure and comparison.estimate is not None and _times(others[place])
        ]
        if not (base_times and places):
            continue
        times = [base_times, *(_times(others[place]) for place in places)]
        logs = [_logs(rates[places[0]][0]), *(_logs(rates[place][1]) for place in places)]
        if (model := order_model(logs, times)) is None:
            continue
        adjusts = has_to_adjust(model, times)
        for number, place in enumerate(places, start=1):
            comparison = measured[place]
            finding = replace(comparison.finding, order=order_effect(model, number, times, is_adjusted=adjusts))
            adjusted[place] = replace(comparison, finding=finding)
            if adjusts:
                estimate = model.estimate(logs, number)
                finding = with_interval(finding, estimate)
                adjusted[place] = replace(
                    comparison, finding=finding, estimate=estimate, unadjusted=comparison.estimate
                )
    return adjusted


def _times(group: Group) -> list[RunTime]:
    """Return the times of all runs of a configuration; none where one is unknown."""
    times = [run_time(run) for run in group.runs]
    known = [time for time in times if time is not None]
    return known if len(known) == len(times) else []


def _logs(rates: Rates) -> list[float]:
    return [math.log(rate) for rate in rates if rate is not None]
