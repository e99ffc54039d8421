"""The characters of tokens: completes the offsets of tokenizers that leave characters out.

A byte-level tokenizer behind a pre-tokenizer that removes white space adds a space to each word and then trims it from
the word's own characters: the first letter is in no token, and a word of one letter has an empty token. Tokenizers that
remove accents leave out a combining mark at the end of a word.
"""

import unicodedata
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

Span = tuple[int, int]
"""First character of a token, and the character after its last one."""


def token_characters(encodings: Sequence[Any], texts: Sequence[str]) -> list[list[Span]]:
    """Return the characters of each token of each encoding; the offsets of special tokens are unchanged.

    A visible character without a token is added to a token of the same word, the run of characters without white
    space: a combining mark to the token before it, other characters to the token after them, if there is one.
    Characters of a word without any token stay without one. Starts and ends never decrease.

    Args:
        encodings: All windows of `texts`, of a fast tokenizer. Of a truncated encoding, `overflowing` has the others:
            without them, the rest of a divided word would seem to be left out.
        texts: The text that was tokenized, or both texts of a pair.
    """
    spans = [encoding.offsets for encoding in encodings]
    owners = [encoding.sequence_ids for encoding in encodings]
    for number, text in enumerate(texts):
        windows = [
            [span for which, span in zip(whose, own, strict=True) if which == number]
            for whose, own in zip(owners, spans, strict=True)
        ]
        if _is_complete(windows, text):
            continue
        completed = _complete(sorted({span for window in windows for span in window}), text)
        for at, window in enumerate(windows):
            ordered = iter(_ascending([completed[span] for span in window]))
            spans[at] = [
                next(ordered) if which == number else span for which, span in zip(owners[at], spans[at], strict=True)
            ]
    return spans


def _is_complete(windows: Sequence[Sequence[Span]], text: str) -> bool:
    """Return whether ascending tokens have all characters of a text; False where a closer look is needed."""
    end = 0
    for window in windows:
        last = 0
        for start, stop in window:
            if start < last or (start > end and not text[end:start].isspace()):
                return False
            last = start
            if stop > end:
                end = stop
    return end >= len(text) or text[end:].isspace()


def _complete(spans: Sequence[Span], text: str) -> dict[Span, Span]:
    """Return sorted, distinct spans with the characters around them that are in none."""
    covered = bytearray(len(text))
    for start, end in spans:
        covered[start:end] = b"\1" * (end - start)
    is_free = [not (covered[place] or letter.isspace()) for place, letter in enumerate(text)]
    completed, before = {}, 0
    for (start, end), (next_start, _) in pairwise([*spans, (len(text) + 1, 0)]):
        first = start
        # Control and format characters are part of no word, but of a token that has nothing else.
        while first > before and is_free[first - 1] and (start == end or _is_visible(text[first - 1])):
            first -= 1
        gap = end
        while gap < len(text) and is_free[gap]:
            gap += 1
        after = end
        while after < gap and _is_visible(text[after]) and (next_start > gap or unicodedata.combining(text[after])):
            after += 1
        completed[start, end] = first, after
        before = max(before, after)
    return completed


def _is_visible(letter: str) -> bool:
    return unicodedata.category(letter) not in ("Cc", "Cf")


def _ascending(spans: Sequence[Span]) -> list[Span]:
    """Return spans whose starts and ends do not decrease: an empty token may start behind the one after it."""
    starts = list(accumulate((start for start, _ in reversed(spans)), min))[::-1]
    return list(zip(starts, accumulate((end for _, end in spans), max), strict=True))
