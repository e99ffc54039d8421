"""Assigns blocks to stages so that the slowest stage is as fast as possible."""

import math
from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise

from paratune.stages.cut import BlockSpan


def balance_blocks(
    costs: Sequence[float], num_stages: int, cuts: Collection[int] | None = None
) -> list[BlockSpan] | None:
    """Divide blocks into contiguous stages so that the largest cost of a stage is as small as possible.

    Costs have any unit. Each stage gets at least one block, and begins at one of `cuts`; None allows all blocks.

    Returns:
        The stages; None if there are too few cuts.

    Source: the linear partition problem, by dynamic programming; O(stages x blocks^2).
    """
    num_blocks = len(costs)
    allowed = set(range(1, num_blocks)) if cuts is None else set(cuts)
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    # largest[n]: the smallest possible cost of the largest stage for the first n blocks; begins: the first block of
    # their last stage.
    largest, begins = list(sums), []
    for stage in range(1, num_stages):
        following, begin = [math.inf] * (num_blocks + 1), [0] * (num_blocks + 1)
        for end in range(stage + 1, num_blocks + 1):
            options = [(max(largest[cut], sums[end] - sums[cut]), cut) for cut in range(stage, end) if cut in allowed]
            following[end], begin[end] = min(options, default=(math.inf, 0))
        largest = following
        begins.append(begin)
    if math.isinf(largest[num_blocks]):
        return None
    bounds = [num_blocks]
    for begin in reversed(begins):
        bounds.append(begin[bounds[-1]])
    bounds = [0, *reversed(bounds)]
    return [BlockSpan(begin, end) for begin, end in pairwise(bounds)]


def spans_of_sizes(sizes: Sequence[int]) -> list[BlockSpan]:
    """Return stages with the given numbers of blocks."""
    return [BlockSpan(begin, end) for begin, end in pairwise(accumulate(sizes, initial=0))]
