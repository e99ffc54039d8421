"""Words and sentences of a text, as ranges of its characters. Imports no torch."""

import re
from collections.abc import Sequence
from typing import NamedTuple

_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\W\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+(?:['’-]\w+)*|[^\w\s]+"
)
"""A character of Chinese or Japanese, which have no spaces; a word with its apostrophes and hyphens; punctuation."""
_LINE = re.compile(r"\S[^\n]*")
_SENTENCE = re.compile(r"\S.*?(?:[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+|$)", re.DOTALL)


class CharRange(NamedTuple):
    """A part of a text."""

    start: int
    """Its first character."""
    end: int
    """The character after its last one."""


def words(text: str) -> list[CharRange]:
    """Return the words and the runs of punctuation of a text: all of its characters that are not white space."""
    return [CharRange(*match.span()) for match in _WORD.finditer(text)]


def sentences(text: str) -> list[CharRange]:
    """Return the sentences of a text.

    A sentence ends at the end of a line, or at . ! ? … before white space; abbreviations end sentences, too.
    """
    return [
        CharRange(line.start() + match.start(), line.start() + match.end())
        for line in _LINE.finditer(text)
        for match in _SENTENCE.finditer(line.group().rstrip())
    ]


def containing(starts: Sequence[int], ranges: Sequence[CharRange]) -> list[int]:
    """Return for each character position, ascending, the index of the range that contains it or ended before it."""
    indices, index = [], 0
    for start in starts:
        while index + 1 < len(ranges) and ranges[index + 1].start <= start:
            index += 1
        indices.append(index)
    return indices
