"""Finds texts that occur more than once: in a split, with different labels, in two splits, or in an earlier training.

Two texts are the same when they are equal up to white space. Imports no torch.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from paratune.base.units import format_share
from paratune.data.columns import DUPLICATE, Samples
from paratune.errors import CheckpointError, DataError
from paratune.records.predictions import write_table

Key = tuple[str, str]


@dataclass(frozen=True)
class Repeats:
    """Counts of texts that repeat inside one split."""

    num_rows: int | None
    """Rows whose text occurred in an earlier row."""
    num_conflicting_texts: int | None
    """Texts that occur with more than one label."""
    num_conflicting_rows: int | None
    """Rows with such a text."""


@dataclass(frozen=True)
class Overlap:
    """The rows of one split whose texts another split has too."""

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
        can_drop = (self.first, self.second) in (("train", "validation"), ("train", "test"))
        remedy = ": data.drop_duplicates: true leaves it out of train" if can_drop else ""
        return (
            f"{self.num_rows} of {self.num_rows_of_second} rows of {self.second} ({share}) have a text that is also in "
            f"{self.first}; scores on {self.second} are too high{remedy}"
        )


def _keys(samples: Samples) -> list[Key]:
    pairs = samples.text_pairs or [""] * len(samples)
    if samples.choices is not None:  # the same question with other choices is another sample
        pairs = [" ".join((pair, *choices)) for pair, choices in zip(pairs, samples.choices, strict=True)]
    return [(" ".join(text.split()), " ".join(pair.split())) for text, pair in zip(samples.texts, pairs, strict=True)]


def repeats(samples: Samples) -> Repeats:
    """Count the texts that repeat inside a split; unknown where it was read as tokens."""
    if not samples.has_texts:
        return Repeats(None, None, None)
    labels_of: dict[Key, list[Any]] = {}
    if samples.ratings is not None:  # a text may have a row for each rater, one after the other
        samples = samples.take(np.flatnonzero(np.diff(samples.rows, prepend=-1)))
    labels = [None] * len(samples) if samples.labels is None else samples.labels.tolist()
    for key, label in zip(_keys(samples), labels, strict=True):
        labels_of.setdefault(key, []).append(label)
    conflicting = [labels for labels in labels_of.values() if any(other != labels[0] for other in labels)]
    return Repeats(len(samples) - len(labels_of), len(conflicting), sum(map(len, conflicting)))


def overlaps(splits: Mapping[str, Samples]) -> list[Overlap]:
    """Count the texts that each pair of splits shares; pairs that share none are omitted.

    Splits that were read as tokens are omitted, too: their texts are unknown.
    """
    keys = {name: _keys(samples) for name, samples in splits.items() if samples.has_texts}
    sets = {name: set(split_keys) for name, split_keys in keys.items()}
    pairs = [
        Overlap(first, second, sum(key in sets[first] for key in keys[second]), len(keys[second]))
        for first, second in combinations(keys, 2)
    ]
    return [overlap for overlap in pairs if overlap.num_rows]


def without_duplicates(train: Samples, others: Iterable[Samples]) -> Samples:
    """Return the training rows whose text neither the other splits nor an earlier row have; others are dropped.

    Raises:
        DataError: No row is left.
    """
    seen = {key for samples in others for key in _keys(samples)}
    # Of triplets, only the same text with the same negative is a repeat.
    keys = list(zip(_keys(train), train.negatives or [""] * len(train), strict=True))
    first = {key: index for index, key in reversed([*enumerate(keys)]) if key[0] not in seen}
    if not first:
        message = "data.drop_duplicates: no row of data.train is left; all texts are in the validation or test set"
        raise DataError(message, code="data.empty", key="data.drop_duplicates")
    num_dropped = {**train.num_dropped, DUPLICATE: len(train) - len(first)}
    return train.take(np.asarray(sorted(first.values())), num_dropped={k: v for k, v in num_dropped.items() if v})


def text_hashes(samples: Samples) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash (BLAKE2b) of each sample's text or pair of texts, (len(samples),).

    Among a million different texts, the probability that any two have the same hash is 1 in 37 million.
    """
    # A line break separates the two texts of a pair without ambiguity: `_keys` has no line breaks.
    texts = ("\n".join(key).encode("utf-8", "surrogatepass") for key in _keys(samples))
    numbers = (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") for text in texts)
    return np.fromiter(numbers, dtype=np.uint64, count=len(samples))


def write_text_hashes(path: Path, samples: Samples) -> None:
    """Write the hashes of the texts that a model was trained on, 8 bytes each; no text can be read from them.

    Nothing is written where they were read as tokens.
    """
    if samples.has_texts:
        write_table(path, pa.table({"hash": np.unique(text_hashes(samples))}))


def read_text_hashes(path: Path) -> npt.NDArray[np.uint64] | None:
    """Return the hashes of `write_text_hashes`, (N,); None without such a file."""
    if not path.is_file():
        return None
    try:
        hashes: npt.NDArray[np.uint64] = pq.read_table(path).column("hash").to_numpy()
    except (OSError, pa.ArrowException, KeyError, UnicodeDecodeError) as error:
        message = f"{path} is damaged: {error}; delete it to continue without it"
        raise CheckpointError(message, code="run.damaged", path=path) from error
    return hashes
