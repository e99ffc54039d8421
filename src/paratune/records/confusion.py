"""The confusion matrix in records: rows of counts or, for many classes, only the counts above zero."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

MAX_DENSE_CLASSES = 200
"""Matrices of more classes are recorded as lists of their counts above zero, at most one for each row of the split."""


@dataclass(frozen=True)
class Confusion:
    num_classes: int
    counts: Mapping[tuple[int, int], int]
    """Rows by the ids of the true and the predicted class; pairs without a row are absent."""

    @cached_property
    def row_sums(self) -> dict[int, int]:
        """Rows of each true class that occurs."""
        sums: dict[int, int] = {}
        for (true, _), count in self.counts.items():
            sums[true] = sums.get(true, 0) + count
        return sums

    @cached_property
    def confused(self) -> list[tuple[int, int, int]]:
        """True class, predicted class and rows of all pairs of different classes, the most frequent first."""
        pairs = [(true, predicted, count) for (true, predicted), count in self.counts.items() if true != predicted]
        return sorted(pairs, key=lambda pair: (-pair[2], pair[:2]))

    def record(self) -> list[list[int]] | dict[str, Any]:
        if self.num_classes <= MAX_DENSE_CLASSES:
            classes = range(self.num_classes)
            return [[self.counts.get((true, predicted), 0) for predicted in classes] for true in classes]
        counts = [[*pair, self.counts[pair]] for pair in sorted(self.counts)]
        return {"num_classes": self.num_classes, "counts": counts}


def read_confusion(value: Any) -> Confusion | None:
    """Return the matrix of a record, from either layout; None where it is absent or damaged."""
    try:
        if isinstance(value, dict):
            size, counts = value["num_classes"], {(true, given): count for true, given, count in value["counts"]}
        else:
            size = len(value) or None
            cells = [(true, given, count) for true, row in enumerate(value) for given, count in enumerate(row)]
            counts = {(true, given): count for true, given, count in cells if type(count) is not int or count != 0}
            if any(len(row) != size for row in value):
                return None
        numbers = [size, *counts.values(), *chain.from_iterable(counts)]
        is_whole = all(type(number) is int and number >= 0 for number in numbers)
    except (KeyError, TypeError, ValueError):
        return None
    return Confusion(size, counts) if is_whole and all(max(pair) < size for pair in counts) else None
