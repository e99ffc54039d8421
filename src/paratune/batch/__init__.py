"""`Batch`, the only data structure between the data loader and the model: samples, padded or packed.

Dimensions: `B` samples, `Q` sequences (rows of tokens), `S` padded length, `T` tokens of a packed batch, `C` classes.
Where each sample is one sequence, Q = B.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples for a model: tensors and counts.

    A batch is padded (`cu_seqlens` is None, token tensors are (Q, S)) or packed (`cu_seqlens` is (Q + 1,), token
    tensors are (T,) and `position_ids` restarts at each sequence; see `paratune.batch.packing`). Only the packages data
    and models distinguish the two.

    A sample may have several sequences (the choices of a question, the chunks of a document), which are consecutive.
    Then `sample_offsets` has their limits, and the objective makes one output of a sample from those of its sequences.

    Filler rows keep the number of micro-batches equal on all ranks, and round T up (`paratune.batch.packing.round_up`);
    their `row_weight` is 0, and no count includes them.
    """

    input_ids: Tensor
    """(Q, S) or (T,), int64."""
    row_weight: Tensor
    """(B,), float32: 1 for a sample, 0 for filler; multiplies each row's loss."""
    index: Tensor
    """(B,), int64: row number within its split; -1 for filler."""
    num_samples: int
    """Samples without filler; known without waiting for the device."""
    num_tokens: int
    """Tokens of the samples, without padding and filler."""
    num_padded_tokens: int
    """Tokens that the model computes, with padding and filler."""
    loss_denominator: float
    """The divisor of the summed loss of the whole optimizer step over all ranks and micro-batches: its samples, or its
    labelled tokens for a masked LM. The same number on every rank."""
    attention_mask: Tensor | None = None
    """(Q, S), int64: 1 for tokens, 0 for padding; None when packed."""
    token_type_ids: Tensor | None = None
    """Same shape as `input_ids`; None if the model has no such input."""
    position_ids: Tensor | None = None
    """(T,), int64, packed only."""
    cu_seqlens: Tensor | None = None
    """(Q + 1,), int32, starts at 0; None when padded."""
    slots: Tensor | None = None
    """(T,), int64, packed only: position of each token in the flattened padded batch (Q, S), with S = `max_seqlen`."""
    max_seqlen: int = 0
    """Tokens of the longest sequence; S of a padded batch."""
    sample_offsets: Tensor | None = None
    """(B + 1,), int64, starts at 0: sample b has the sequences `sample_offsets[b]` to `sample_offsets[b + 1]` - 1, at
    least one; None where each sample is one sequence."""
    labels: Tensor | None = None
    """(B,) int64 class ids, (B,) float32 targets, (B, 2) int64 first and last token of an answer, or another shape
    that the task defines; None without labels."""
    label_places: Tensor | None = None
    """(M,), int64, masked LM and token classification only: positions of the tokens (of B * S, or of T) that the head
    predicts, ascending. `labels`, if there are any, then has the shape of `input_ids`."""
    num_filler_places: int = 0
    """Number of positions at the end of `label_places` that only fill up the shape; their label is -100."""
    asked: Tensor | None = None
    """(B,), int64, predictions of a masked LM only: position in its row of the mask that is filled in."""
    row_size: int = 0
    """Token classification and multiple choice: columns of the row outputs, which are the tokens of the longest row or
    the most choices of the split. Sentence embeddings: texts of each sample."""
    row_bounds: Tensor | None = None
    """(B, 3), int64, question answering only: the token for "no answer", the first token of the context, and the token
    after its last one."""
    teacher: Tensor | None = None
    """(B, C + L * D), float32, training steps of a distillation only: the outputs of the teachers for each row; see
    `paratune.models.distillation`."""

    @property
    def loss_count(self) -> int:
        """The part of this batch in `loss_denominator`: its samples, or the labelled tokens of a masked LM."""
        return self.num_samples if self.label_places is None else len(self.label_places) - self.num_filler_places

    @property
    def is_packed(self) -> bool:
        return self.cu_seqlens is not None

    @property
    def num_sequences(self) -> int:
        """Q, with the sequences of filler."""
        return len(self.input_ids) if self.cu_seqlens is None else len(self.cu_seqlens) - 1

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Return the batch with its tensors on `device`; counts are unchanged.

        A non-blocking copy to a GPU sends all tensors together (see `send_together`).
        """
        device = torch.device(device)
        if device.type == "cpu" and all(tensor.device.type == "cpu" for _, tensor in self._tensors()):
            return self
        values: dict[str, Any] = {name: value for name, value in self._tensors() if value.device.type == "cpu"}
        if non_blocking and device.type == "cuda" and values:
            sent = send_together(list(values.values()), _pinned, lambda buffer: buffer.to(device, non_blocking=True))
            values = dict(zip(values, sent, strict=True))
        else:
            values = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self._tensors()}
        return replace(self, **values)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                yield name, value


ALIGNMENT = 16
"""Tensors begin in a buffer at multiples of this many bytes, the most that a kernel reads with one instruction."""


def send_together(
    tensors: Sequence[Tensor], make_buffer: Callable[[int], Tensor], send: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Move tensors in one copy: they are written into one buffer, and the results are views of the moved buffer.

    Only a copy from page-locked memory can be asynchronous. Allocating such memory and starting a copy costs the host
    several microseconds for any size, and a batch has 7 or 8 small tensors.

    Args:
        tensors: Tensors of any dtypes and shapes, on the CPU.
        make_buffer: Returns a uint8 tensor with the given number of bytes.
        send: Returns the buffer on another device.

    Returns:
        Tensors of the same shapes, dtypes and values, contiguous.
    """
    buffer, places = _in_one_buffer(tensors) or fill_buffer(tensors, make_buffer)
    received = send(buffer)
    return [place.view(received) for place in places]


