"""Positions of the words of a word cloud: the most frequent words in the middle, the others around them, no overlaps.

Nothing is drawn by chance: the same words make the same cloud.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_WORDS = 100
_WORD = re.compile(r"[^\W\d_][^\W\d_'’-]*(?:['’-][^\W\d_]+)*")
_SMALLEST, _LARGEST = 7.5, 46.0
"""Points."""
_MARGIN = 8.0
"""Points between a word and the edge of the picture."""
_GAP = 4.0
"""Points between two words."""


@dataclass(frozen=True)
class PlacedWord:
    """A word of a cloud."""

    word: str
    count: int
    x: float
    """Left end, in points from the left edge."""
    y: float
    """Baseline, in points from the lower edge."""
    size: float
    """Font size in points."""


def count_words(texts: Iterable[str], stop_words: Collection[str]) -> Counter[str]:
    """Return how often each word occurs, in lower case, without stop words and words of fewer than three letters.

    A word begins with a letter; apostrophes and hyphens inside it belong to it.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word.replace("’", "'") for word in _WORD.findall(text.lower()))
    left_out = {word.lower() for word in stop_words}
    return Counter({word: count for word, count in counts.items() if len(word) > 2 and not _is_stop(word, left_out)})


def _is_stop(word: str, left_out: Collection[str]) -> bool:
    # Lists of stop words have "it" and "not", and not "it's" and "don't".
    return word in left_out or word.endswith("n't") or ("'" in word and word.split("'")[0] in left_out)


def most_frequent(counts: Counter[str]) -> list[tuple[str, int]]:
    """Return the words with their counts, the most frequent first; words of one count in alphabetical order."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def place_words(counts: Counter[str], *, width: float, height: float) -> list[PlacedWord]:
    """Return the most frequent words that fit in a picture of this size in points, at most `MAX_WORDS`.

    Font sizes follow the square root of the counts. Each word is at the first place on an Archimedean spiral, from the
    middle outwards, where it touches no other word; a word without such a place is left out.
    """
    words = most_frequent(counts)[:MAX_WORDS]
    if not words:
        return []
    width, height = width - 2 * _MARGIN, height - 2 * _MARGIN
    largest = min(_LARGEST, 0.8 * width / max(_extent(words[0][0])[2], 0.1))
    taken = np.empty((0, 4))
    placed = []
    turns = _spiral(width, height)
    for word, count in words:
        size = max(_SMALLEST, largest * (count / words[0][1]) ** 0.5)
        left, below, wide, high = (size * value for value in _extent(word))
        corner = _free_place(turns, wide + _GAP, high + _GAP, taken, width, height)
        if corner is not None:
            x, y = corner
            taken = np.vstack([taken, [x, y, x + wide + _GAP, y + high + _GAP]])
            placed.append(PlacedWord(word, count, _MARGIN + x - left, _MARGIN + y - below, size))
    return placed


def _spiral(width: float, height: float) -> Any:
    """Return points on a spiral from the middle outwards, (n, 2), a little further apart than the stroke of a
    letter.
    """
    angles = np.sqrt(np.arange(6000)) * 1.1
    radius = angles / angles[-1] * 0.75
    return np.stack([width * (0.5 + radius * np.cos(angles)), height * (0.5 + radius * np.sin(angles))], axis=1)


def _free_place(
    turns: Any, wide: float, high: float, taken: Any, width: float, height: float
) -> tuple[float, float] | None:
    """Return the lower left corner of the first free position on the spiral; None if there is none."""
    corners = turns - np.array([wide / 2, high / 2])
    x, y = corners[:, 0], corners[:, 1]
    free = (x >= 0) & (y >= 0) & (x + wide <= width) & (y + high <= height)
    for left, below, right, top in taken:
        free &= (x >= right) | (x + wide <= left) | (y >= top) | (y + high <= below)
    indices = np.flatnonzero(free)
    return (float(x[indices[0]]), float(y[indices[0]])) if len(indices) else None


def _extent(word: str) -> Sequence[float]:
    """Return left, bottom, width and height of a word at a font size of one point."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    box = TextPath((0, 0), word, size=100, prop=FontProperties(family="DejaVu Sans")).get_extents()
    return [value / 100 for value in (box.x0, box.y0, box.width, box.height)]
