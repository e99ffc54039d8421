"""Leaves out the middle or the end of very long texts before they are tokenized, where this changes no token.

A text of 10 MB has two million tokens, of which 512 are kept. Most tokenizers divide a text at white space first, and
tokenize each word for itself: the tokens before a space between two words do not depend on the text behind it, and
those behind it not on the text before it.

Imports no torch.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from paratune.data.tokenizers import preserve_state

LONG_TEXT = 100_000
"""Texts of more characters are cut; their lengths in tokens are not known."""
PAIRED_TEXT = 10_000
"""The same for the texts of a pair, which are counted before they are truncated: the library makes an encoding of each
part of one text with each part of the other one, which are removed."""
_MORE_TOKENS = 64
"""Tokens that a part has beyond those that are kept."""
_BETWEEN_WORDS = re.compile(r"(?<=[^\W_]) (?=[^\W_])")
"""A single space between letters or digits: no normalizer and no pre-tokenizer below joins characters across it."""
_SPLIT_WORDS = {"BertPreTokenizer", "ByteLevel", "Metaspace", "Whitespace", "WhitespaceSplit"}
_LOCAL_SPLITS = {"CharDelimiterSplit", "Digits", "Punctuation"}
_LOCAL_NORMALIZERS = {
    *("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend", "Replace"),
    *("Strip", "StripAccents"),
}
_LOCAL_PATTERNS = (" {2,}", r"\s+", r"\s{2,}", r"[\n\r\t]")
"""Regular expressions of `Replace` that never match text around a single space between words, or only the space."""


def tokenizes_words(tokenizer: Any) -> bool:
    """Return whether the tokens on one side of a space between two words never depend on the text on the other side.

    False where this is not known: for slow tokenizers, for those that do not divide a text at white space (such as BPE
    of LLaMA 2, or Unigram without words), and for regular expressions of the tokenizer's own.
    """
    if not tokenizer.is_fast:
        return False
    inner = tokenizer.backend_tokenizer
    if inner.pre_tokenizer is None or not all(map(_is_local, _parts(inner.normalizer, "normalizers"))):
        return False
    for part in _parts(inner.pre_tokenizer, "pretokenizers"):
        if part["type"] in _SPLIT_WORDS and part.get("use_regex", True) and part.get("split", True):
            return True
        if part["type"] not in _LOCAL_SPLITS:
            return False
    return False


def _parts(component: Any, key: str) -> list[dict[str, Any]]:
    """Return the settings of a normalizer or a pre-tokenizer, of a sequence those of its members."""
    if component is None:
        return []
    found, todo = [], [json.loads(component.__getstate__())]
    while todo:
        settings = todo.pop(0)
        if settings["type"] == "Sequence":
            todo = settings[key] + todo
        else:
            found.append(settings)
    return found


def _is_local(normalizer: dict[str, Any]) -> bool:
    if normalizer["type"] == "Replace" and "Regex" in normalizer["pattern"]:
        return normalizer["pattern"]["Regex"] in _LOCAL_PATTERNS
    return normalizer["type"] in _LOCAL_NORMALIZERS


def cut_long_texts(
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    tokenizer: Any,
    num_first: int,
    num_last: int = 0,
    *,
    most_characters: int | None = None,
) -> tuple[list[str], list[str] | None]:
    """Return texts, and second texts, without what truncation removes, where a text has very many characters.

    Truncation keeps the same tokens of what remains: each text has more tokens than it keeps, and the longer text of a
    pair remains the longer one, because `longest_first` gives it the odd token. Nothing is cut where `tokenizes_words`
    is false.

    Args:
        texts: First texts, (N,).
        pairs: Second texts, (N,), or None.
        tokenizer: A tokenizer of `transformers`; it keeps the last tokens where its `truncation_side` is left.
        num_first: Tokens that truncation keeps at most, at the side that it keeps.
        num_last: Tokens at the end that are kept as well.
        most_characters: Texts of more characters are cut; `LONG_TEXT` where it is None.
    """
    most = LONG_TEXT if most_characters is None else most_characters
    columns = [list(texts), *([] if pairs is None else [list(pairs)])]
    rows = [row for row, of_row in enumerate(zip(*columns, strict=True)) if max(map(len, of_row)) > most]
    if rows and tokenizes_words(tokenizer):
        with preserve_state(tokenizer):
            for row in rows:
                _cut_row(columns, row, tokenizer, num_first, num_last, most)
    return columns[0], None if pairs is None else columns[1]


def _cut_row(
    columns: list[list[str]], row: int, tokenizer: Any, num_first: int, num_last: int, most_characters: int
) -> None:
    needed = num_first
    is_long = [len(column[row]) > most_characters for column in columns]
    # The longer text of a pair is the last. A single long text needs no count: it gets more tokens than the other one.
    lengths = [
        _num_tokens(tokenizer, column[row]) if len(columns) > 1 and (all(is_long) or not long) else math.inf
        for column, long in zip(columns, is_long, strict=True)
    ]
    order = sorted(range(len(columns)), key=lambda place: lengths[place])
    for place in order:
        column = columns[place]
        if is_long[place]:
            is_left = tokenizer.truncation_side == "left" and num_last == 0
            first, last = (0, needed) if is_left else (needed, num_last)
            column[row] = _without_rest(tokenizer, column[row], first, last)
        if place != order[-1]:
            needed = max(needed, _num_tokens(tokenizer, column[row]))


def _num_tokens(tokenizer: Any, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"])


def _without_rest(tokenizer: Any, text: str, num_first: int, num_last: int) -> str:
    """Return a text with the same first and last tokens, and more tokens than these; the text itself if it is short."""
    end = _space(tokenizer, text, num_first, from_end=False)
    start = _space(tokenizer, text, num_last, from_end=True) if num_last else len(text)
    return text if end is None or start is None or end >= start else text[:end] + text[start:]


def _space(tokenizer: Any, text: str, num_tokens: int, *, from_end: bool) -> int | None:
    """Return the place of a space between two words with enough tokens before it, or behind it `from_end`; or None."""
    num_characters = 8 * (num_tokens + _MORE_TOKENS)
    while num_characters < len(text):
        space = _BETWEEN_WORDS.search(text, len(text) - num_characters if from_end else num_characters)
        if space is None:
            return None
        part = text[space.start() :] if from_end else text[: space.start()]
        if _num_tokens(tokenizer, part) >= num_tokens + _MORE_TOKENS:
            return space.start()
        num_characters *= 2
    return None
