"""Collators of tasks whose labels are not one for each sample: windows with hidden tokens, tagged words, answers.

A window is one sequence, or several with `task.windows: separate`. The random choices of hidden tokens depend only on
(seed, epoch, sequence), not on the number of ranks, accumulation or earlier draws; in an evaluation, only on the
sequence.

Dimensions: `B` samples, `S` padded length, `M` labelled tokens of a batch.

Source: Devlin et al., BERT, NAACL 2019, section 3.1 and appendix C.2, and its create_pretraining_data.py.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch

from paratune.batch import Batch
from paratune.data.columns import IntArray
from paratune.data.encode import ASKED, BOUNDS, NUM_MASKABLE, WORD, WORD_START
from paratune.data.loader import ChangedBatches, CollateOptions, Collator
from paratune.data.token_store import TokenStore
from paratune.data.tokenizers import Vocabulary

IGNORED = -100
"""Label of a token that the model does not predict, and of one that is not the first of a word."""
MASKED, CHANGED = 0.8, 0.1
"""Shares of the hidden tokens that are replaced by the mask token, and by a random token; the others are not replaced,
but predicted too."""
_STREAM = 2**32 + 1
"""Random stream of masks; orders of epochs and cuts of splits use other streams."""
_EVALUATION = (0, 0, 2**32 + 2)  # three parts: with two, the key could be that of an order of samples
Words = npt.NDArray[np.uint64]


def num_hidden(num_maskable: npt.ArrayLike, probability: float) -> IntArray:
    """Return how many tokens of a sequence are hidden: max(1, round(probability * n)), and 0 for n = 0.

    Halves are rounded to even, as by Python's `round`, which BERT's code calls. BERT's code also counts [CLS] and [SEP]
    (77 of 512 tokens); here n counts only tokens that can be hidden (76 of 510).
    `num_maskable` is n, a number or an array; `probability` is `task.mask_probability`.
    """
    tokens = np.asarray(num_maskable, dtype=np.int64)
    wanted: IntArray = np.maximum(1, np.rint(probability * tokens).astype(np.int64))
    return np.minimum(tokens, wanted)


@dataclass(frozen=True, eq=False)
class MaskingCollator:
    """Makes padded batches of the windows of a split with hidden tokens. See `loader.Collate`."""

    store: TokenStore
    """Windows of documents."""
    vocabulary: Vocabulary
    pad_token_id: int
    probability: float = 0.15
    whole_words: bool = False
    """Whether to hide all tokens of a word, or none."""
    seed: int = 0
    """`run.seed`; evaluations do not depend on it."""
    _keys: dict[int | None, Words] = field(default_factory=dict)
    """Philox key by epoch; None for evaluations."""
    _drawn: dict[tuple[int | None, int], tuple[IntArray, np.random.Philox]] = field(default_factory=dict)
    """Draws of `loss_denominator`, by epoch and sequence, until `__call__` uses them."""

    def loss_denominator(self, indices: IntArray, *, epoch: int | None = None) -> float:
        """Return the number of hidden tokens of these windows, at least 1: without hidden tokens the loss is 0 / 1."""
        sequences = self.store.sequences_at(indices)
        if not self.whole_words:
            return float(max(1, num_hidden(self.store.row_values[NUM_MASKABLE][sequences], self.probability).sum()))
        if epoch is None:
            return float(max(1, self._num_evaluated[sequences].sum()))
        # With whole words, the number depends on the draw of each sequence; this rank keeps its draws for `__call__`.
        self._drawn.clear()
        total = 0
        for sequence in sequences.tolist():
            drawn = self._drawn[epoch, sequence] = self._draw(sequence, epoch)
            total += len(drawn[0])
        return float(max(1, total))

    @cached_property
    def _num_evaluated(self) -> IntArray:
        """Number of tokens of each sequence that an evaluation hides, (Q,)."""
        all_sequences = range(len(self.store.offsets) - 1)
        return np.asarray([len(self._draw(sequence, None)[0]) for sequence in all_sequences], dtype=np.int64)

    def __call__(self, indices: IntArray, loss_denominator: float, **options: Unpack[CollateOptions]) -> Batch:
        """Return the windows at `indices` as one batch: `labels` is (B, S), `IGNORED` where nothing is hidden."""
        padded = Collator(self.store, None, self.pad_token_id)
        batch, epoch = padded(indices, loss_denominator, **options), options.get("epoch")
        ids_BS = batch.input_ids.numpy()  # a view of the batch, changed in place
        labels_BS = np.full_like(ids_BS, IGNORED)
        for row, sequence in enumerate(self.store.sequences_at(indices).tolist()):
            is_drawn = (epoch, sequence) in self._drawn
            places, random = self._drawn.pop((epoch, sequence)) if is_drawn else self._draw(sequence, epoch)
            hidden = ids_BS[row, places]
            labels_BS[row, places] = hidden
            ids_BS[row, places] = replace_hidden(hidden, self.vocabulary, random)
        places_M = np.flatnonzero(labels_BS != IGNORED)
        return replace(batch, labels=torch.from_numpy(labels_BS), label_places=torch.from_numpy(places_M))

    def _draw(self, sequence: int, epoch: int | None) -> tuple[IntArray, np.random.Philox]:
        """Return the hidden positions of a sequence, ascending, and its random stream for `replace_hidden`."""
        if epoch not in self._keys:
            stream = _EVALUATION if epoch is None else (self.seed, epoch, _STREAM)
            self._keys[epoch] = np.random.SeedSequence(stream).generate_state(2, np.uint64).astype(np.uint64)
        # The sequence is the highest word of the counter: each has a separate stream of 2^192 blocks.
        random = np.random.Philox(key=self._keys[epoch], counter=np.array([0, 0, 0, sequence], dtype=np.uint64))
        begin, end = self.store.offsets[sequence : sequence + 2].tolist()
        maskable = np.flatnonzero(~self.vocabulary.is_special[self.store.tokens[begin:end]])
        count = int(num_hidden(len(maskable), self.probability))
        if not self.whole_words:
            keys = _raw_words(random, len(maskable))
            is_all = count >= len(maskable)
            return maskable if is_all else np.sort(maskable[np.argpartition(keys, count)[:count]]), random
        word_numbers = np.cumsum(self.store.token_values[WORD_START][begin:end], dtype=np.int64)[maskable]
        return _whole_words(maskable, word_numbers, count, random), random


def _raw_words(random: np.random.Philox, count: int) -> Words:
    return np.asarray(random.random_raw(count), dtype=np.uint64)


def _whole_words(places: IntArray, word_numbers: IntArray, count: int, random: np.random.Philox) -> IntArray:
    """Return the positions of randomly chosen words with at most `count` tokens together, ascending.

    Where every word is longer than `count`, one word is chosen, so that every window has hidden tokens. `places` are
    the positions of maskable tokens, and `word_numbers` their words; `random` gives a key for each word.
    """
    if len(places) == 0:
        return places
    sizes = np.bincount(word_numbers)
    words = np.flatnonzero(sizes)
    order = words[np.argsort(_raw_words(random, len(words)), kind="stable")]
    is_chosen = np.zeros(len(sizes), dtype=bool)
    is_chosen[order[greedy_fit(sizes[order], count) or [0]]] = True
    return places[is_chosen[word_numbers]]


def greedy_fit(sizes: IntArray, room: int) -> list[int]:
    """Return the indices of a greedy choice: in order, each item, of 1 or more, that fits into the rest of `room`."""
    chosen: list[int] = []
    at = 0
    while at < len(sizes) and room > 0:
        sums = np.cumsum(sizes[at : at + room])
        count = int(np.searchsorted(sums, room, side="right"))
        chosen += range(at, at + count)
        room -= int(sums[count - 1]) if count else 0
        at += count
        later = np.flatnonzero(sizes[at:] <= room)
        if len(later) == 0:
            break
        at += int(later[0])
    return chosen


def replace_hidden(tokens: IntArray, vocabulary: Vocabulary, random: np.random.Philox) -> IntArray:
    """Return the input tokens in place of hidden tokens: 80% mask tokens, 10% random ordinary tokens, 10% unchanged.

    Each token is drawn independently, as in BERT's code.
    """
    raw = _raw_words(random, 2 * len(tokens))
    share = (raw[: len(tokens)] >> np.uint64(11)) * 2.0**-53  # the upper 53 bits as a float in [0, 1)
    others = vocabulary.ordinary[(raw[len(tokens) :] % np.uint64(len(vocabulary.ordinary))).astype(np.int64)]
    return np.where(share < MASKED, vocabulary.mask_id, np.where(share < MASKED + CHANGED, others, tokens))


def question_batches(store: TokenStore, pad_token_id: int) -> ChangedBatches:
    """Return a collator of texts with masks to fill in, from their store.

    Its batches have no labels; `asked` is the position of the mask in its row.
    """
    inner = Collator(store, None, pad_token_id)
    return ChangedBatches(inner, partial(_add_values, store=store, name=ASKED, attribute="asked", filler=0))


def window_batches(collator: Collator) -> ChangedBatches:
    """Return a collator of questions whose batches have `row_bounds`: where the context of each window is."""
    # A filler row has only the first tokens of a window: its bounds and labels are set to those, for valid indices.
    how: dict[str, Any] = {"store": collator.store, "name": BOUNDS, "attribute": "row_bounds", "filler": [0, 0, 1]}
    return ChangedBatches(collator, partial(_add_values, **how))


def _add_values(batch: Batch, *, epoch: int | None, store: TokenStore, name: str, attribute: str, filler: Any) -> Batch:
    """Return a batch with the values of its sequences, from `row_values`, as a field."""
    values = np.asarray([filler] * len(batch.index), dtype=np.int64)
    values[: batch.num_samples] = store.row_values[name][batch.index[: batch.num_samples].numpy()]
    if batch.labels is not None:
        batch.labels[batch.num_samples :] = 0
    changes: dict[str, Any] = {attribute: torch.from_numpy(values)}
    return replace(batch, **changes)


@dataclass(frozen=True, eq=False)
class WordCollator:
    """Makes padded batches of sentences, with a label at the first token of each word. See `loader.Collate`."""

    store: TokenStore
    """Tagged sentences."""
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
