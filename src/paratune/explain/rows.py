"""The rows that are explained: their tokens, and the words and sentences that the tokens belong to, as characters.

Dimensions: `T` tokens, `W` words, `N` rows.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paratune.base.token_characters import Span, token_characters
from paratune.data.load import Split
from paratune.data.tokenizers import PAIRED_TEXT, cut_long_texts, pair_separator, preserve_state
from paratune.errors import ConfigError, DataError
from paratune.infer.trained import TrainedModel

_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\W\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+(?:['’-]\w+)*|[^\w\s]+"
)
"""A character of Chinese or Japanese, which have no spaces; a word with its apostrophes and hyphens; punctuation."""
_LINE = re.compile(r"\S[^\n]*")
_SENTENCE = re.compile(r"\S.*?(?:[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+|$)", re.DOTALL)
IntArray = npt.NDArray[np.int64]


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


@dataclass(frozen=True)
class Word:
    """A word that the model reads."""

    text: int
    """Index of its text: 0, or 1 for the second text of a pair."""
    place: CharRange
    """Its characters."""


@dataclass(frozen=True, eq=False)
class TokenRow:
    """The tokens of one row with the words that they belong to."""

    row: int
    """Row of the file, counted from 0."""
    texts: tuple[str, ...]
    """The text, or both texts of a pair."""
    words: tuple[Word, ...]
    """(W,): words that the model reads; words behind `max_length` are missing."""
    ids: IntArray
    """(T,)."""
    type_ids: IntArray | None
    """(T,); None where the model takes none."""
    token_words: IntArray
    """(T,): index of the word of each token, -1 for special tokens."""
    sentences: IntArray
    """(W,): index of the sentence of each word, counted over all texts."""
    num_unread_words: int
    """Words behind the last token."""

    def word_text(self, number: int) -> str:
        """Return the characters of a word."""
        word = self.words[number]
        start, end = word.place
        return self.texts[word.text][start:end]

    def part_text(self, members: npt.NDArray[np.bool_]) -> str:
        """Return the characters from the first to the last word of `members`, (W,), which are in one text."""
        numbers = np.flatnonzero(members)
        first, last = self.words[int(numbers[0])], self.words[int(numbers[-1])]
        return self.texts[first.text][first.place.start : last.place.end]


def require_offsets(trained: TrainedModel) -> None:
    """Check that the model reads the start of a text, and that its tokenizer returns the characters of tokens.

    Raises:
        ConfigError: Long texts lose their middle (`head_tail`), or it is a slow tokenizer.
    """
    if trained.truncation == "head_tail":
        message = (
            "the run has data.truncation: head_tail, which takes the middle out of long texts; an explanation needs "
            "texts in one piece: train with longest_first"
        )
        raise ConfigError(message, code="task.unsupported", key="data.truncation", value=trained.truncation)
    if not trained.tokenizer.is_fast:
        raise ConfigError(
            f"{type(trained.tokenizer).__name__} is a slow tokenizer, which does not return the characters of tokens; "
            "explanations need a fast one (tokenizer.json): save it again with AutoTokenizer",
            code="tokenizer.unsupported",
        )


def read_rows(trained: TrainedModel, split: Split) -> list[TokenRow]:
    """Return the rows of a split, from `trained.read`, with their words.

    Raises:
        DataError: A row has no word that the model reads.
    """
    samples, store = split.samples, split.store
    read = []
    for at in range(len(samples)):
        pair = None if samples.text_pairs is None else samples.text_pairs[at]
        texts = (samples.texts[at],) if pair is None else (samples.texts[at], pair)
        encoding, spans, shift = _encoding(trained, texts)
        span = slice(int(store.offsets[at]), int(store.offsets[at + 1]))
        ids = np.asarray(store.tokens[span], dtype=np.int64)
        type_ids = None if store.type_ids is None else np.asarray(store.type_ids[span], dtype=np.int64)
        assert ids[: len(encoding.ids)].tolist() == encoding.ids, "the tokens of the cache are those of the tokenizer"
        tokens = list(zip(encoding.sequence_ids, spans, strict=True))
        read.append(_token_row(int(samples.rows[at]), texts, ids, type_ids, tokens, shift))
        if not read[-1].words:
            message = f"{split.source}: row {read[-1].row} has no word that the model reads"
            raise DataError(message, code="explain.rows", source=split.source, row=read[-1].row)
    return read


def _encoding(trained: TrainedModel, texts: Sequence[str]) -> tuple[Any, list[Span], int]:
    """Return the encoding of a row, as `tokenize` makes it, the characters of its tokens, and those before text 2."""
    tokenizer = trained.tokenizer
    mark = pair_separator(tokenizer) if len(texts) == 2 else ""
    second = None if len(texts) == 1 else [mark + texts[1]]
    with preserve_state(tokenizer):
        first, second = cut_long_texts([texts[0]], second, tokenizer, trained.max_length, most_characters=PAIRED_TEXT)
        read = [part[0] for part in (first, second) if part is not None]
        limit = {"truncation": trained.truncation, "max_length": trained.max_length, "verbose": False}
        encoding = tokenizer(*([text] for text in read), **limit).encodings[0]
        return encoding, token_characters([encoding, *encoding.overflowing], read)[0], len(mark)


def _token_row(
    row: int,
    texts: tuple[str, ...],
    ids: IntArray,
    type_ids: IntArray | None,
    characters: Sequence[tuple[int | None, Span]],
    shift: int,
) -> TokenRow:
    """Return a row; `characters` has the text of each token, None for special tokens, and its place in the text."""
    token_words = np.full(len(ids), -1, dtype=np.int64)
    read: list[Word] = []
    sentence_ids: list[int] = []
    num_unread = num_sentences = 0
    for number, text in enumerate(texts):
        tokens = [(position, span) for position, (which, span) in enumerate(characters) if which == number]
        found, owners = _words_of_tokens(text, [span for _, span in tokens], shift if number else 0)
        for (position, _), owner in zip(tokens, owners, strict=True):
            token_words[position] = -1 if owner is None else len(read) + owner
        starts = [place.start for place in found]
        sentence_ids += [num_sentences + index for index in containing(starts, sentences(text))]
        num_sentences += len(sentences(text))
        read += [Word(number, place) for place in found]
        end = found[-1].end if found else 0
        num_unread += sum(place.start >= end for place in words(text))
    return TokenRow(row, texts, tuple(read), ids, type_ids, token_words, np.asarray(sentence_ids), num_unread)


def _words_of_tokens(
    text: str, offsets: Sequence[tuple[int, int]], shift: int
) -> tuple[list[CharRange], list[int | None]]:
    """Return the words that tokens belong to, and for each token the index of its word.

    A token belongs to the word with its first character that is not white space. A word in which no token begins
    becomes a part of the word before it. Tokens without such a character have no word.
    """
    places = words(text)
    starts = np.asarray([place.start for place in places], dtype=np.int64)
    owners: list[int | None] = []
    for begin, end in offsets:
        begin, end = max(begin - shift, 0), max(end - shift, 0)
        inside = text[begin:end]
        first = begin + len(inside) - len(inside.lstrip())
        owners.append(int(np.searchsorted(starts, first, side="right")) - 1 if inside.strip() else None)
    used = sorted({owner for owner in owners if owner is not None})
    # A token may also cover the words behind its first one.
    last = max((end - shift for _, end in offsets), default=0)
    merged = []
    for number, index in enumerate(used):
        following = used[number + 1] if number + 1 < len(used) else len(places)
        inner = [place for place in places[index:following] if place.start < last]
        merged.append(CharRange(places[index].start, inner[-1].end))
    positions = {index: number for number, index in enumerate(used)}
    return merged, [None if owner is None else positions[owner] for owner in owners]
