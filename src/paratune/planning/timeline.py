"""The allocations of a pass in their order, to which the memory of an engine can be added.

A change allocates or frees memory. Position `p` is the moment after the first `p` changes.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class Mark(NamedTuple):
    """An event between two changes."""

    position: int
    kind: str
    """forward or backward (a block begins), forward_end (a block ends), inner_end (the backward pass of all blocks has
    ended), or gradient (the gradient of a parameter is complete)."""
    number: int
    """Number of the block, or of the parameter."""


class Delta(NamedTuple):
    """Memory that an engine allocates, or frees if it is negative."""

    position: int
    term: str
    num_bytes: int


@dataclass(frozen=True)
class Timeline:
    """Allocations of a traced forward and backward pass."""

    sizes: tuple[int, ...] = ()
    """Bytes of each allocation, not rounded."""
    changes: tuple[int, ...] = ()
    """Number n of an allocation when it is made, and its complement (~n) when it is freed."""
    marks: tuple[Mark, ...] = ()
    num_forward: int = 0
    """Changes of the forward pass."""
    gradients: Mapping[int, int] = field(default_factory=dict)
    """Number of the parameter, by the number of the allocation of its gradient."""
    casts: frozenset[int] = frozenset()
    """Allocations of weights in the lower precision of autocast."""

    def positions(self, kind: str) -> dict[int, int]:
        """Return the position of the last mark of a kind for each block or parameter."""
        return {mark.number: mark.position for mark in self.marks if mark.kind == kind}

    def level(self, rounding: int, *, without: Collection[int] = ()) -> np.ndarray:
        """Return the allocated bytes before the first change and after each change.

        Every allocation is rounded up to a multiple of `rounding` bytes; those with numbers in `without` are left out.
        """
        sizes = np.array([rounded(size, rounding) for size in self.sizes], dtype=np.int64)
        sizes[list(without)] = 0
        changes = np.array(self.changes, dtype=np.int64)
        made = changes >= 0
        steps = np.where(made, sizes[np.where(made, changes, ~changes)], -sizes[np.where(made, changes, ~changes)])
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(steps)])

    def span(self, number: int) -> tuple[int, int]:
        """Return the positions between which an allocation exists."""
        made = self.changes.index(number) + 1
        dropped = ~number
        return made, self.changes.index(dropped) if dropped in self.changes else len(self.changes)


def rounded(num_bytes: int, rounding: int) -> int:
    """Return a size rounded up as by an allocator."""
    return -(-num_bytes // rounding) * rounding


class Moment(NamedTuple):
    """The moment of the peak."""

    position: int
    total: int
    deltas: dict[str, int]
    """Memory of engines at this moment, in bytes by term."""


def find_fullest(level: np.ndarray, deltas: Sequence[Delta]) -> Moment:
    """Return the moment at which the sum of allocations and engine memory is largest.

    Changes of engines at equal positions happen in their order, after the change that leads to the position.
    """
    order = sorted(range(len(deltas)), key=lambda at: deltas[at].position)
    positions = np.array([deltas[at].position for at in order], dtype=np.int64)
    sums = np.concatenate([[0], np.cumsum([deltas[at].num_bytes for at in order])]).astype(np.int64)
    # After each change: all deltas of earlier positions; after each delta: the level of its position.
    after_changes = level + sums[np.searchsorted(positions, np.arange(len(level)), side="left")]
    after_deltas = level[positions] + sums[1:] if len(deltas) else np.array([-1])
    position, delta = int(after_changes.argmax()), int(after_deltas.argmax())
    if after_deltas[delta] > after_changes[position]:
        position, num = int(positions[delta]), delta + 1
    else:
        num = int(np.searchsorted(positions, position, side="left"))
    taken: dict[str, int] = {}
    for at in order[:num]:
        taken[deltas[at].term] = taken.get(deltas[at].term, 0) + deltas[at].num_bytes
    return Moment(position, int(level[position]) + int(sums[num]), taken)
