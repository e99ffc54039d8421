"""Texts that occur more than once: inside a split, with different labels, or in two splits.

Two texts are the same when they are equal but for white space. Floor 3, without torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from paratune.data.columns import Samples
from paratune.units import format_share

Key = tuple[str, str]


@dataclass(frozen=True)
class Repeats:
    """What repeats inside one split."""

    num_rows: int
    """Rows whose text occurred in an earlier row."""
    num_conflicting_texts: int
    """Texts that occur with more than one label."""
    num_conflicting_rows: int
    """Rows that hold such a text."""


@dataclass(frozen=True)
class Overlap:
    """What one split shares with another."""

    first: str
    second: str
    num_rows: int
    """Rows of `second` whose text is in `first`."""
    num_rows_of_second: int
    """All rows of `second`."""

    @property
    def message(self) -> str:
        """The overlap as a sentence."""
        share = format_share(self.num_rows / self.num_rows_of_second)
        return (
            f"{self.num_rows} of {self.num_rows_of_second} rows of {self.second} ({share}) have a text that is also in "
            f"{self.first}; scores on {self.second} look better than they are"
        )


def _keys(samples: Samples) -> list[Key]:
    pairs = samples.text_pairs or [""] * len(samples)
    return [(" ".join(text.split()), " ".join(pair.split())) for text, pair in zip(samples.texts, pairs, strict=True)]


def repeats(samples: Samples) -> Repeats:
    """Count what repeats inside a split."""
    labels_of: dict[Key, list[Any]] = {}
    labels = [None] * len(samples) if samples.labels is None else samples.labels.tolist()
    for key, label in zip(_keys(samples), labels, strict=True):
        labels_of.setdefault(key, []).append(label)
    conflicting = [found for found in labels_of.values() if len(set(found)) > 1]
    return Repeats(len(samples) - len(labels_of), len(conflicting), sum(map(len, conflicting)))


def overlaps(splits: Mapping[str, Samples]) -> list[Overlap]:
    """Count what each pair of splits shares; pairs that share nothing are left out."""
    keys = {name: _keys(samples) for name, samples in splits.items()}
    sets = {name: set(found) for name, found in keys.items()}
    found = [
        Overlap(first, second, sum(key in sets[first] for key in keys[second]), len(keys[second]))
        for first, second in combinations(splits, 2)
    ]
    return [overlap for overlap in found if overlap.num_rows]


def overlap_warnings(splits: Mapping[str, Samples]) -> list[str]:
    """Return a sentence for each pair of splits that share a text, for the log."""
    return [overlap.message for overlap in overlaps(splits)]
