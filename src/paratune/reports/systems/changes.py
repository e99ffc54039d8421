"""The change of a measure from a baseline to configurations: the one estimate of all tables, next to the verdicts."""

from collections.abc import Sequence

from paratune.reports.measures import Measure
from paratune.verdicts import Group, MeasureComparison
from paratune.verdicts.speeds import Rates, changes_of

_OF_TIME = ("rate", "ms", "s")


def changes(
    measure: Measure, base: Group, others: Sequence[Group], sides: Sequence[tuple[Rates, Rates]] | None = None
) -> list[MeasureComparison]:
    """Return the ratio of a measure to the baseline's for each configuration, with its interval and no outcome.

    Times and rates have the variances and the adjustment of verdicts on speed, all else has those of the two alone.
    `sides` are the values of the runs of the baseline and of each other one, where they are not those of the measure.
    """
    if sides is None:
        first = [measure.of(run) for run in base.runs]
        sides = [(first, [measure.of(run) for run in other.runs]) for other in others]
    return changes_of(base, others, measure.key, sides, is_speed=measure.unit in _OF_TIME)
