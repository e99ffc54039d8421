"""One variance for the runs of several configurations, where they vary alike.

Two configurations with three runs each have 4 degrees of freedom for their variances; nine have 18 for a common
variance, and so detect differences that a pair does not detect.
"""

from collections.abc import Sequence
from dataclasses import replace

from paratune.verdicts.estimate import Side
from paratune.verdicts.finding import UncorrectedComparison, with_interval

QUANTILE, BASELINE_QUANTILE = 0.99, 0.95
"""Of the F distribution: a configuration whose variance is above this many times that of the others keeps its own. The
baseline's is in all comparisons, so it leaves the pool earlier. Chosen by simulation: docs/explanation/verdicts.md."""


def pool(measured: Sequence[UncorrectedComparison]) -> list[UncorrectedComparison]:
    """Return comparisons with the common variance of the configurations that vary alike; others keep their own.

    The comparisons are of one baseline. Those without two runs on each side, or of a figure that fewer than three
    configurations have, stay as they are.
    """
    pooled = list(measured)
    for measure in {comparison.finding.measure for comparison in measured}:
        estimates = {
            place: comparison.estimate
            for place, comparison in enumerate(measured)
            if comparison.finding.measure == measure and comparison.estimate and len(comparison.estimate.sides) == 2
        }
        bases = {estimate.sides[0] for estimate in estimates.values()}
        if len(estimates) < 2 or len(bases) > 1:
            continue
        base, *others = common_sides([*bases, *(estimate.sides[1] for estimate in estimates.values())])
        for (place, estimate), other in zip(estimates.items(), others, strict=True):
            common = replace(estimate, sides=(base, other))
            finding = with_interval(measured[place].finding, common)
            pooled[place] = replace(measured[place], finding=finding, estimate=common)
    return pooled


def common_sides(sides: Sequence[Side]) -> list[Side]:
    """Return the sides, the baseline's first; those that vary alike with their common variance."""
    from scipy import special

    alike = list(range(len(sides)))
    while len(alike) > 2:
        largest = max(alike, key=lambda place: sides[place].mean_square)
        rest, freedom = _pooled([sides[place] for place in alike if place != largest])
        limit = special.fdtri(sides[largest].degrees_of_freedom, freedom, QUANTILE if largest else BASELINE_QUANTILE)
        if sides[largest].mean_square <= limit * rest:
            break
        alike.remove(largest)
    mean_square, freedom = _pooled([sides[place] for place in alike])
    common = list(sides)
    for place in alike:
        common[place] = replace(sides[place], mean_square=mean_square, pooled_freedom=freedom)
    return common


def _pooled(sides: Sequence[Side]) -> tuple[float, float]:
    """Return the mean variance of a run, and its degrees of freedom."""
    freedom = sum(side.degrees_of_freedom for side in sides)
    return sum(side.mean_square * side.degrees_of_freedom for side in sides) / freedom, freedom
