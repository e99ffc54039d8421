from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paratune.stages.balance import balance_blocks, spans_of_sizes
from paratune.stages.cut import BlockSpan


def sizes(spans: list[BlockSpan] | None) -> list[int] | None:
    return spans and [span.end - span.begin for span in spans]


@pytest.mark.parametrize(
    ("costs", "num_stages", "expected"),
    [
        ([1] * 12, 4, [3, 3, 3, 3]),
        ([1, 1, 1, 9], 2, [3, 1]),
        ([1, 2, 3, 4, 5], 3, [3, 1, 1]),
        ([1, 1, 1], 3, [1, 1, 1]),
    ],
)
def test_the_slowest_stage_is_as_fast_as_possible(costs, num_stages, expected):
    assert sizes(balance_blocks(costs, num_stages)) == expected


@given(costs=st.lists(st.integers(0, 9), min_size=1, max_size=7), data=st.data())
def test_no_other_division_has_a_smaller_largest_stage(costs, data):
    num_stages = data.draw(st.integers(1, len(costs)))
    spans = balance_blocks(costs, num_stages)
    assert (spans[0].begin, spans[-1].end) == (0, len(costs))
    assert all(left.end == right.begin and left.begin < left.end for left, right in pairwise(spans))
    largest = max(sum(costs[span.begin : span.end]) for span in spans)
    # Every way to choose where stages begin.
    ways = combinations(range(1, len(costs)), num_stages - 1)
    least = min(max(sum(costs[a:b]) for a, b in pairwise([0, *way, len(costs)])) for way in ways)
    assert largest == least


def test_only_possible_cuts_are_used():
    assert sizes(balance_blocks([1, 1, 1, 1], 2, {1, 3})) in ([1, 3], [3, 1])
    assert balance_blocks([1, 1, 1, 1], 3, {3}) is None


def test_configured_sizes_of_stages_are_used():
    assert spans_of_sizes([1, 3]) == [BlockSpan(0, 1), BlockSpan(1, 4)]
