"""Samples of several sequences: batches, the order of samples and joined stores."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from tiny import tiny_tokenizer
from torch import Tensor

from paratune.batch.packing import pack, round_up
from paratune.data.columns import Samples
from paratune.data.encode import TokenizeOptions
from paratune.data.loader import Collator, PackedCollator, TrainBatches, eval_batches
from paratune.data.token_store import joined_store
from paratune.data.tokens import tokenize
from paratune.strategies.pipeline.parts import parts_of

COUNTS = np.array([2, 1, 3, 2, 4, 1, 2])
"""Sequences of each sample."""
WORDS = [4, 1, 3, 2, 8, 5, 2, 2, 6, 1, 1, 3, 7, 2, 9]
"""Words of each sequence; [CLS] and [SEP] are two more tokens, and the tenth token is the last one."""
LABELS = np.array([1, 0, 2, 1, 3, 0, 1])


@pytest.fixture(scope="module")
def collator() -> Collator:
    texts = [" ".join(["good"] * count) for count in WORDS]
    samples = Samples(texts, None, None, None, np.arange(len(texts)), None, {})
    store = tokenize(samples, TokenizeOptions(tiny_tokenizer(), 10, need_token_type_ids=True, is_cached=False))
    return Collator(store.grouped(COUNTS), LABELS, pad_token_id=0)


def same_batches(one, other) -> bool:
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def test_a_grouped_store_counts_samples_and_their_sequences(collator):
    store = collator.store
    assert len(store) == 7
    assert store.num_sequences.tolist() == COUNTS.tolist()
    assert store.examples.tolist() == np.repeat(np.arange(len(COUNTS)), COUNTS).tolist()
    # Tokens of the sequences: 6 3 | 5 | 4 10 7 | 4 4 | 8 3 3 5 | 9 | 4 10 (11 before truncation).
    assert store.lengths.tolist() == [9, 5, 21, 8, 19, 9, 14]
    assert store.lengths_at(np.array([4, 0])).tolist() == [19, 9]
    assert store.longest_sequences.tolist() == [6, 5, 10, 4, 8, 9, 10]
    assert store.sequences_at(np.array([4, 1])).tolist() == [8, 9, 10, 11, 2]
    assert store.sequence_lengths_at(np.array([4, 1])).tolist() == [8, 3, 3, 5, 5]
    assert store.num_truncated == 1


def test_a_batch_has_the_sequences_of_its_samples(collator):
    batch = collator(np.array([3, 1, 0]), 9)
    assert batch.sample_offsets.tolist() == [0, 2, 3, 5]
    assert batch.attention_mask.sum(1).tolist() == [4, 4, 5, 6, 3]
    assert (batch.labels.tolist(), batch.index.tolist()) == ([1, 0, 1], [3, 1, 0])
    assert (batch.num_samples, batch.loss_count, batch.num_sequences, batch.num_tokens) == (3, 3, 5, 22)
    assert batch.row_weight.tolist() == [1, 1, 1]
    packed = collator.packed(np.array([3, 1, 0]), 9)
    assert same_batches(packed, pack(batch))
    assert packed.num_sequences == 5


def test_filler_rows_are_samples_of_one_sequence(collator):
    batch = collator(np.array([4]), 9, num_rows=6, length=10)
    assert batch.input_ids.shape == (6, 10)
    assert batch.sample_offsets.tolist() == [0, 4, 5, 6]
    assert (batch.labels.tolist(), batch.row_weight.tolist(), batch.index.tolist()) == (
        [3, 0, 0],
        [1, 0, 0],
        [4, -1, -1],
    )
    assert (batch.num_samples, batch.num_tokens) == (1, 19)
    assert collator.labels[4] == 3
    empty = collator(np.array([], dtype=np.int64), 9)
    assert (empty.sample_offsets.tolist(), empty.num_tokens, len(empty.input_ids)) == ([0, 1], 0, 1)
    rounded = round_up(collator.packed(np.array([3, 1]), 9))  # 13 tokens, rounded to 16
    assert rounded.sample_offsets.tolist() == [0, 2, 3, 4]
    assert rounded.cu_seqlens.tolist() == [0, 4, 8, 13, 16]
    assert rounded.row_weight.tolist() == [1, 1, 0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_sample_is_trained_once_with_all_its_sequences(collator, ranks):
    seen = []
    for rank in range(ranks):
        batches = TrainBatches(PackedCollator(collator), 0, 7, 2, -(-4 // ranks), rank, ranks)
        for batch in batches.step(0):
            sizes = batch.sample_offsets.diff()
            seen += [
                (index, size) for index, size in zip(batch.index.tolist(), sizes.tolist(), strict=True) if index >= 0
            ]
    assert sorted(seen) == list(enumerate(COUNTS.tolist()))


def test_micro_batches_of_equal_shape_have_as_many_sequences(collator):
    batches = TrainBatches(collator, 0, 7, 2, 4, 0, 1, equal_shapes=True).step(0)
    assert len({tuple(batch.input_ids.shape) for batch in batches}) == 1
    assert batches[0].input_ids.shape[1] == 10
    assert sum(batch.num_samples for batch in batches) == 7


def test_evaluation_batches_are_limited_by_padded_tokens(collator):
    batches = list(eval_batches(collator, batch_size=1))
    assert sorted(index for batch in batches for index in batch.index.tolist()) == list(range(7))
    # The largest sample is 4 with 4 * 8 tokens, followed by 2 with 3 * 10.
    assert [batch.index.tolist() for batch in batches[:2]] == [[4], [2]]


def test_packed_evaluation_batches_are_limited_by_their_tokens(collator):
    # The longest sample has 21 tokens: as many as two of 9, or of 8 and 5.
    batches = eval_batches(PackedCollator(collator), batch_size=1)
    assert [batch.index.tolist() for batch in batches] == [[2], [4], [6], [0, 5], [3, 1]]


def test_samples_of_stores_are_joined_with_their_sequences(collator):
    store = collator.store
    joined = joined_store([(store, np.array([4])), (store, np.array([1, 0]))])
    assert joined.num_sequences.tolist() == [4, 1, 2]
    ours, theirs = Collator(joined, None, 0)(np.arange(3), 1), Collator(store, None, 0)(np.array([4, 1, 0]), 1)
    assert torch.equal(ours.input_ids, theirs.input_ids)
    assert torch.equal(ours.sample_offsets, theirs.sample_offsets)


def test_a_pipeline_divides_a_batch_between_samples(collator):
    parts = parts_of(collator(np.array([3, 1, 0]), 9), 2)
    assert [part.sample_offsets.tolist() for part in parts] == [[0, 2, 3], [0, 2]]
    assert [part.attention_mask.sum(1).tolist() for part in parts] == [[4, 4, 5], [6, 3]]
    assert [part.index.tolist() for part in parts] == [[3, 1], [0]]
