"""Tokenizes words, and makes batches with the tag of a word at its first token.

Dimensions: `B` sentences, `S` padded length, `M` words of a batch that have a token.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Unpack

import numpy as np
import numpy.typing as npt
import torch

from paratune.base.token_characters import token_characters
from paratune.batch import Batch
from paratune.data.columns import IntArray, Samples
from paratune.data.loader import CollateOptions, Collator
from paratune.data.long_texts import cut_long_texts
from paratune.data.token_store import StoreWriter, TokenStore
from paratune.data.tokens import (
    TokenizeOptions,
    cached_store,
    chunks,
    require_text_length,
    require_tokens,
    token_fingerprint,
)

WORD: Final = "word"
"""(num_tokens,), int32: the word of its sentence that begins with a token; -1 for other tokens."""
IGNORED: Final = -100
"""Label of a token that is not the first of a word."""


def tokenize_words(samples: Samples, options: TokenizeOptions, *, source: str = "data") -> TokenStore:
    """Return the tokens of all sentences, with `WORD`; arguments and errors as in `tokens.tokenize`.

    Words are joined by spaces; a token belongs to the word of its last character. The tokenizer is fast.
    """
    require_text_length(options, options.tokenizer.num_special_tokens_to_add(pair=False))

    def write(writer: StoreWriter) -> None:
        for part in chunks(samples, options, source):
            _write_part(writer, samples, part, options, source)
        writer.finish(options.max_length)

    assert samples.words is not None
    lengths = [len(sentence) for sentence in samples.words]
    fingerprint = token_fingerprint(
        samples, options, words=_hash_of(samples.words), num_words=sum(lengths), characters=2
    )
    return cached_store(fingerprint, options, write, source=source, token_values={WORD: "<i4"})


def _hash_of(words: Sequence[Sequence[str]]) -> str:
    """Return where words begin, as a hash: the joined texts do not show it where a word contains a space."""
    sha = hashlib.sha256()
    for sentence in words:
        sha.update(np.asarray([len(sentence), *map(len, sentence)], dtype="<i8").tobytes())
    return sha.hexdigest()


def _write_part(writer: StoreWriter, samples: Samples, part: slice, options: TokenizeOptions, source: str) -> None:
    def call(texts: list[str], **limits: Any) -> Any:
        return options.tokenizer(texts, return_attention_mask=False, verbose=False, **limits)

    texts, _ = cut_long_texts(samples.texts[part], None, options.tokenizer, options.max_length)
    encodings = call(texts, truncation=False).encodings
    full_lengths = [len(encoding.ids) for encoding in encodings]
    long = [number for number, length in enumerate(full_lengths) if length > options.max_length]
    if long:
        cut = call([texts[number] for number in long], truncation=True, max_length=options.max_length).encodings
        for number, encoding in zip(long, cut, strict=True):
            encodings[number] = encoding
    assert samples.words is not None
    words = [
        _first_tokens(row, text, sentence)
        for row, text, sentence in zip(encodings, texts, samples.words[part], strict=True)
    ]
    require_tokens([int((starts >= 0).sum()) for starts in words], samples.rows[part], source)
    writer.add(
        [encoding.ids for encoding in encodings],
        [encoding.type_ids for encoding in encodings] if options.need_token_type_ids else None,
        full_lengths,
        {WORD: [starts.tolist() for starts in words]},
    )


def _first_tokens(encoding: Any, text: str, words: Sequence[str]) -> IntArray:
    """Return for each token the word that begins with it, or -1; `text` is the words with spaces between them."""
    begins = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
    characters = token_characters([encoding, *encoding.overflowing], [text])[0]
    offsets = np.asarray(characters, dtype=np.int64).reshape(-1, 2)
    is_text = np.asarray([number == 0 for number in encoding.sequence_ids]) & (offsets[:, 1] > offsets[:, 0])
    word = np.where(is_text, np.searchsorted(begins, offsets[:, 1] - 1, side="right") - 1, -1)
    seen = np.maximum.accumulate(np.concatenate([[-1], word]))[:-1]
    return np.where(word > seen, word, -1)


def tags_by_word(values: npt.NDArray[Any], store: TokenStore, row: int, num_words: int) -> IntArray:
    """Return the tag of each word of a sentence, (num_words,), words behind `max_length` included; -1 without a token.

    `values`, of at least as many as the tokens of the sentence, are those of tokens; `row` is the sentence.
    """
    begin, end = store.offsets[row : row + 2].tolist()
    word = np.asarray(store.token_values[WORD][begin:end])
    places = np.flatnonzero(word >= 0)
    tags = np.full(num_words, -1, dtype=np.int64)
    tags[word[places]] = values[places].astype(np.int64)
    return tags


@dataclass(frozen=True, eq=False)
class WordCollator:
    """Makes padded batches of sentences, with a label at the first token of each word. See `loader.Collate`."""

    store: TokenStore
    """From `tokenize_words`."""
    tags: list[IntArray] | None
    """Tag ids of each sentence; None without labels."""
    pad_token_id: int

    @cached_property
    def _labels(self) -> IntArray:
        """Label of each token of the store, (num_tokens,): a tag (0 where tags are unknown), or `IGNORED`."""
        word = np.asarray(self.store.token_values[WORD])
        labels = np.where(word >= 0, 0, IGNORED).astype(np.int64)
        if self.tags is not None:
            first = np.cumsum([0, *map(len, self.tags[:-1])])
            row = np.repeat(np.arange(len(self.store)), self.store.lengths)
            is_first = word >= 0
            labels[is_first] = np.concatenate(self.tags)[first[row[is_first]] + word[is_first]]
        return labels

    @cached_property
    def _num_words(self) -> IntArray:
        """Words of each sentence that have a token, (N,)."""
        before = np.concatenate([[0], np.cumsum(self._labels >= 0)])
        return np.asarray(np.diff(before[np.asarray(self.store.offsets)]), dtype=np.int64)

    def loss_denominator(self, indices: IntArray, *, epoch: int | None = None) -> float:
        """Return the number of words of these sentences."""
        return float(max(1, self._num_words[indices].sum()))

    def __call__(self, indices: IntArray, loss_denominator: float, **options: Unpack[CollateOptions]) -> Batch:
        """Return the sentences at `indices` as one batch: `labels` is (B, S), `IGNORED` except at first tokens."""
        batch = Collator(self.store, None, self.pad_token_id)(indices, loss_denominator, **options)
        labels_BS = np.full(tuple(batch.input_ids.shape), IGNORED, dtype=np.int64)
        for row, sentence in enumerate(indices.tolist()):
            begin, end = self.store.offsets[sentence : sentence + 2].tolist()
            labels_BS[row, : end - begin] = self._labels[begin:end]
        return replace(
            batch,
            labels=None if self.tags is None else torch.from_numpy(labels_BS),
            label_places=torch.from_numpy(np.flatnonzero(labels_BS != IGNORED)),
            row_size=int(self.store.lengths.max()),
        )
