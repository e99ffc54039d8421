"""The confusion matrix in records: rows of counts or, for many classes, only the counts above zero."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

MAX_DENSE_CLASSES = 200
"""Matrices of more classes are recorded as lists of their counts above zero, at most one for each row of the split."""


@dataclass(frozen=True)
class Confusion:
    """Rows of a split by true and predicted class."""

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
        """Return the value of `confusion` in records."""
        if self.num_classes <= MAX_DENSE_CLASSES:
            classes = range(self.num_classes)
            return [[self.counts.get((true, predicted), 0) for predicted in classes] for true in classes]
        counts = [[*pair, self.counts[pair]] for pair in sorted(self.counts)]
        return {"num_classes": self.num_classes, "counts": counts}


def read_confusion(value: object) -> Confusion | None:
    """Return the matrix of a record, from either layout; None where it is absent or damaged."""
    if isinstance(value, dict):
        size, rows = value.get("num_classes"), value.get("counts")
        if type(size) is int and isinstance(rows, list) and all(_are_counts(row, 3) for row in rows):
            return _in_range(size, (((true, predicted), count) for true, predicted, count in rows))
    elif isinstance(value, list) and value and all(_are_counts(row, len(value)) for row in value):
        cells = (((true, given), count) for true, row in enumerate(value) for given, count in enumerate(row) if count)
        return _in_range(len(value), cells)
    return None


def _are_counts(row: object, size: int) -> bool:
    return isinstance(row, list) and len(row) == size and all(type(count) is int and count >= 0 for count in row)


def _in_range(num_classes: int, cells: Iterable[tuple[tuple[int, int], int]]) -> Confusion | None:
    counts = dict(cells)
    return Confusion(num_classes, counts) if all(max(pair) < num_classes for pair in counts) else None
