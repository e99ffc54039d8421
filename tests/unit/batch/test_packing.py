"""Packing takes the padding out of a batch, and unpacking puts values back where their tokens would stand."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_data import tiny_masking

from paratune.batch import Batch
from paratune.batch.packing import pack, round_up, rounded_size, unpack


def padded(lengths: list[int], *, length: int | None = None) -> Batch:
    """Rows whose tokens are 1, 2, 3, ... through the whole batch; padding is 0."""
    length = length or max(lengths)
    mask = (torch.arange(length) < torch.tensor(lengths)[:, None]).long()
    ids = torch.zeros_like(mask)
    ids[mask > 0] = torch.arange(1, sum(lengths) + 1)
    return Batch(
        input_ids=ids,
        row_weight=torch.ones(len(lengths)),
        index=torch.arange(len(lengths)),
        num_samples=len(lengths),
        num_tokens=sum(lengths),
        num_padded_tokens=ids.numel(),
        loss_denominator=float(len(lengths)),
        attention_mask=mask,
        token_type_ids=ids % 2 * mask,
        max_seqlen=length,
        labels=torch.tensor([7] * len(lengths)),
    )


def test_packed_rows_follow_each_other():
    batch = pack(padded([3, 1, 2]))
    assert batch.is_packed
    assert batch.attention_mask is None
    assert batch.input_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.token_type_ids.tolist() == [1, 0, 1, 0, 1, 0]
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 0, 1]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert batch.cu_seqlens.dtype == torch.int32
    assert batch.slots.tolist() == [0, 1, 2, 3, 6, 7]
    assert (batch.max_seqlen, batch.num_tokens, batch.num_padded_tokens) == (3, 6, 6)
    assert batch.labels.tolist() == [7, 7, 7]


@given(lengths=st.lists(st.one_of(st.integers(1, 40), st.just(512)), min_size=1, max_size=6), more=st.integers(0, 5))
def test_unpack_reverses_pack(lengths: list[int], more: int):
    whole = padded(lengths, length=max(lengths) + more)
    batch = pack(whole)
    assert torch.equal(unpack(batch.input_ids, batch, 0), whole.input_ids)
    assert torch.equal(unpack(torch.ones_like(batch.input_ids), batch, 0), whole.attention_mask)
    places = torch.arange(whole.max_seqlen).expand_as(whole.input_ids) * whole.attention_mask
    assert torch.equal(unpack(batch.position_ids, batch, 0), places)
    pairs = torch.stack([batch.input_ids, -batch.input_ids], dim=1).float()
    assert torch.equal(unpack(pairs, batch, 0.0)[..., 1], -whole.input_ids.float())
    assert int(batch.cu_seqlens[-1]) == len(batch.input_ids) == sum(lengths)


@pytest.mark.parametrize("whole_words", [False, True])
def test_labels_of_tokens_are_packed_with_them(whole_words: bool):
    whole = tiny_masking(9, whole_words=whole_words)(np.arange(9), 1.0, epoch=0, num_rows=11)
    batch = pack(whole)
    places = batch.label_places
    assert torch.equal(batch.labels[places], whole.labels[whole.labels >= 0])
    assert torch.equal(batch.slots[places], whole.label_places)
    assert torch.equal(places, (batch.labels >= 0).nonzero().squeeze(1))


def test_the_mask_to_fill_in_keeps_its_position_in_its_row():
    batch = pack(replace(padded([3, 1, 2]), labels=None, asked=torch.tensor([2, 0, 1])))
    assert batch.input_ids[batch.label_places].tolist() == [3, 4, 6]


def test_classes_of_rows_are_not_packed_like_labels_of_tokens():
    """(B, C) sets of classes may have the shape of the tokens."""
    sets = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    assert torch.equal(pack(replace(padded([3, 1]), labels=sets)).labels, sets)


@given(st.integers(0, 10**6))
def test_a_rounded_size_is_at_most_a_sixteenth_more(count: int):
    size = rounded_size(count)
    assert size % 8 == 0
    assert count <= size < count + max(8, count / 16 + 1)
    assert rounded_size(size) == size


@given(st.integers(1, 20_000), st.integers(1, 8))
def test_there_are_few_rounded_sizes(smallest: int, times: int):
    """16 from one power of two to the next: whatever the batches, no more shapes than that."""
    sizes = {rounded_size(count) for count in range(smallest, times * smallest + 1, max(1, smallest // 200))}
    assert len(sizes) <= 16 * times.bit_length() + 1


def test_rounded_sizes_written_out():
    assert [rounded_size(count) for count in (0, 1, 8, 9, 128, 129, 257, 4096, 4097)] == [
        *(0, 8, 8, 16),
        *(128, 136, 272),  # steps of 256 / 32 = 8, then of 512 / 32 = 16
        *(4096, 4352),  # of 8192 / 32 = 256
    ]


def test_filler_rows_are_last():
    before = pack(padded([3, 1, 2]))
    batch = round_up(before)
    assert batch.input_ids.tolist() == [1, 2, 3, 4, 5, 6, 1, 1]
    assert batch.token_type_ids.tolist() == [1, 0, 1, 0, 1, 0, 0, 0]
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 0, 1, 0, 1]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 6, 8]
    assert batch.cu_seqlens.dtype == torch.int32
    assert unpack(batch.input_ids, batch, 0).tolist() == [[1, 2, 3], [4, 0, 0], [5, 6, 0], [1, 1, 0]]
    assert batch.row_weight.tolist() == [1, 1, 1, 0]
    assert batch.index.tolist() == [0, 1, 2, -1]
    assert batch.labels.tolist() == [7, 7, 7, 0]
    assert (batch.num_samples, batch.num_tokens, batch.num_padded_tokens, batch.max_seqlen) == (3, 6, 8, 3)
    assert (batch.loss_count, batch.loss_denominator) == (3, 3.0)


def test_filler_rows_are_at_most_as_long_as_the_longest_row():
    batch = round_up(pack(padded([2, 1, 2, 2, 2])))  # 9 tokens and 7 of filler
    assert batch.cu_seqlens.tolist() == [0, 2, 3, 5, 7, 9, 11, 13, 15, 16]
    assert batch.position_ids.tolist()[9:] == [0, 1, 0, 1, 0, 1, 0]
    assert unpack(batch.input_ids, batch, 0).shape == (9, 2)


def test_a_batch_of_a_rounded_size_does_not_change():
    batch = pack(padded([3, 5]))
    assert round_up(batch) is batch


@given(lengths=st.lists(st.integers(1, 70), min_size=1, max_size=9))
def test_rounding_keeps_all_values(lengths: list[int]):
    before = pack(padded(lengths))
    batch = round_up(before)
    assert len(batch.input_ids) == batch.num_padded_tokens == int(batch.cu_seqlens[-1]) == rounded_size(sum(lengths))
    assert all(0 < end - begin <= max(lengths) for begin, end in pairwise(batch.cu_seqlens.tolist()))
    for name in ("input_ids", "position_ids", "slots", "token_type_ids"):
        assert torch.equal(getattr(batch, name)[: sum(lengths)], getattr(before, name))
    assert torch.equal(unpack(batch.input_ids, batch, 0)[: len(lengths)], unpack(before.input_ids, before, 0))
    assert batch.slots.unique().numel() == len(batch.slots)


def test_labelled_tokens_are_rounded_with_a_token_without_label():
    before = pack(tiny_masking(9)(np.arange(9), 1.0, epoch=0))
    batch = round_up(before)
    M = len(before.label_places)
    assert len(batch.label_places) == rounded_size(M) > M
    assert torch.equal(batch.label_places[:M], before.label_places)
    assert (batch.labels[batch.label_places[M:]] == -100).all()
    assert batch.loss_count == before.loss_count == M


def test_the_mask_of_filler_rows_is_their_first_token():
    batch = round_up(pack(replace(padded([3, 1, 2]), labels=None, asked=torch.tensor([2, 0, 1]))))
    assert batch.asked.tolist() == [2, 0, 1, 0]
    assert batch.label_places.tolist() == [2, 3, 5, 6]
