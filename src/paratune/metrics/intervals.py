"""Times in which something runs, as lists of (begin, end): their union, and what of them nothing else covers."""

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same times as intervals that are apart, ascending; empty ones are left out."""
    found: list[Interval] = []
    for begin, end in sorted(each for each in intervals if each[1] > each[0]):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def intersection(one: Sequence[Interval], other: Sequence[Interval]) -> list[Interval]:
    """Return the times that are in both; each is a result of `union`."""
    found, at, of = [], 0, 0
    while at < len(one) and of < len(other):
        begin, end = max(one[at][0], other[of][0]), min(one[at][1], other[of][1])
        if begin < end:
            found.append((begin, end))
        if one[at][1] < other[of][1]:
            at += 1
        else:
            of += 1
    return found


def length(intervals: Iterable[Interval]) -> float:
    """Return the sum of lengths; of intervals that are apart, the time that they cover."""
    return sum(end - begin for begin, end in intervals)
