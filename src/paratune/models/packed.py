"""Whether a model computes packed batches as it computes padded ones: tried at the start, on three short rows.

Attention is replaced by one that keeps to the rows (`models.attention`). Some architectures have attention of their own
and ignore that without a word; so nothing is assumed of any of them. Floor 3.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor

from paratune.batch import Batch
from paratune.models.attention.register import register
from paratune.models.last_layer import shorten_last_layer
from paratune.models.task_model import Entry, TaskModel, find_blocks
from paratune.packing import pack

_LENGTHS: Final = (5, 11, 8)
_TOLERANCE: Final = {torch.float64: 1e-9}
"""Largest difference, as a part of the largest number; `_ELSE` for other dtypes."""
_ELSE: Final = 1e-4


def find_entry(model: TaskModel) -> None:
    """Let a model take packed batches if it gives the same outputs and gradients for them, else note why not.

    Sets `entry`, `why_padded` and `head_takes_labelled`. The model is on the CPU, as it was loaded; it is tried without
    dropout, and left in the mode it was in. Random numbers are as before.
    """
    register()
    model.entry, model.why_padded, model.head_takes_labelled = None, None, False
    if getattr(model.hf.config, "vocab_size", None) is None:
        model.why_padded = f"the configuration of {type(model.hf).__name__} names no vocab_size to try it with"
        return
    with _trying(model), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        padded = _probe(model)
        expected = _run(model, padded)
        if model.head_reads == "labelled":
            model.head_takes_labelled = True
            model.head_takes_labelled = _tried(model, padded, expected)
        for entry in _entries(model):
            model.entry = entry
            if _tried(model, pack(padded), expected):
                return
    model.entry = None
    model.why_padded = f"{type(model.hf).__name__} does not give the same for packed rows as for padded ones"


def _entries(model: TaskModel) -> list[Entry]:
    """Return what may be right: a row begins at position 0, or behind the padding token's id (RoBERTa and its kin)."""
    offsets = (0, int(getattr(model.hf.config, "pad_token_id", None) or 0) + 1)
    if model.head_reads != "rows":
        return [Entry(offset) for offset in offsets]
    blocks = find_blocks(model.hf)
    shortens = [True, False] if blocks and shorten_last_layer(blocks[-1]) else [False]
    return [
        *(Entry(offset, "first", each) for offset, each in product(offsets, shortens)),
        *(Entry(offset, "mean") for offset in offsets),
    ]


@contextmanager
def _trying(model: TaskModel) -> Iterator[None]:
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, was in training.items():
            module.training = was


def _probe(model: TaskModel) -> Batch:
    """Return three rows of ordinary tokens, padded."""
    config = model.hf.config
    size, padding = int(config.vocab_size), getattr(config, "pad_token_id", None)
    mask_BS = (torch.arange(max(_LENGTHS)) < torch.tensor(_LENGTHS)[:, None]).long()
    ids_BS = torch.randint(0, size, mask_BS.shape)
    if padding is not None:
        ids_BS = torch.where(ids_BS == padding, (padding + 1) % size, ids_BS).where(mask_BS > 0, padding)
    types_BS = None
    if getattr(config, "type_vocab_size", 0) > 1:
        types_BS = (torch.arange(max(_LENGTHS)) > 3).long().expand_as(ids_BS) * mask_BS
    labels = places = None
    if model.head_reads == "labelled":
        labels = torch.full_like(ids_BS, -100)
        labels[:, 1:4:2] = 1
        places = (labels.flatten() >= 0).nonzero().squeeze(1)
    return Batch(
        input_ids=ids_BS,
        row_weight=torch.ones(len(_LENGTHS)),
        index=torch.arange(len(_LENGTHS)),
        num_samples=len(_LENGTHS),
        num_tokens=sum(_LENGTHS),
        num_padded_tokens=ids_BS.numel(),
        loss_denominator=1.0,
        attention_mask=mask_BS,
        token_type_ids=types_BS,
        max_seqlen=max(_LENGTHS),
        labels=labels,
        label_places=places,
    )


def _tried(model: TaskModel, batch: Batch, expected: list[Tensor]) -> bool:
    """Say whether a batch gives what is expected; whatever a model raises means that it does not."""
    try:
        found = _run(model, batch)
    except Exception:
        return False
    # The gradient of a key's bias is 0 but for rounding: what is far below all others is not compared with itself.
    floor = 1e-2 * max(float(each.abs().max()) for each in expected)
    return all(_is_close(one, other, floor) for one, other in zip(found, expected, strict=True))


def _run(model: TaskModel, batch: Batch) -> list[Tensor]:
    """Return outputs, and gradients of the first block and of the smaller embeddings; padding as zeros."""
    parameters = _watched(model)
    with torch.enable_grad():
        outputs = model(batch)
        if model.head_reads == "tokens":
            mask_BS = torch.arange(batch.max_seqlen) < torch.tensor(_LENGTHS)[:, None]
            outputs = outputs.where(mask_BS.unsqueeze(-1), 0.0)
        weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)
        gradients = torch.autograd.grad((outputs * weights).sum(), parameters, allow_unused=True)
    return [outputs.detach(), *(torch.zeros(1) if each is None else each for each in gradients)]


def _watched(model: TaskModel) -> list[Any]:
    """Return parameters whose gradients have been through all of the model, and are small."""
    blocks = find_blocks(model.hf)
    return [parameter for parameter in blocks[0].parameters() if parameter.requires_grad] if blocks else []


def _is_close(one: Tensor, other: Tensor, floor: float) -> bool:
    if one.shape != other.shape:
        return False
    largest = max(float(other.abs().max()), floor)
    return float((one - other).abs().max()) <= _TOLERANCE.get(other.dtype, _ELSE) * largest
