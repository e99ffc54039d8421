"""What the classifier sees of a text: hashed sequences of characters and of words, without names and figures.

Words with a capital letter are all the same, and so are numbers: Lisbon and São Paulo tell where a text is about, not
how it is written.
"""

import re

import numpy as np
import numpy.typing as npt

NUM_BITS = 18
"""The features are two to this power."""
CHARACTERS = (2, 3, 4, 5)
"""Lengths of the sequences of characters."""
WORDS = (1, 2)
"""Lengths of the sequences of words, with the spaces around them."""
MAX_CHARACTERS = 10_000
"""Of the beginning of a text, which are looked at."""
CAPITAL = "¤"
"""What a word with a capital letter becomes."""

_NAME = re.compile(r"\b[^\W\d_a-zß-öø-ÿ]\w*")
_NUMBER = re.compile(r"\d+")
_SPACE_CODE = ord(" ")
# Odd, so that it has an inverse modulo 2 to the power of 64: the hash of what stands between two places is a difference
# of sums, times the inverse of the power at the first.
_BASE = 0x9E3779B97F4A7C15
_MIX = (0xD6E8FEB86659FD93, 0x9E3779B97F4A7C15)

Indices = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


def features(text: str) -> tuple[Indices, Values]:
    """Return which features a text has, and how much of each.

    Returns:
        Indices, (F,), int64, ascending, from 0 to 2 ** NUM_BITS - 1; and values, (F,), float64, 1 + log of the count,
        of which the sum of squares is 1. Both are empty for a text without characters.
    """
    codes = np.frombuffer(simplified(text).encode("utf-32-le", "replace"), np.uint32).astype(np.uint64)
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum(codes * _POWERS[: len(codes)], out=sums[1:])
    found = []
    for n in CHARACTERS:
        starts = np.arange(max(0, len(codes) - n + 1))
        found.append(_hash(sums, starts, starts + n, salt=n))
    spaces = np.flatnonzero(codes == _SPACE_CODE)
    for n in WORDS:
        found.append(_hash(sums, spaces[:-n], spaces[n:] + 1, salt=max(CHARACTERS) + n))
    indices, counts = np.unique(np.concatenate(found), return_counts=True)
    values = 1 + np.log(counts)
    # Of no features the sum is 0 and there is nothing to divide.
    return indices, values / np.sqrt(np.sum(values * values)) if len(values) else values


def simplified(text: str) -> str:
    """Return a text in lower case, without names and figures, a space between its words and at both ends."""
    text = text[:MAX_CHARACTERS]
    # Titles and menus are written in capitals throughout: there they tell nothing.
    if 2 * len(_NAME.findall(text)) < len(text.split()):
        text = _NAME.sub(CAPITAL, text)
    words = _NUMBER.sub("0", text).lower().split()
    return f" {' '.join(words)} "[:MAX_CHARACTERS] if words else ""


def _hash(sums: npt.NDArray[np.uint64], starts: Indices, ends: Indices, *, salt: int) -> Indices:
    """Return the features of what stands between places."""
    hashed = (sums[ends] - sums[starts]) * _INVERSE_POWERS[starts] + np.uint64(salt * _MIX[0] % 2**64)
    # The low bits of a polynomial hash are weak: they are mixed with the high ones, of which the feature is made.
    hashed ^= hashed >> np.uint64(32)
    hashed *= np.uint64(_MIX[0])
    hashed ^= hashed >> np.uint64(29)
    hashed *= np.uint64(_MIX[1])
    return (hashed >> np.uint64(64 - NUM_BITS)).astype(np.int64)


def _powers(base: int) -> npt.NDArray[np.uint64]:
    """Return the powers of an odd number from 0 on, modulo 2 to the power of 64."""
    found, power = np.empty(MAX_CHARACTERS + 1, np.uint64), 1
    for n in range(len(found)):
        found[n] = power
        power = power * base % 2**64
    return found


_POWERS = _powers(_BASE)
_INVERSE_POWERS = _powers(pow(_BASE, -1, 2**64))
