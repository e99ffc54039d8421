"""Computes MinHash signatures of documents and their bands, and reads signatures from files by row number.

signatures-00000.bin   for each document of a shard: 16 bytes of its id, the SHA-256 of its words, its signature
"""

import hashlib
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paratune.corpus.shard import reading
from paratune.errors import CheckpointError, require

ID_BYTES = 16
_WORD = re.compile(r"\w+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: odd, without a pattern."""


def row_dtype(num_hashes: int) -> np.dtype:
    """Return the dtype of a row in a file of signatures."""
    return np.dtype([("id", f"S{ID_BYTES}"), ("sha256", "u1", (32,)), ("signature", "<u4", (num_hashes,))])


def signature_file(number: int) -> str:
    return f"signatures-{number:05d}.bin"


def normalized_words(text: str) -> list[str]:
    """Return the words of a text: sequences of letters, digits and underscores, in NFKC and casefolded."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def words_sha256(text: str, words: Sequence[str]) -> bytes:
    """Return the SHA-256 of the words joined by spaces; of the text itself if it has no words."""
    return hashlib.sha256((" ".join(words) or text.strip()).encode()).digest()


def shingles(words: Sequence[str], size: int) -> list[str]:
    """Return all sequences of `size` words; one of all words if there are fewer."""
    return [" ".join(words[start : start + size]) for start in range(max(1, len(words) - size + 1))]


def signatures(documents: Sequence[Sequence[str]], num_hashes: int, seed: int) -> np.ndarray:
    """Return the MinHash signatures of sets of shingles.

    Args:
        documents: Shingles of each document; duplicates count once.

    Returns:
        (documents, num_hashes), uint32. Values of two sets with Jaccard similarity J are equal with probability J.

    Raises:
        MissingDependency: rensa is not installed.
    """
    rensa = require("rensa", extra="corpus")
    digests = rensa.RMinHash.digests_from_token_sets(documents, num_hashes, seed)
    return np.array(digests, np.uint32).reshape(len(documents), num_hashes)


def band_keys(signatures: np.ndarray, bands: int, rows: int) -> np.ndarray:
    """Return a 64-bit hash of each band, (documents, bands); it is equal if all rows of a band are equal."""
    keys = np.zeros((len(signatures), bands), np.uint64)
    values = signatures.reshape(len(signatures), bands, rows).astype(np.uint64)
    for row in range(rows):
        # Plus 1: otherwise any number of zeros would have the same hash.
        keys = (keys + values[:, :, row] + np.uint64(1)) * _FACTOR
        keys ^= keys >> np.uint64(29)
    return keys


def candidate_probability(similarity: float, bands: int, rows: int) -> float:
    """Return the probability that two documents are compared: 1 - (1 - s^r)^b.

    Args:
        similarity: Jaccard similarity of their shingles, from 0 to 1.
        bands: b, number of bands, of which at least one must be equal.
        rows: r, values of a band.

    Source: Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, section 3.4.2.
    """
    return float(1 - (1 - similarity**rows) ** bands)


def signature_at(folder: Path, starts: Sequence[int], num_hashes: int, position: int) -> Any:
    """Return the row of a document, see `row_dtype`, by its position in the corpus.

    Raises:
        CheckpointError: The file is missing or truncated.
    """
    number = bisect_right(starts, position) - 1
    layout = row_dtype(num_hashes)
    path = folder / signature_file(number)
    with reading(path):
        rows = np.fromfile(path, layout, 1, offset=(position - starts[number]) * layout.itemsize)
    if not len(rows):
        message = f"{path} is truncated; delete {path.parent} to make it again"
        raise CheckpointError(message, code="corpus.damaged", path=path)
    return rows[0]
