"""Positions of the words of a word cloud: the most frequent words in the middle, the others around them, no overlaps.

Nothing is drawn by chance: the same words make the same cloud.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

MAX_WORDS = 100
_WORD = re.compile(r"[^\W\d_][^\W\d_'’-]*(?:['’-][^\W\d_]+)*")
_SMALLEST, _LARGEST = 7.5, 46.0
_MARGIN, _GAP = 8.0, 4.0
"""Around all words, and between two words. All in points, as the sizes of the font."""


class PlacedWord(NamedTuple):
    """A word of a cloud: x and y are its left end and its baseline, in points from the lower left corner."""

    word: str
    num: int
    x: float
    y: float
    size: float


def count_words(texts: Iterable[str], stop_words: Collection[str]) -> list[tuple[str, int]]:
    """Return the words and their counts, the most frequent first and words of one count in alphabetical order.

    They are in lower case, without stop words and words of fewer than three letters. A word begins with a letter;
    apostrophes and hyphens inside it belong to it.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word.replace("’", "'") for word in _WORD.findall(text.lower()))
    left_out = {word.lower() for word in stop_words}

    def is_stop(word: str) -> bool:
        # Lists of stop words have "it" and "not", and not "it's" and "don't".
        return word in left_out or word.endswith("n't") or ("'" in word and word.split("'")[0] in left_out)

    kept = [(word, count) for word, count in counts.items() if len(word) > 2 and not is_stop(word)]
    return sorted(kept, key=lambda item: (-item[1], item[0]))


def place_words(words: Sequence[tuple[str, int]], *, width: float, height: float) -> list[PlacedWord]:
    """Return the words of `count_words` that fit in a picture of this size in points, at most `MAX_WORDS`.

    Font sizes follow the square root of the counts. Each word is at the first place on an Archimedean spiral, from the
    middle outwards, where it touches no other word; a word without such a place is left out.
    """
    if not words:
        return []
    width, height = width - 2 * _MARGIN, height - 2 * _MARGIN
    largest = min(_LARGEST, 0.8 * width / max(_extent(words[0][0])[2], 0.1))
    # The points of the spiral are a little further apart than the stroke of a letter.
    angles = np.sqrt(np.arange(6000)) * 1.1
    radius = angles / angles[-1] * 0.75
    turns = np.stack([width * (0.5 + radius * np.cos(angles)), height * (0.5 + radius * np.sin(angles))], axis=1)
    placed: list[PlacedWord] = []
    taken: list[tuple[float, float, float, float]] = []
    for word, count in words[:MAX_WORDS]:
        size = max(_SMALLEST, largest * (count / words[0][1]) ** 0.5)
        left, below, wide, high = (size * value for value in _extent(word))
        wide, high = wide + _GAP, high + _GAP
        x, y = (turns - np.array([wide / 2, high / 2])).T
        free = (x >= 0) & (y >= 0) & (x + wide <= width) & (y + high <= height)
        for x0, y0, x1, y1 in taken:
            free &= (x >= x1) | (x + wide <= x0) | (y >= y1) | (y + high <= y0)
        if free.any():
            at_x, at_y = float(x[free][0]), float(y[free][0])
            taken.append((at_x, at_y, at_x + wide, at_y + high))
            placed.append(PlacedWord(word, count, _MARGIN + at_x - left, _MARGIN + at_y - below, size))
    return placed


def _extent(word: str) -> Sequence[float]:
    """Return left, bottom, width and height of a word at a font size of one point."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    box = TextPath((0, 0), word, size=100, prop=FontProperties(family="DejaVu Sans")).get_extents()
    return [value / 100 for value in (box.x0, box.y0, box.width, box.height)]
