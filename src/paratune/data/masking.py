"""Hiding tokens of windows, so that a model learns to find them: which, and what stands in their place.

What is drawn is a function of (seed, epoch, window) alone, never of the number of ranks, of accumulation or of what was
drawn before; in an evaluation of the window alone.

Source: Devlin et al., BERT, NAACL 2019, section 3.1 and appendix C.2, and its create_pretraining_data.py. Floor 3.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Unpack

import numpy as np
import numpy.typing as npt
import torch

from paratune.batch import Batch
from paratune.data.documents import Tokens, Vocabulary
from paratune.data.loader import Collator, How, IntArray
from paratune.data.token_store import TokenStore

IGNORED = -100
"""Label of a token that is not to be found."""
MASKED, CHANGED = 0.8, 0.1
"""Shares of the hidden tokens that become the mask token, and a random one; the others stay, to be found all the
same."""
_STREAM = 2**32 + 1
"""The seed's random streams of masks; orders of epochs and cuts have others."""
_EVALUATION = (0, 0, 2**32 + 2)  # three parts, or the key would be that of an order of samples
Words = npt.NDArray[np.uint64]


def num_hidden(num_maskable: npt.ArrayLike, probability: float) -> IntArray:
    """Return how many tokens of a window are hidden: max(1, round(probability * n)), of none none.

    Half goes to even, as in Python's round, which BERT's own code calls. That code counts [CLS] and [SEP] as well (77
    of 512 tokens); here only what can be hidden counts (76 of 510).

    Args:
        num_maskable: Tokens that are not special, of one window or of many.
        probability: `task.mask_probability`.
    """
    tokens = np.asarray(num_maskable, dtype=np.int64)
    wanted: IntArray = np.maximum(1, np.rint(probability * tokens).astype(np.int64))
    return np.minimum(tokens, wanted)


@dataclass(frozen=True, eq=False)
class MaskingCollator:
    """Makes padded batches of windows with hidden tokens; one for each split. See `loader.Collate`."""

    store: TokenStore
    """Windows, from `documents.make_windows`."""
    vocabulary: Vocabulary
    pad_token_id: int
    probability: float = 0.15
    """Share of the tokens that are hidden."""
    whole_words: bool = False
    """Hide all tokens of a word, or none."""
    seed: int = 0
    """`run.seed`; evaluations do not depend on it."""
    _keys: dict[int | None, Words] = field(default_factory=dict)
    _waiting: dict[tuple[int | None, int], tuple[IntArray, np.random.Philox]] = field(default_factory=dict)
    """What was drawn for the denominator of a step, by epoch and window, until it is in a batch."""

    def loss_denominator(self, indices: IntArray, *, epoch: int | None = None) -> float:
        """Return the tokens that are hidden in these windows; 1 where there are none, for their loss is 0."""
        if not self.whole_words:
            return float(max(1, num_hidden(self.store.of_rows["num_maskable"][indices], self.probability).sum()))
        if epoch is None:
            return float(max(1, self._num_evaluated[indices].sum()))
        self._waiting.clear()
        total = 0
        for window in indices.tolist():
            drawn = self._waiting[epoch, window] = self._drawn(window, epoch)
            total += len(drawn[0])
        return float(max(1, total))

    @cached_property
    def _num_evaluated(self) -> IntArray:
        """How many tokens of each window an evaluation hides, (N,)."""
        return np.asarray([len(self._drawn(window, None)[0]) for window in range(len(self.store))], dtype=np.int64)

    def __call__(self, indices: IntArray, loss_denominator: float, **how: Unpack[How]) -> Batch:
        """Return the windows at `indices` as one batch: `labels` is (B, S), `IGNORED` where nothing is hidden."""
        padded = Collator(self.store, None, self.pad_token_id)
        batch, epoch = padded(indices, loss_denominator, **how), how.get("epoch")
        ids_BS = batch.input_ids.numpy()  # its own memory: changed in place
        labels_BS = np.full_like(ids_BS, IGNORED)
        for row, window in enumerate(indices.tolist()):
            is_waiting = (epoch, window) in self._waiting
            places, random = self._waiting.pop((epoch, window)) if is_waiting else self._drawn(window, epoch)
            hidden = ids_BS[row, places]
            labels_BS[row, places] = hidden
            ids_BS[row, places] = replaced(hidden, self.vocabulary, random)
        places_M = np.flatnonzero(labels_BS != IGNORED)
        return replace(batch, labels=torch.from_numpy(labels_BS), label_places=torch.from_numpy(places_M))

    def _drawn(self, window: int, epoch: int | None) -> tuple[IntArray, np.random.Philox]:
        """Return which places of a window are hidden, ascending, and the random stream behind the draw."""
        if epoch not in self._keys:
            stream = _EVALUATION if epoch is None else (self.seed, epoch, _STREAM)
            self._keys[epoch] = np.random.SeedSequence(stream).generate_state(2, np.uint64).astype(np.uint64)
        random = np.random.Philox(key=self._keys[epoch], counter=np.array([0, 0, 0, window], dtype=np.uint64))
        begin, end = self.store.offsets[window : window + 2].tolist()
        maskable = np.flatnonzero(~self.vocabulary.is_special[self.store.tokens[begin:end]])
        room = int(num_hidden(len(maskable), self.probability))
        if not self.whole_words:
            return _smallest(maskable, _words(random, len(maskable)), room), random
        number_of = np.cumsum(self.store.of_tokens["word_start"][begin:end], dtype=np.int64)[maskable]
        return _whole_words(maskable, number_of, room, random), random


