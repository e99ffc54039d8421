"""Packs batches: joins the tokens of all rows without padding, with the offset of each row.

A row is a sequence: where samples have several, there are more rows than samples. Each filler row is one sample.

Dimensions: `B` rows, `F` filler rows, `S` padded length, `T` tokens, `M` labelled tokens.

Source: Zeng et al., Boosting Distributed Training Performance of the Unpadded BERT Model, 2022, section 3.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paratune.batch import Batch

_STEP = 8
"""Numbers of tokens are rounded up at least to multiples of 8, the unit of tensor cores."""
_PER_OCTAVE = 16
"""Number of sizes from one power of two to the next, so that at most a sixteenth is added."""
_IGNORED = -100
"""Label of a token that is not predicted; `torch.nn.functional.cross_entropy` ignores it."""


def pack(batch: Batch) -> Batch:
    """Return a padded batch, on the host and padded on the right, without its padding."""
    assert batch.attention_mask is not None
    # With NumPy: for the few numbers of a batch, a call of PyTorch takes three times as long.
    mask_BS = batch.attention_mask.numpy()
    slots_T = np.flatnonzero(mask_BS)
    ends_B = mask_BS.sum(axis=1).cumsum()
    cu_seqlens = torch.from_numpy(np.concatenate([[0], ends_B]).astype(np.int32))
    labels, places_M = batch.labels, batch.label_places
    if places_M is not None:
        labels = None if labels is None else _take(labels, slots_T)
        # Slots are ascending, so the new position of a slot is its index among them.
        places_M = torch.from_numpy(np.searchsorted(slots_T, places_M.numpy()))
    elif batch.asked is not None:
        places_M = cu_seqlens[:-1] + batch.asked
    return replace(
        batch,
        input_ids=_take(batch.input_ids, slots_T),
        token_type_ids=None if batch.token_type_ids is None else _take(batch.token_type_ids, slots_T),
        attention_mask=None,
        position_ids=torch.from_numpy(slots_T % mask_BS.shape[1]),
        cu_seqlens=cu_seqlens,
        slots=torch.from_numpy(slots_T),
        max_seqlen=mask_BS.shape[1],
        num_padded_tokens=len(slots_T),
        labels=labels,
        label_places=places_M,
    )


def _take(values: Tensor, slots: npt.NDArray[np.int64]) -> Tensor:
    """Return the elements of `values`, (B, S), at the slots, (T,)."""
    return torch.from_numpy(values.numpy().ravel()[slots])


def unpack(values: Tensor, batch: Batch, fill: float) -> Tensor:
    """Return values of tokens, (T, ...), at their positions in a padded batch: (B, S, ...).

    Args:
        values: A value for each token of `batch`.
        batch: A packed batch.
        fill: The value at padding.
    """
    assert batch.slots is not None
    rows, rest = batch.num_sequences, values.shape[1:]
    padded = values.new_full((rows * batch.max_seqlen, *rest), fill)
    return padded.index_copy(0, batch.slots, values).view(rows, batch.max_seqlen, *rest)


def rounded_size(count: int) -> int:
    """Round `count` up to one of few sizes: 16 from each power of two to the next, or multiples of 8 below 128."""
    step = max(_STEP, (1 << max(0, count - 1).bit_length()) // (2 * _PER_OCTAVE))
    return -(-count // step) * step


def round_up(batch: Batch) -> Batch:
    """Add filler rows and places to a packed batch on the host, so that T and M are rounded sizes.

    Kernels, compiled graphs and blocks of memory are made for shapes, and each packed batch has another T. Filler rows
    are last, and attention stays within a row, so outputs, losses and gradients do not change.
    """
    num_tokens = len(batch.input_ids)
    more = rounded_size(num_tokens) - num_tokens
    batch = _with_filler(batch, more) if more else batch
    return _with_filler_places(batch)


def _with_filler(batch: Batch, more: int) -> Batch:
    """Return the batch with filler rows of at most `max_seqlen` tokens each and `more` tokens together."""
    assert batch.cu_seqlens is not None
    assert batch.position_ids is not None
    assert batch.slots is not None
    longest, first_slot = batch.max_seqlen, batch.num_sequences * batch.max_seqlen
    begins_F = torch.arange(0, more, longest, dtype=torch.int32)
    F, end = len(begins_F), batch.cu_seqlens[-1:]
    labels, places, asked, bounds = batch.labels, batch.label_places, batch.asked, batch.row_bounds
    samples = batch.sample_offsets
    if labels is not None:
        labels = _longer(labels, more, _IGNORED) if places is not None else _longer(labels, F, 0)
    if asked is not None and places is not None:
        asked, places = _longer(asked, F, 0), torch.cat([places, end + begins_F])
    return replace(
        batch,
        input_ids=_longer(batch.input_ids, more, int(batch.input_ids[0])),
        token_type_ids=None if batch.token_type_ids is None else _longer(batch.token_type_ids, more, 0),
        position_ids=torch.cat([batch.position_ids, torch.arange(more) % longest]),
        slots=torch.cat([batch.slots, torch.arange(first_slot, first_slot + more)]),
        cu_seqlens=torch.cat([batch.cu_seqlens, end + begins_F[1:], end + more]),
        sample_offsets=None if samples is None else torch.cat([samples, samples[-1] + torch.arange(1, F + 1)]),
        row_weight=_longer(batch.row_weight, F, 0),
        index=_longer(batch.index, F, -1),
        row_bounds=None if bounds is None else torch.cat([bounds, bounds.new_tensor([0, 0, 1]).expand(F, 3)]),
        teacher=None if batch.teacher is None else _longer(batch.teacher, F, 0),
        num_padded_tokens=batch.num_padded_tokens + more,
        labels=labels,
        label_places=places,
        asked=asked,
    )


def _with_filler_places(batch: Batch) -> Batch:
    """Return the batch with a rounded M: the position of a token without a label, whose loss is 0, is repeated."""
    labels_T, places_M = batch.labels, batch.label_places
    if labels_T is None or places_M is None:
        return batch
    unlabelled = int((labels_T < 0).int().argmax())
    more = rounded_size(len(places_M)) - len(places_M)
    if more == 0 or labels_T[unlabelled] >= 0:
        return batch
    return replace(batch, label_places=_longer(places_M, more, unlabelled), num_filler_places=more)


def _longer(values: Tensor, more: int, value: int) -> Tensor:
    """Return the values with `more` entries appended."""
    return torch.cat([values, values.new_full((more, *values.shape[1:]), value)])
