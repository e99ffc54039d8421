"""Combines the outputs of the sequences of a sample, such as the choices of a question, into outputs of the sample.

Dimensions: `B` samples, `Q` sequences, `C` outputs, `K` most sequences of a sample.
"""

from typing import Literal

import torch
from torch import Tensor

from paratune.batch import Batch

SamplePooling = Literal["mean", "max"]


def at_least_float32(values: Tensor) -> Tensor:
    """Return values of 16 bits in float32, and others as they are: sums in 16 bits would lose digits."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def pool_sequences(values: Tensor, batch: Batch, pooling: SamplePooling) -> Tensor:
    """Return values of samples, (B, C), from those of their sequences; the gradients are the same in every run.

    Args:
        values: (Q, C), at least float32: a sum in bf16 would lose digits.
        batch: The batch; without `sample_offsets`, the values are returned as they are.
        pooling: mean or max of each output over the sequences of a sample.
    """
    offsets = batch.sample_offsets
    if offsets is None:
        return values
    # It adds in a fixed order, unlike `index_add` on a GPU; `unsafe` skips a check that would wait for the device.
    return torch.segment_reduce(values, pooling, offsets=offsets, unsafe=True)


def by_sample(values: Tensor, batch: Batch, num_columns: int, *, fill: float) -> Tensor:
    """Return the values of sequences, (Q,), as one row for each sample, (B, K), with `fill` at the end.

    `num_columns` is K, at least the sequences of any sample of the batch, which has `sample_offsets`.
    """
    offsets = batch.sample_offsets
    assert offsets is not None
    samples = len(offsets) - 1
    # With `output_size`, the device need not report the number of sequences, for which the host would wait.
    sample_Q = torch.repeat_interleave(offsets.diff(), output_size=len(values))
    slots_Q = torch.arange(len(values), device=values.device) - offsets[sample_Q] + sample_Q * num_columns
    return values.new_full((samples * num_columns,), fill).index_copy(0, slots_Q, values).view(samples, num_columns)
