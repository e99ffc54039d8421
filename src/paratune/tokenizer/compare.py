"""Compares tokenizers on the same texts: tokens per word, split words, unknown tokens, bytes per token."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paratune.base.token_characters import token_characters
from paratune.errors import ConfigError

_WORD = re.compile(r"\w+")
_BATCH = 256


@dataclass
class TokenizerFigures:
    """Counts over texts and the resulting ratios, without special tokens around a text."""

    name: str
    vocab_size: int
    num_texts: int = 0
    num_words: int = 0
    """Sequences of letters and digits."""
    num_word_tokens: int = 0
    """Tokens that overlap words, counted once for each word."""
    num_cut_words: int = 0
    """Words with more than one token."""
    num_unknown_words: int = 0
    """Words with an unknown token."""
    num_tokens: int = 0
    num_unknown: int = 0
    num_characters: int = 0
    """Without white space."""
    num_unknown_characters: int = 0
    num_bytes: int = 0
    """UTF-8."""

    @property
    def fertility(self) -> float | None:
        """Tokens per word, at least 1.

        Source: Rust et al., How Good is Your Tokenizer?, ACL 2021, section 4, with words of a treebank.
        """
        return _ratio(self.num_word_tokens, self.num_words)

    @property
    def continued_share(self) -> float | None:
        """Share of words with more than one token.

        Source: as for fertility ("proportion of continued words").
        """
        return _ratio(self.num_cut_words, self.num_words)

    @property
    def unknown_share(self) -> float | None:
        """Share of unknown tokens."""
        return _ratio(self.num_unknown, self.num_tokens)

    @property
    def coverage(self) -> float | None:
        """Share of characters, without white space, in known tokens."""
        return _ratio(self.num_characters - self.num_unknown_characters, self.num_characters)

    @property
    def bytes_per_token(self) -> float | None:
        """UTF-8 bytes per token, the compression."""
        return _ratio(self.num_bytes, self.num_tokens)

    def as_dict(self) -> dict[str, Any]:
        names = ("name", "vocab_size", "num_texts", "num_words", "num_tokens", "num_unknown", "num_unknown_words")
        shares = ("fertility", "continued_share", "unknown_share", "coverage", "bytes_per_token")
        return {name: getattr(self, name) for name in (*names, *shares)}

    def add(self, text: str, spans: Sequence[tuple[int, int]], unknown: Sequence[bool]) -> None:
        """Add the counts of a text.

        Args:
            spans: Begin and end of each token.
        """
        self.num_texts += 1
        self.num_bytes += len(text.encode("utf-8", "replace"))
        self.num_tokens += len(spans)
        self.num_unknown += sum(unknown)
        lost = np.zeros(len(text), dtype=bool)
        for (begin, end), is_unknown in zip(spans, unknown, strict=True):
            lost[begin:end] |= is_unknown
        dark = np.fromiter((not character.isspace() for character in text), dtype=bool, count=len(text))
        self.num_characters += int(dark.sum())
        self.num_unknown_characters += int((dark & lost).sum())
        self._add_words(text, sorted(spans), lost)

    def _add_words(self, text: str, spans: Sequence[tuple[int, int]], lost: Any) -> None:
        first = 0
        for word in _WORD.finditer(text):
            begin, end = word.span()
            while first < len(spans) and spans[first][1] <= begin:
                first += 1
            last = first
            while last < len(spans) and spans[last][0] < end:
                last += 1
            count = sum(spans[number][1] > spans[number][0] for number in range(first, last))
            self.num_words += 1
            self.num_word_tokens += max(1, count)
            self.num_unknown_words += bool(lost[begin:end].any())
            self.num_cut_words += count > 1


def compare(tokenizers: Iterable[tuple[str, Any]], texts: Sequence[str]) -> list[TokenizerFigures]:
    """Return the figures of each tokenizer on the texts."""
    results = []
    for name, tokenizer in tokenizers:
        figures = TokenizerFigures(name, len(tokenizer))
        for begin in range(0, len(texts), _BATCH):
            some = list(texts[begin : begin + _BATCH])
            for text, encoding in zip(
                some, tokenizer(some, add_special_tokens=False, verbose=False).encodings, strict=True
            ):
                unknown = [token_id == tokenizer.unk_token_id for token_id in encoding.ids]
                figures.add(text, token_characters([encoding], [text])[0], unknown)
        results.append(figures)
    return results


def load_vocabulary(path: Path) -> Any:
    """Return a BERT tokenizer with a WordPiece vocabulary, one entry per line; lower-case if no entry has capitals.

    Raises:
        ConfigError: The file is not a WordPiece vocabulary.
    """
    from transformers import BertTokenizerFast

    try:
        entries = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path} cannot be read as a vocabulary: {error}"
        raise ConfigError(message, code="tokenizer.vocabulary_unreadable", path=path) from error
    if "[UNK]" not in entries:
        message = f"{path} is not a WordPiece vocabulary: it has no line [UNK]; use the folder of a tokenizer"
        raise ConfigError(message, code="tokenizer.vocabulary_unreadable", path=path)
    is_lower = not any(entry != entry.lower() for entry in entries if not entry.startswith("["))
    ids = {entry: number for number, entry in enumerate(entries)}
    return BertTokenizerFast(vocab=ids, do_lower_case=is_lower)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
