"""Batches without padding: the tokens of all rows one behind the other, and where each row begins.

Floor 2. Dimensions: `B` rows, `S` padded length, `T` tokens, `M` labelled tokens.

Source: Zeng et al., Boosting Distributed Training Performance of the Unpadded BERT Model, 2022, section 3.
"""

from dataclasses import replace

import torch
from torch import Tensor

from paratune.batch import Batch


def pack(batch: Batch) -> Batch:
    """Return a padded batch, on the host and padded on the right, without its padding."""
    assert batch.attention_mask is not None
    mask_BS = batch.attention_mask
    lengths_B = mask_BS.sum(dim=1)
    slots_T = mask_BS.flatten().nonzero().squeeze(1)
    cu_seqlens = torch.zeros(len(lengths_B) + 1, dtype=torch.int32)
    cu_seqlens[1:] = lengths_B.cumsum(0)
    labels, places_M = batch.labels, batch.label_places
    if labels is not None and places_M is not None:
        labels = labels.flatten()[slots_T]
        places_M = torch.searchsorted(slots_T, places_M)  # slots ascend: the place of a slot is its rank among them
    elif batch.asked is not None:
        places_M = cu_seqlens[:-1] + batch.asked
    return replace(
        batch,
        input_ids=batch.input_ids.flatten()[slots_T],
        token_type_ids=None if batch.token_type_ids is None else batch.token_type_ids.flatten()[slots_T],
        attention_mask=None,
        position_ids=slots_T % mask_BS.shape[1],
        cu_seqlens=cu_seqlens,
        slots=slots_T,
        max_seqlen=mask_BS.shape[1],
        num_padded_tokens=len(slots_T),
        labels=labels,
        label_places=places_M,
    )


def unpack(values: Tensor, batch: Batch, fill: float) -> Tensor:
    """Return values of tokens, (T, ...), in the place that they have in a padded batch: (B, S, ...).

    Args:
        values: One for each token of `batch`.
        batch: Packed.
        fill: What stands in the place of padding.
    """
    assert batch.slots is not None
    rows, rest = len(batch.row_weight), values.shape[1:]
    padded = values.new_full((rows * batch.max_seqlen, *rest), fill)
    return padded.index_copy(0, batch.slots, values).view(rows, batch.max_seqlen, *rest)
