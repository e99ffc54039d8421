"""Groups of runs that are equal except for seed and repeat, and how runs of two groups are matched."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paratune.base.grouping import grouped
from paratune.records.efficiency import NoiseKind
from paratune.records.finished import RunRecord
from paratune.verdicts.placebo import step_class


@dataclass(frozen=True)
class Group:
    """Runs that are equal except for seed and repeat."""

    label: str
    runs: tuple[RunRecord, ...]
    noise_kind: NoiseKind = "plain"
    """The noise scale that goodput uses, the same in all groups."""

    @property
    def by_seed(self) -> dict[Any, list[RunRecord]]:
        """The runs of each seed: repeats of a seed do not count as other seeds."""
        return grouped((run.run.seed, run) for run in self.runs)

    @cached_property
    def step_class(self) -> str | None:
        """A text that is equal for groups that cannot differ in the time of a step; None where that is unknown."""
        classes = {step_class(run) for run in self.runs}
        return classes.pop() if len(classes) == 1 else None

    def cannot_differ(self, other: "Group") -> bool:
        """Return whether the steps of both do the same, so that their speed and memory cannot differ."""
        is_other = self.label != other.label  # speed-ups compare a group with itself, too
        return is_other and self.step_class is not None and self.step_class == other.step_class


@dataclass(frozen=True)
class Differs:
    """Differences between two groups of runs, in what makes them the same experiment."""

    refused: tuple[str, ...] = ()
    """Differences, in words, that are not allowed: there is no verdict."""
    allowed: tuple[str, ...] = ()
    """Differences that are allowed because they are what is compared; the text names them."""
    unknown: tuple[str, ...] = ()
    """Settings that a run does not record."""
    batch: bool = False
    """Whether the global batch size differs: then goodput is compared, not samples/s."""
    elsewhere: bool = False
    """Whether they ran on different machines, which is allowed and mentioned."""
    samples: float | None = None
    """The samples on which the group trains over those of the baseline; None where they are as many."""
    placebo: bool = False
    """Whether only options differ that cannot change the time or the memory of a step."""


def matched(first: Sequence[Any], second: Sequence[Any]) -> tuple[list[int], list[int]] | None:
    """Return the places of runs with equal keys, in order; None unless every run of the smaller side has a partner."""
    shared = [key for key in first if key in second]
    if len(shared) < min(len(first), len(second)) or len(shared) < 2:
        return None
    return [first.index(key) for key in shared], [second.index(key) for key in shared]


def why_one(first: int, second: int, noun: str) -> str | None:
    """Return why there is no interval over runs or seeds when a side has only one; None when both have more."""
    if min(first, second) > 1:
        return None
    who = f"one {noun} each" if first == second else f"one {noun} on one side"
    return f"{who}: how far another {noun} would be from it is not known"
