"""Packing takes the padding out of a batch, and unpacking puts values back where their tokens would stand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_data import tiny_masking

from paratune.batch import Batch
from paratune.packing import pack, unpack


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


def test_rows_stand_one_behind_the_other():
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
def test_unpacking_what_was_packed_gives_the_padded_batch(lengths: list[int], more: int):
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
def test_labels_of_tokens_go_with_them(whole_words: bool):
    whole = tiny_masking(9, whole_words=whole_words)(np.arange(9), 1.0, epoch=0, num_rows=11)
    batch = pack(whole)
    places = batch.label_places
    assert torch.equal(batch.labels[places], whole.labels[whole.labels >= 0])
    assert torch.equal(batch.slots[places], whole.label_places)
    assert torch.equal(places, (batch.labels >= 0).nonzero().squeeze(1))


def test_the_token_that_is_asked_for_keeps_its_place_in_its_row():
    batch = pack(replace(padded([3, 1, 2]), labels=None, asked=torch.tensor([2, 0, 1])))
    assert batch.input_ids[batch.label_places].tolist() == [3, 4, 6]


def test_classes_of_a_row_are_no_labels_of_tokens():
    """(B, C) sets of classes may have the shape of the tokens."""
    sets = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    assert torch.equal(pack(replace(padded([3, 1]), labels=sets)).labels, sets)
