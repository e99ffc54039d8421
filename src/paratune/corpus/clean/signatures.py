"""MinHash signatures of documents, in files of rows that are found by their number; and the bands of a signature.

signatures-00000.bin   of each document of a shard: 16 bytes of its id, the SHA-256 of its words, and its signature
"""

import hashlib
import os
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from paratune.errors import CheckpointError, os_error_as, require

ID_BYTES = 16
MAX_OPEN = 64
"""Files that are open at the same time."""
_WORD = re.compile(r"\w+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Odd, of no pattern: 2 to the power of 64 by the golden ratio."""


def layout(num_hashes: int) -> np.dtype:
    """Return the layout of a row of a file of signatures."""
    return np.dtype([("id", f"S{ID_BYTES}"), ("sha256", "u1", (32,)), ("signature", "<u4", (num_hashes,))])


def signature_file(number: int) -> str:
    return f"signatures-{number:05d}.bin"


def words_of(text: str) -> list[str]:
    """Return the words of a text: runs of letters, digits and underscores, in one form of Unicode and one case."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def sha256_of(text: str, words: Sequence[str]) -> bytes:
    """Return the SHA-256 of the words of a text with a space between them; of the text itself if it has none."""
    return hashlib.sha256((" ".join(words) or text.strip()).encode()).digest()


def shingles(words: Sequence[str], size: int) -> list[str]:
    """Return all sequences of so many words; one of all words where there are fewer."""
    return [" ".join(words[start : start + size]) for start in range(max(1, len(words) - size + 1))]


def signatures(documents: Sequence[Sequence[str]], num_hashes: int, seed: int) -> np.ndarray:
    """Return the MinHash signatures of sets of shingles.

    Args:
        documents: The shingles of each; one that comes twice counts once.
        num_hashes: Length of a signature.
        seed: Of the hash functions.

    Returns:
        (documents, num_hashes), uint32. Of two sets with Jaccard similarity J two values are equal with probability J.

    Raises:
        MissingDependency: rensa is not installed.
    """
    rensa = require("rensa", extra="corpus")
    found = rensa.RMinHash.digests_from_token_sets(documents, num_hashes, seed)
    return np.array(found, np.uint32).reshape(len(documents), num_hashes)


def band_keys(found: np.ndarray, bands: int, rows: int) -> np.ndarray:
    """Return 64 bits of each band of each signature, (documents, bands), that agree where all rows of a band do."""
    keys = np.zeros((len(found), bands), np.uint64)
    values = found.reshape(len(found), bands, rows).astype(np.uint64)
    for row in range(rows):
        keys = (keys + values[:, :, row] + np.uint64(1)) * _FACTOR
        keys ^= keys >> np.uint64(29)
    return keys


def candidate_probability(similarity: float, bands: int, rows: int) -> float:
    """Return the probability that two documents are compared: 1 - (1 - s^r)^b.

    Args:
        similarity: Jaccard similarity of their shingles, from 0 to 1.
        bands: b, parts of a signature, of which one must agree.
        rows: r, values of a part.

    Source: Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, section 3.4.2.
    """
    return float(1 - (1 - similarity**rows) ** bands)


class Signatures:
    """Rows of all files of signatures, by the position of the document in the corpus."""

    def __init__(self, folder: Path, starts: Sequence[int], num_hashes: int) -> None:
        """Open nothing yet.

        Args:
            folder: That of the files.
            starts: Position of the first document of each file.
            num_hashes: Length of a signature.
        """
        self._folder, self._starts, self._layout = folder, starts, layout(num_hashes)
        self._open: dict[int, int] = {}

    def __enter__(self) -> "Signatures":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __getitem__(self, position: int) -> Any:
        """Return a row; see `layout`.

        Raises:
            CheckpointError: The file is gone or torn.
        """
        number = bisect_right(self._starts, position) - 1
        size = self._layout.itemsize
        path = self._folder / signature_file(number)
        with os_error_as(
            CheckpointError, f"{path} cannot be read", f"delete {path.parent}", code="corpus.damaged", path=path
        ):
            raw = os.pread(self._handle(number, path), size, (position - self._starts[number]) * size)
        if len(raw) < size:
            raise CheckpointError(
                f"{path} is torn; delete {path.parent} to make it again", code="corpus.damaged", path=path
            )
        return np.frombuffer(raw, self._layout)[0]

    def _handle(self, number: int, path: Path) -> int:
        if number not in self._open:
            if len(self._open) == MAX_OPEN:
                self._close()
            self._open[number] = os.open(path, os.O_RDONLY)
        return self._open[number]

    def _close(self) -> None:
        for handle in self._open.values():
            os.close(handle)
        self._open = {}
