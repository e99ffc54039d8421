"""What is allocated and freed in the course of a pass, in its order, so that any engine's memory can be laid over it.

Positions count changes: at position `p` the first `p` of them have happened.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class Mark(NamedTuple):
    """Something that happened between two changes."""

    position: int
    kind: str
    """forward or backward (of a block begins), forward_end (of a block), inner_end (all blocks are done with in the
    backward pass), or gradient (a parameter's is whole)."""
    number: int
    """Of the block, or of the parameter."""


class Delta(NamedTuple):
    """What an engine takes, or gives back where it is negative."""

    position: int
    term: str
    num_bytes: int


@dataclass(frozen=True)
class Timeline:
    """Allocations of a traced forward and backward pass."""

    sizes: tuple[int, ...] = ()
    """Bytes of each allocation, not rounded."""
    changes: tuple[int, ...] = ()
    """Number of the allocation that is made; its complement (~n) when it is freed."""
    marks: tuple[Mark, ...] = ()
    num_forward: int = 0
    """Changes of the forward pass."""
    gradients: Mapping[int, int] = field(default_factory=dict)
    """Parameter of each allocation that became its gradient, by their numbers."""
    casts: frozenset[int] = frozenset()
    """Allocations that are weights in the lower precision of autocast."""

    def positions(self, kind: str) -> dict[int, int]:
        """Return where each block or parameter has a mark of a kind; the last one where there are several."""
        return {mark.number: mark.position for mark in self.marks if mark.kind == kind}

    def level(self, rounding: int, *, without: Collection[int] = ()) -> np.ndarray:
        """Return the bytes alive before the first change and after each.

        Args:
            rounding: Bytes to a multiple of which every allocation is rounded.
            without: Numbers of allocations that are left out.
        """
        sizes = np.array([rounded(each, rounding) for each in self.sizes], dtype=np.int64)
        sizes[list(without)] = 0
        changes = np.array(self.changes, dtype=np.int64)
        made = changes >= 0
        steps = np.where(made, sizes[np.where(made, changes, ~changes)], -sizes[np.where(made, changes, ~changes)])
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(steps)])

    def span(self, number: int) -> tuple[int, int]:
        """Return the positions between which an allocation is alive."""
        made = self.changes.index(number) + 1
        dropped = ~number
        return made, self.changes.index(dropped) if dropped in self.changes else len(self.changes)

    def same_course(self, other: "Timeline") -> bool:
        """Say whether everything happened in the same order, only with other sizes."""
        return self.changes == other.changes and self.marks == other.marks


def rounded(num_bytes: int, rounding: int) -> int:
    """Return a size as an allocator takes it."""
    return -(-num_bytes // rounding) * rounding


class Moment(NamedTuple):
    """The fullest one."""

    position: int
    total: int
    deltas: dict[str, int]
    """By term, what engines have taken until then."""


def fullest(level: np.ndarray, deltas: Sequence[Delta]) -> Moment:
    """Return the moment at which what is alive and what engines take are most together.

    Args:
        level: Of `Timeline.level`.
        deltas: In their order, where positions are equal; they happen after the change that leads to the position.
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