def _words(random: np.random.Philox, count: int) -> Words:
    return np.asarray(random.random_raw(count), dtype=np.uint64)


def _smallest(places: IntArray, keys: Words, count: int) -> IntArray:
    """Return the places with the smallest keys, ascending."""
    if count >= len(places):
        return places
    return np.sort(places[np.argpartition(keys, count)[:count]])


def _whole_words(places: IntArray, number_of: IntArray, room: int, random: np.random.Philox) -> IntArray:
    """Return the places of words in random order, each that still fits, ascending.

    Where not even one fits, the first of that order is taken, so that every window has something to find.

    Args:
        places: Of maskable tokens.
        number_of: As many; the word of each.
        room: Most tokens.
        random: Gives a key for each word.
    """
    if len(places) == 0:
        return places
    sizes = np.bincount(number_of)
    words = np.flatnonzero(sizes)
    order = words[np.argsort(_words(random, len(words)), kind="stable")]
    is_taken = np.zeros(len(sizes), dtype=bool)
    is_taken[order[fitting(sizes[order], room) or [0]]] = True
    return places[is_taken[number_of]]


def fitting(sizes: IntArray, room: int) -> list[int]:
    """Return which of the things in a row are taken into a room, each that still fits when its turn comes.

    Args:
        sizes: Of the things, at least 1 each.
        room: Sum of the sizes that are taken, at most.
    """
    taken: list[int] = []
    at = 0
    while at < len(sizes) and room > 0:
        sums = np.cumsum(sizes[at : at + room])
        count = int(np.searchsorted(sums, room, side="right"))
        taken += range(at, at + count)
        room -= int(sums[count - 1]) if count else 0
        at += count
        later = np.flatnonzero(sizes[at:] <= room)
        if len(later) == 0:
            break
        at += int(later[0])
    return taken


def replaced(tokens: Tokens, vocabulary: Vocabulary, random: np.random.Philox) -> Tokens:
    """Return what stands in the place of hidden tokens: 80% masks, 10% random ordinary tokens, 10% themselves.

    Each is drawn by itself, as in BERT's own code.
    """
    raw = _words(random, 2 * len(tokens))
    share = (raw[: len(tokens)] >> np.uint64(11)) * 2.0**-53
    others = vocabulary.ordinary[(raw[len(tokens) :] % np.uint64(len(vocabulary.ordinary))).astype(np.int64)]
    return np.where(share < MASKED, vocabulary.mask_id, np.where(share < MASKED + CHANGED, others, tokens))


@dataclass(frozen=True, eq=False)
class QuestionCollator:
    """Makes padded batches of texts with masks to fill; `documents.make_questions` has the store. See `Collate`."""

    store: TokenStore
    pad_token_id: int

    def loss_denominator(self, indices: IntArray, *, epoch: int | None = None) -> float:
        return float(len(indices))

    def __call__(self, indices: IntArray, loss_denominator: float, **how: Unpack[How]) -> Batch:
        """Return the texts at `indices` as one batch without labels: `asked` says which token is to be filled in."""
        padded = Collator(self.store, None, self.pad_token_id)
        batch = padded(indices, loss_denominator, **how)
        asked = np.zeros(len(batch.index), dtype=np.int64)
        asked[: len(indices)] = self.store.of_rows["asked"][indices]
        return replace(batch, asked=torch.from_numpy(asked))