@dataclass(frozen=True)
class BufferPlace:
    """The position of a tensor in a buffer of bytes."""

    start: int
    """First byte; a multiple of the alignment."""
    dtype: torch.dtype
    shape: torch.Size

    def view(self, buffer: Tensor) -> Tensor:
        """Return the tensor as a view of the buffer."""
        num_bytes = self.shape.numel() * self.dtype.itemsize
        return buffer[self.start : self.start + num_bytes].view(self.dtype).view(self.shape)


def fill_buffer(
    tensors: Sequence[Tensor], make_buffer: Callable[[int], Tensor], alignment: int = ALIGNMENT
) -> tuple[Tensor, list[BufferPlace]]:
    """Copy tensors into one buffer, each at a multiple of `alignment` bytes; return it and the place of each.

    `tensors` and `make_buffer` as in `send_together`.
    """
    sizes = [-(-tensor.nbytes // alignment) * alignment for tensor in tensors]
    starts = accumulate(sizes, initial=0)
    places = [BufferPlace(start, tensor.dtype, tensor.shape) for start, tensor in zip(starts, tensors, strict=False)]
    buffer = make_buffer(sum(sizes))
    for place, tensor in zip(places, tensors, strict=True):
        place.view(buffer).copy_(tensor)
    return buffer, places


def _in_one_buffer(tensors: Sequence[Tensor]) -> tuple[Tensor, list[BufferPlace]] | None:
    """Return the page-locked buffer that already contains all tensors, as loader workers make it, and their places."""
    storage = tensors[0].untyped_storage()
    if any(
        tensor.untyped_storage().data_ptr() != storage.data_ptr() or not tensor.is_contiguous() for tensor in tensors
    ):
        return None
    offsets = [int(tensor.storage_offset()) * tensor.element_size() for tensor in tensors]
    first, end = min(offsets), max(offset + tensor.nbytes for offset, tensor in zip(offsets, tensors, strict=True))
    if any((offset - first) % ALIGNMENT for offset in offsets) or not tensors[0].is_pinned():
        return None
    buffer: Tensor = torch.empty(0, dtype=torch.uint8).set_(storage, first, (end - first,), (1,))
    return buffer, [
        BufferPlace(offset - first, tensor.dtype, tensor.shape) for offset, tensor in zip(offsets, tensors, strict=True)
    ]


def _pinned(num_bytes: int) -> Tensor:
    # PyTorch caches such memory, and reuses it when the copy from it is finished.
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


@runtime_checkable
class BatchModel(Protocol):
    """The methods of a model that strategies and the engine use. It is also a `torch.nn.Module`."""

    def __call__(self, batch: Batch) -> Tensor:
        """Return the outputs in the compute dtype: (B, C) logits, (B, 1) predictions, or another shape of the task."""
        ...

    def loss_sum(self, outputs: Tensor, batch: Batch, row_outputs: Tensor | None = None) -> Tensor:
        """Return the weighted sum of the loss over rows, a float32 or float64 scalar, without averaging.

        Args:
            outputs: The outputs of the model.
            batch: A batch with labels.
            row_outputs: The result of `row_outputs`, if known; it may contain the losses.
        """
        ...

    def row_outputs(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the values that an evaluation stores for each row, (B, K), with the same K for every batch."""
        ...
