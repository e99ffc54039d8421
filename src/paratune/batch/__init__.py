"""The one type that everything between data and model speaks: a batch of samples, padded or packed.

Floor 2. Dimensions: `B` samples (rows), `S` padded length, `T` tokens of a packed batch, `C` classes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples on their way through a model; tensors and plain counts, no behaviour but moving.

    A batch is padded (`cu_seqlens` is None, token tensors are (B, S)) or packed (`cu_seqlens` is (B + 1,), token
    tensors are (T,) and `position_ids` restarts at each sample; see `paratune.batch.packing`). Only data and models
    look at which of the two it is.

    Filler rows keep the number of micro-batches equal on all ranks, and round T up (`paratune.batch.packing.round_up`);
    their `row_weight` is 0 and nothing counts them.
    """

    input_ids: Tensor
    """(B, S) or (T,), int64."""
    row_weight: Tensor
    """(B,), float32: 1 for a sample, 0 for filler; multiplies each row's loss."""
    index: Tensor
    """(B,), int64: row number within its split; -1 for filler."""
    num_samples: int
    """Samples without filler, known without asking the device."""
    num_tokens: int
    """Tokens that the tokenizer made of the samples, without padding and filler."""
    num_padded_tokens: int
    """Tokens that the model computes: padding and filler included."""
    loss_denominator: float
    """What the summed loss of the whole optimizer step is divided by, over all ranks and micro-batches: samples, or
    labelled tokens for a masked LM. The same number on every rank."""
    attention_mask: Tensor | None = None
    """(B, S), int64: 1 for tokens, 0 for padding; None when packed."""
    token_type_ids: Tensor | None = None
    """As `input_ids`; None where the model has no such input."""
    position_ids: Tensor | None = None
    """(T,), int64, packed only."""
    cu_seqlens: Tensor | None = None
    """(B + 1,), int32, starts at 0; None when padded."""
    slots: Tensor | None = None
    """(T,), int64, packed only: where each token would stand in (B, S), flattened, with S = `max_seqlen`."""
    max_seqlen: int = 0
    """Tokens of the longest row; S of a padded batch."""
    labels: Tensor | None = None
    """(B,) int64 class ids, (B,) float32 targets, (B, 2) int64 first and last token of an answer, or as the task
    defines; None when nothing is known."""
    label_places: Tensor | None = None
    """(M,), int64, masked LM only: which of the tokens (of B * S, or of T) the head is asked for, ascending. `labels`,
    if there are any, is as `input_ids` then."""
    num_filler_places: int = 0
    """How many at the end of `label_places` are there for their number alone; the label of these is -100."""
    asked: Tensor | None = None
    """(B,), int64: which token of its row is to be predicted, when a masked LM fills in masks; else None."""
    row_bounds: Tensor | None = None
    """(B, 3), int64, question answering only: the token that stands for "no answer", the first token of the context,
    and the one behind its last."""

    @property
    def loss_count(self) -> int:
        """This batch's own part of `loss_denominator`: its samples, or the labelled tokens of a masked LM."""
        return self.num_samples if self.label_places is None else len(self.label_places) - self.num_filler_places

    @property
    def is_packed(self) -> bool:
        return self.cu_seqlens is not None

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Return the batch with its tensors on `device`; counts are unchanged.

        To a GPU that is not waited for, all of them go in one copy (see `send_together`).
        """
        device = torch.device(device)
        if device.type == "cpu" and all(tensor.device.type == "cpu" for _, tensor in self._tensors()):
            return self
        tensors = {name: value for name, value in self._tensors() if value.device.type == "cpu"}
        if non_blocking and device.type == "cuda" and tensors:
            sent = send_together(
                list(tensors.values()), _pinned, lambda buffer: buffer.to(device, non_blocking=non_blocking)
            )
            values: dict[str, Any] = dict(zip(tensors, sent, strict=True))
            return replace(self, **values)
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                yield name, value

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        values: dict[str, Any] = {name: change(value) for name, value in self._tensors()}
        return replace(self, **values)


ALIGNMENT = 16
"""Bytes to a multiple of which tensors begin in a buffer: what kernels read with one instruction at most."""


def send_together(
    tensors: Sequence[Tensor], make_buffer: Callable[[int], Tensor], send: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Move tensors by one copy: they are written into one buffer, and are views of what arrives.

    A copy that is not waited for starts from page-locked memory; from any other the driver waits for it. To get such
    memory and to issue a copy costs the host several microseconds, whatever the size: a batch has 7 or 8 small tensors.

    Args:
        tensors: Of any dtypes and shapes, on the CPU.
        make_buffer: Returns a uint8 tensor of so many bytes.
        send: Returns it on another device.

    Returns:
        Tensors of the same shapes, dtypes and values, contiguous.
    """
    found = _in_one_buffer(tensors)
    if found is not None:
        buffer, starts = found
        return _views(send(buffer), tensors, starts)
    starts, size = [], 0
    for tensor in tensors:
        starts.append(size)
        size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    buffer = make_buffer(size)
    for target, tensor in zip(_views(buffer, tensors, starts), tensors, strict=True):
        target.copy_(tensor)
    return _views(send(buffer), tensors, starts)


def _views(buffer: Tensor, tensors: Sequence[Tensor], starts: Sequence[int]) -> list[Tensor]:
    return [
        buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, start in zip(tensors, starts, strict=True)
    ]


def _in_one_buffer(tensors: Sequence[Tensor]) -> tuple[Tensor, list[int]] | None:
    """Return the page-locked bytes in which tensors lie together already, and where; loader workers send them so."""
    storage = tensors[0].untyped_storage()
    if any(each.untyped_storage().data_ptr() != storage.data_ptr() or not each.is_contiguous() for each in tensors):
        return None
    places = [int(each.storage_offset()) * each.element_size() for each in tensors]
    first, end = min(places), max(place + each.nbytes for place, each in zip(places, tensors, strict=True))
    starts = [place - first for place in places]
    if any(start % ALIGNMENT for start in starts) or not tensors[0].is_pinned():
        return None
    buffer: Tensor = torch.empty(0, dtype=torch.uint8).set_(storage, first, (end - first,), (1,))
    return buffer, starts


def _pinned(num_bytes: int) -> Tensor:
    # PyTorch keeps such memory for the next batch, and gives it out again when the copy from it is done.
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


@runtime_checkable
class BatchModel(Protocol):
    """What strategies and the engine ask of a model; `paratune.models` makes them, tests may bring their own.

    It is a `torch.nn.Module` as well.
    """

    def __call__(self, batch: Batch) -> Tensor:
        """Return the outputs in the compute dtype: (B, C) logits, (B, 1) predictions, or as the task defines."""
        ...

    def loss_sum(self, outputs: Tensor, batch: Batch, kept: Tensor | None = None) -> Tensor:
        """Return the weighted sum over rows of the loss, a float32 (or float64) scalar; nothing is averaged.

        Args:
            outputs: Of the model.
            batch: With labels.
            kept: What `row_outputs` made of both, where that is known: the losses may be among it.
        """
        ...

    def row_outputs(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return what an evaluation keeps of each row, (B, K), with the same K for every batch: all of (B, C)."""
        ...
