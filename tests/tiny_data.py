"""Splits of random token rows without files, for tests of whole runs: `from tiny_data import tiny_collator`."""

from dataclasses import replace

import numpy as np
from tiny import SPECIAL, VOCABULARY

from paratune.data.collators import MaskingCollator, WordCollator
from paratune.data.encode import WORD, text_numbers
from paratune.data.loader import Collator
from paratune.data.token_store import TokenStore
from paratune.data.tokenizers import Vocabulary


def tiny_collator(num_samples: int, *, num_classes: int = 2, seed: int = 0) -> Collator:
    """Return samples of 3 to 20 tokens; with `num_classes` 0 the targets are numbers.

    The label depends on the first token, so that a model can learn it.
    """
    random = np.random.default_rng(seed)
    lengths = random.integers(3, 21, num_samples)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = random.integers(5, len(VOCABULARY), offsets[-1]).astype(np.uint16)
    kinds = random.integers(0, max(2, num_classes), num_samples)
    tokens[offsets[:-1]] = 5 + kinds
    labels = kinds.astype(np.int64) if num_classes else (kinds - 0.5 + random.normal(0, 0.1, num_samples))
    store = TokenStore(tokens, None, offsets, lengths.astype(np.int32), 20, "0" * 64)
    return Collator(store, labels if num_classes else labels.astype(np.float32), pad_token_id=0)


def tiny_masking(num_samples: int, *, whole_words: bool = False, seed: int = 0) -> MaskingCollator:
    """Return the rows of `tiny_collator` as windows with a third of the tokens hidden.

    Windows hide 1 to 7 tokens, so the numbers of hidden tokens differ between ranks. Every third token starts a word.
    """
    store = tiny_collator(num_samples, seed=seed).store
    store = replace(
        store,
        row_values={"num_maskable": store.lengths.astype(np.int32)},
        token_values={"word_start": (np.arange(store.num_tokens) % 3 == 0).astype(np.uint8)},
    )
    ids = np.arange(len(VOCABULARY))
    vocabulary = Vocabulary(VOCABULARY.index("[MASK]"), ids < len(SPECIAL), ids[len(SPECIAL) :])
    return MaskingCollator(store, vocabulary, 0, probability=0.35, whole_words=whole_words, seed=seed)


def tiny_tags(num_samples: int, *, num_tags: int = 3, seed: int = 0) -> WordCollator:
    """Return the rows of `tiny_collator` as sentences: each token that is divisible by 3 starts a word with a tag."""
    store = tiny_collator(num_samples, seed=seed).store
    is_first = store.tokens % 3 == 0
    is_first[store.offsets[:-1]] = True
    tokens = np.split(store.tokens, store.offsets[1:-1])
    firsts = np.split(is_first, store.offsets[1:-1])
    word = np.concatenate([np.where(first, first.cumsum() - 1, -1) for first in firsts]).astype(np.int32)
    tags = [(row[first] % num_tags).astype(np.int64) for row, first in zip(tokens, firsts, strict=True)]
    return WordCollator(replace(store, token_values={WORD: word}), tags, 0)


def tiny_pairs(num_samples: int, *, seed: int = 0) -> Collator:
    """Return pairs of texts, which are the rows of `tiny_collator`, with the numbers of the texts."""
    store = tiny_collator(2 * num_samples, seed=seed).store.grouped(np.full(num_samples, 2))
    return Collator(store, text_numbers(store), pad_token_id=0, row_size=2)


def tiny_choices(num_samples: int, *, seed: int = 0) -> Collator:
    """Return questions with 2 to 4 choices, which are the rows of `tiny_collator`."""
    counts = np.random.default_rng(seed).integers(2, 5, num_samples)
    store = tiny_collator(int(counts.sum()), seed=seed).store.grouped(counts)
    return Collator(store, (np.arange(num_samples) % counts).astype(np.int64), pad_token_id=0, row_size=4)
