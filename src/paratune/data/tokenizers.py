"""Facts about a tokenizer: its fingerprint, its state, the separator of pairs; and texts that are too long for it.

A text of 10 MB has two million tokens, of which 512 are kept. `cut_long_texts` leaves out its middle or end,
where this changes no token: most tokenizers divide a text at white space first, and tokenize each word for
itself. Then the tokens before a space between two words do not depend on the text behind it, and those behind it not on
the text before it.

Imports no torch.
"""

import hashlib
import json
import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paratune.errors import ConfigError

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


def pair_separator(tokenizer: Any) -> str:
    """Return the text to put before the second text of a pair: "" after a special token, else a line break.

    Tokenizers of BERT and similar models put a special token between the texts of a pair. Those of most decoders put
    nothing there, and the model could not know where the second text begins.
    """
    with preserve_state(tokenizer):
        flags = tokenizer("a", "a", return_special_tokens_mask=True)["special_tokens_mask"]
    inner = flags[flags.index(0) : len(flags) - flags[::-1].index(0)] if 0 in flags else flags
    return "" if 1 in inner else "\n"


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return the SHA-256, in hexadecimal, over all that a tokenizer's output depends on."""
    attributes = [type(tokenizer).__name__, tokenizer.special_tokens_map, tokenizer.truncation_side, len(tokenizer)]
    sha = hashlib.sha256(json.dumps(attributes, sort_keys=True, default=str).encode())
    if tokenizer.is_fast:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        # Options of the last call, which every call sets again.
        content["truncation"] = content["padding"] = None
        sha.update(json.dumps(content, sort_keys=True).encode())
        return sha.hexdigest()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        for file in sorted(Path(folder).rglob("*")):
            if file.is_file():
                sha.update(file.name.encode() + b"\0" + file.read_bytes())
    return sha.hexdigest()


@contextmanager
def preserve_state(tokenizer: Any) -> Iterator[None]:
    """Restore truncation and padding of a fast tokenizer at the end: calls change them, and saving would write them."""
    if not tokenizer.is_fast:
        yield
        return
    inner = tokenizer.backend_tokenizer
    truncation, padding = inner.truncation, inner.padding
    try:
        yield
    finally:
        inner.no_truncation() if truncation is None else inner.enable_truncation(**truncation)
        inner.no_padding() if padding is None else inner.enable_padding(**padding)


def require_fast(tokenizer: Any, task: str, *, returns: str = "the characters of tokens") -> None:
    """Raise a `ConfigError` where a tokenizer is slow, which does not return what the task needs."""
    if not tokenizer.is_fast:
        problem = f"{type(tokenizer).__name__} is a slow tokenizer, which does not return {returns}"
        message = f"model: {problem}; {task} a fast tokenizer (tokenizer.json): save it again with AutoTokenizer"
        raise ConfigError(message, code="tokenizer.unsupported", key="model")


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
    is false. Truncation keeps at most `num_first` tokens at the side that the tokenizer keeps, and `num_last` at the
    end as well. Texts of more than `most_characters`, or `LONG_TEXT`, are cut.
    """
    most = LONG_TEXT if most_characters is None else most_characters
    columns = [list(texts), *([] if pairs is None else [list(pairs)])]
    rows = [row for row, of_row in enumerate(zip(*columns, strict=True)) if max(map(len, of_row)) > most]
    for row in rows if rows and tokenizes_words(tokenizer) else ():
        _cut_row(columns, row, tokenizer, num_first, num_last, most)
    return columns[0], None if pairs is None else columns[1]


def _cut_row(
    columns: list[list[str]], row: int, tokenizer: Any, num_first: int, num_last: int, most_characters: int
) -> None:
    needed = num_first
    is_long = [len(column[row]) > most_characters for column in columns]
    # The longer text of a pair is the last. A single long text needs no count: it gets more tokens than the other one.
    lengths = [
        num_tokens([column[row]], tokenizer)[0] if len(columns) > 1 and (all(is_long) or not long) else math.inf
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
            needed = max(needed, *num_tokens([column[row]], tokenizer))


def num_tokens(texts: list[str], tokenizer: Any) -> list[int]:
    """Return the number of tokens of each text, without special tokens and truncation."""
    with preserve_state(tokenizer):
        encoded = tokenizer(
            texts, add_special_tokens=False, truncation=False, return_attention_mask=False, verbose=False
        )
    return [len(ids) for ids in encoded["input_ids"]]


def _without_rest(tokenizer: Any, text: str, num_first: int, num_last: int) -> str:
    """Return a text with the same first and last tokens, and more tokens than these; the text itself if it is short."""
    end = _space(tokenizer, text, num_first, from_end=False)
    start = _space(tokenizer, text, num_last, from_end=True) if num_last else len(text)
    return text if end is None or start is None or end >= start else text[:end] + text[start:]


def _space(tokenizer: Any, text: str, needed: int, *, from_end: bool) -> int | None:
    """Return the place of a space between two words with enough tokens before it, or behind it `from_end`; or None."""
    num_characters = 8 * (needed + _MORE_TOKENS)
    while num_characters < len(text):
        space = _BETWEEN_WORDS.search(text, len(text) - num_characters if from_end else num_characters)
        if space is None:
            return None
        part = text[space.start() :] if from_end else text[: space.start()]
        if num_tokens([part], tokenizer)[0] >= needed + _MORE_TOKENS:
            return space.start()
        num_characters *= 2
    return None
