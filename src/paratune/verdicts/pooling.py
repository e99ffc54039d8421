"""One variance for the runs of several configurations, where they vary alike.

Two configurations with three runs each have 4 degrees of freedom for their variances; nine have 18 for a common
variance, and so detect differences that a pair does not detect.
"""

from collections.abc import Sequence
from dataclasses import replace

from paratune.verdicts.estimate import Estimate, Side

CHANCE = 0.05
"""Of the F distribution: the largest of k variances that is above that of the others at 5% / k keeps its own. With a
higher chance the common variance of few runs is too small. The baseline's is in all comparisons: it has 5%, not 5% / k.
"""


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
        chance = CHANCE / len(alike) if largest else CHANCE
        limit = special.fdtri(sides[largest].degrees_of_freedom, freedom, 1 - chance)
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
