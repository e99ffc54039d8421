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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The token ids of a tokenizer by their role in masking."""

    mask_id: int
    is_special: npt.NDArray[np.bool_]
    """(vocabulary size,): whether a token is special ([CLS], [UNK], [MASK], ...); these are never hidden."""
    ordinary: npt.NDArray[np.int64]
    """All other tokens, ascending."""


def mask_vocabulary(tokenizer: Any) -> Vocabulary:
    """Return the vocabulary of a tokenizer that has a mask token."""
    ids = np.unique(np.fromiter(tokenizer.get_vocab().values(), dtype=np.int64))
    special = np.asarray(tokenizer.all_special_ids, dtype=np.int64)
    is_special = np.zeros(int(max(ids.max(), special.max())) + 1, dtype=bool)
    is_special[special] = True
    return Vocabulary(int(tokenizer.mask_token_id), is_special, ids[~is_special[ids]])


def check_mask_tokenizer(tokenizer: Any, *, whole_words: bool = False) -> None:
    """Check that a tokenizer has a mask token and, for `whole_words`, returns where words begin.

    Raises:
        ConfigError: It has no mask token, is a slow tokenizer, or treats a whole text as one word.
    """
    kind, name = type(tokenizer).__name__, tokenizer.name_or_path
    has_mask = tokenizer.mask_token_id is not None
    if has_mask and tokenizer.is_fast and type(tokenizer.backend_tokenizer.model).__name__ == "WordPiece":
        # Else transformers added the mask token to the vocabulary; no model was trained with it. Other kinds of
        # vocabularies may keep their own mask token among the added tokens (XLM-R).
        has_mask = tokenizer.mask_token in tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
    if not has_mask:
        message = (
            f"task.kind: mlm needs a mask token, and the vocabulary of {name} ({kind}) has none; use a model that has "
            "one (BERT, RoBERTa, DeBERTa, ModernBERT, ...), or set model.tokenizer"
        )
        raise ConfigError(message, code="tokenizer.token_missing", key="task.kind", tokenizer=name)
    if whole_words and not tokenizer.is_fast:
        message = (
            f"task.whole_words: true needs a fast tokenizer, which returns where words begin; {kind} of {name} is "
            "slow; set model.tokenizer to a folder with a tokenizer.json, or task.whole_words: false"
        )
        raise ConfigError(message, code="tokenizer.unsupported", key="task.whole_words", tokenizer=name)
    if whole_words and set(tokenizer("a b", add_special_tokens=False, verbose=False).word_ids()) == {0}:
        message = (
            "task.whole_words: true needs a tokenizer that first splits a text into words; for "
            f"{kind} of {name} 'a b' is one word; set task.whole_words: false"
        )
        raise ConfigError(message, code="tokenizer.unsupported", key="task.whole_words", tokenizer=name)


def special_frame(tokenizer: Any) -> tuple[list[int], list[int], list[int]]:
    """Return the special tokens before and after a text, found by tokenizing one, and those between two documents.

    Between two documents is the separator token, or the end token where there is none.

    Raises:
        ConfigError: The tokens of the text alone are not between special tokens in the tokens of the whole text.
    """
    whole = tokenizer("a", verbose=False)["input_ids"]
    inner = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    starts = range(len(whole) - len(inner) + 1)
    begin = next((at for at in starts if inner and whole[at : at + len(inner)] == inner), None)
    if begin is None or not {*whole[:begin], *whole[begin + len(inner) :]} <= {*tokenizer.all_special_ids}:
        message = (
            f"task.kind: mlm puts the special tokens of the tokenizer around windows, but {type(tokenizer).__name__} "
            f"of {tokenizer.name_or_path} gives {inner} for 'a' without special tokens and {whole} with them, which is "
            "not the same tokens between special ones; set model.tokenizer to another tokenizer"
        )
        raise ConfigError(message, code="tokenizer.unsupported", key="task.kind", tokenizer=tokenizer.name_or_path)
    between = next((token for token in (tokenizer.sep_token_id, tokenizer.eos_token_id) if token is not None), None)
    return whole[:begin], whole[begin + len(inner) :], [] if between is None else [between]


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
