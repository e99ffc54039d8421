"""Runs that are equal but for seed and repeat, and which run of one configuration belongs to which of another."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paratune.verdicts.rows import ComparedRun


@dataclass(frozen=True)
class Group:
    """Runs that are equal but for seed and repeat."""

    label: str
    runs: tuple[ComparedRun, ...]

    @property
    def by_seed(self) -> dict[Any, list[ComparedRun]]:
        """The runs of each seed: repeats of one seed are no other seeds."""
        found: dict[Any, list[ComparedRun]] = {}
        for run in self.runs:
            found.setdefault(run.get("run.seed"), []).append(run)
        return found


@dataclass(frozen=True)
class Differs:
    """In what two groups of runs differ, of what makes them the same experiment."""

    refused: tuple[str, ...] = ()
    """What differs, in words, and was not said to be compared: there is no verdict."""
    allowed: tuple[str, ...] = ()
    """What differs and was said to be what is compared; the words name it."""
    unknown: tuple[str, ...] = ()
    """What cannot be told because a run does not record it."""
    batch: bool = False
    """Whether the global batch size differs: goodput is what may be compared then, not samples/s."""
    elsewhere: bool = False
    """Whether they ran on different machines, which is allowed, and said."""


def matched(first: Sequence[Any], second: Sequence[Any]) -> tuple[list[int], list[int]] | None:
    """Return the places of runs that belong together, in order; None unless all of the smaller side have a partner.

    Args:
        first: Keys of runs, each once.
        second: Of the other side.
    """
    shared = [key for key in first if key in second]
    if len(shared) < min(len(first), len(second)) or len(shared) < 2:
        return None
    return [first.index(key) for key in shared], [second.index(key) for key in shared]


def why_one(first: int, second: int, what: str) -> str | None:
    """Say why there is no interval over runs or seeds where a side has one of them; None where both have more."""
    if min(first, second) > 1:
        return None
    who = f"one {what} each" if first == second else f"one {what} on one side"
    return f"{who}: how far another {what} would be from it is not known"


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
