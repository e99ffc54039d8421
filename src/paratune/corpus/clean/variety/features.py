"""Computes the features of a text: hashed n-grams of characters and of words, without names and numbers.

All words with a capital letter are equal, and all numbers: place names show the subject of a text, not its variety.
"""

import re

import numpy as np
import numpy.typing as npt

NUM_BITS = 18
"""The number of features is 2 ** NUM_BITS."""
CHARACTERS = (2, 3, 4, 5)
"""Lengths of character n-grams."""
WORDS = (1, 2)
"""Lengths of word n-grams, with the spaces around them."""
MAX_CHARACTERS = 10_000
"""Characters at the start of a text that are read."""
CAPITAL = "¤"
"""Replaces a word with a capital letter."""

_NAME = re.compile(r"\b[^\W\d_a-zß-öø-ÿ]\w*")
_NUMBER = re.compile(r"\d+")
_SPACE_CODE = ord(" ")
# Odd, so that it has an inverse modulo 2^64: the hash of a range is the difference of two prefix sums times the inverse
# power at its start.
_BASE = 0x9E3779B97F4A7C15
_MIX = (0xD6E8FEB86659FD93, 0x9E3779B97F4A7C15)

Indices = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


def features(text: str) -> tuple[Indices, Values]:
    """Return the features of a text.

    Returns:
        Indices, (F,), int64, ascending, from 0 to 2 ** NUM_BITS - 1; and values, (F,), float64, 1 + log of the count,
        scaled so that the sum of squares is 1. Both are empty for a text without characters.
    """
    codes = np.frombuffer(simplified(text).encode("utf-32-le", "replace"), np.uint32).astype(np.uint64)
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum(codes * _POWERS[: len(codes)], out=sums[1:])
    hashes = []
    for n in CHARACTERS:
        starts = np.arange(max(0, len(codes) - n + 1))
        hashes.append(_hash(sums, starts, starts + n, salt=n))
    spaces = np.flatnonzero(codes == _SPACE_CODE)
    for n in WORDS:
        hashes.append(_hash(sums, spaces[:-n], spaces[n:] + 1, salt=max(CHARACTERS) + n))
    indices, counts = np.unique(np.concatenate(hashes), return_counts=True)
    values = 1 + np.log(counts)
    return indices, values / np.sqrt(np.sum(values * values)) if len(values) else values


def simplified(text: str) -> str:
    """Return a text in lower case without names and numbers, with a space between words and at both ends."""
    text = text[:MAX_CHARACTERS]
    # In titles and menus all words have capitals, which are not names.
    if 2 * len(_NAME.findall(text)) < len(text.split()):
        text = _NAME.sub(CAPITAL, text)
    words = _NUMBER.sub("0", text).lower().split()
    return f" {' '.join(words)} "[:MAX_CHARACTERS] if words else ""


def _hash(sums: npt.NDArray[np.uint64], starts: Indices, ends: Indices, *, salt: int) -> Indices:
    """Return the features of the ranges from `starts` to `ends`."""
    hashed = (sums[ends] - sums[starts]) * _INVERSE_POWERS[starts] + np.uint64(salt * _MIX[0] % 2**64)
    # The low bits of a polynomial hash are weak: mix them with the high bits, which become the feature.
    hashed ^= hashed >> np.uint64(32)
    hashed *= np.uint64(_MIX[0])
    hashed ^= hashed >> np.uint64(29)
    hashed *= np.uint64(_MIX[1])
    return (hashed >> np.uint64(64 - NUM_BITS)).astype(np.int64)


def _powers(base: int) -> npt.NDArray[np.uint64]:
    """Return the powers of an odd number modulo 2^64, from power 0."""
    powers, power = np.empty(MAX_CHARACTERS + 1, np.uint64), 1
    for n in range(len(powers)):
        powers[n] = power
        power = power * base % 2**64
    return powers


_POWERS = _powers(_BASE)
_INVERSE_POWERS = _powers(pow(_BASE, -1, 2**64))
