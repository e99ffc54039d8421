"""One variance for the runs of several configurations, where they vary alike.

Two configurations with three runs each have 4 degrees of freedom for their variances; nine have 18 for a common
variance, and so detect differences that a pair does not detect.
"""

from collections.abc import Sequence
from dataclasses import replace

from paratune.verdicts.estimate import Estimate, Side
from paratune.verdicts.finding import UncorrectedComparison, with_interval

QUANTILE, BASELINE_QUANTILE = 0.99, 0.95
"""Of the F distribution: a configuration whose variance is above this many times that of the others keeps its own. The
baseline's is in all comparisons, so it leaves the pool earlier. Chosen by simulation: docs/explanation/verdicts.md."""


def pool(measured: Sequence[UncorrectedComparison]) -> list[UncorrectedComparison]:
    """Return comparisons of speed with the common variance of the configurations that vary alike.

    The comparisons are of one baseline. Samples/s and goodput, which is the baseline's samples/s where its batch is the
    reference, are pooled together if the baseline has the same figures in both, else each for itself. A configuration
    that varies more keeps its own variance; so do two configurations alone, and those without two runs on each side.
    """
    pooled = list(measured)
    places = [place for place, comparison in enumerate(measured) if comparison.estimate and comparison.estimate.sides]
    families = [places]
    if len({_base(measured[place]) for place in places}) > 1:
        measures = dict.fromkeys(measured[place].finding.measure for place in places)
        families = [[at for at in places if measured[at].finding.measure == measure] for measure in measures]
    for family in families:
        if len(family) < 2 or len({_base(measured[place]) for place in family}) > 1:
            continue
        estimates = [estimate for place in family if (estimate := measured[place].estimate) is not None]
        for place, estimate in zip(family, with_common_variance(estimates), strict=True):
            finding = with_interval(measured[place].finding, estimate)
            pooled[place] = replace(measured[place], finding=finding, estimate=estimate)
    return pooled


def _base(comparison: UncorrectedComparison) -> Side | None:
    return comparison.estimate.sides[0] if comparison.estimate else None


def with_common_variance(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Return changes from one baseline, each with two sides, with the common variance of the sides that vary alike."""
    common = common_sides([estimates[0].sides[0], *(estimate.sides[1] for estimate in estimates)])

    def joined(side: Side, pooled: Side) -> Side:
        return replace(side, mean_square=pooled.mean_square, pooled_freedom=pooled.pooled_freedom)

    return [
        replace(estimate, sides=(joined(estimate.sides[0], common[0]), joined(estimate.sides[1], other)))
        for estimate, other in zip(estimates, common[1:], strict=True)
    ]


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
