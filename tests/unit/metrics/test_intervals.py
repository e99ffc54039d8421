"""Intervals by hand."""

from paratune.metrics.intervals import intersection, length, union


def test_a_union_covers_each_time_once():
    assert union([(5, 6), (0, 2), (1, 3), (3, 4), (7, 7), (9, 8), (0.5, 1)]) == [(0, 4), (5, 6)]
    assert union([]) == []
    assert length(union([(0, 2), (1, 3), (5, 6)])) == 4


def test_an_intersection_is_the_time_in_both():
    first, other = [(0, 4), (6, 10)], [(1, 2), (3, 7), (9, 12)]
    assert intersection(first, other) == [(1, 2), (3, 4), (6, 7), (9, 10)]
    assert intersection(other, first) == intersection(first, other)
    assert intersection(first, []) == []
    assert intersection([(0, 1)], [(1, 2)]) == []
