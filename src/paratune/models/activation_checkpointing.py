"""Activation checkpointing: a block keeps only its inputs and computes its activations again in the backward pass.

Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016; PyTorch does the work.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from paratune.errors import ConfigError
from paratune.models.task_model import require_blocks


def checkpoint_blocks(blocks: Sequence[nn.Module], every: int) -> None:
    """Checkpoint the activations of every `every`-th block (1: all), beginning with the first.

    Modules and names of parameters stay the same, so that strategies can wrap, shard or move blocks. Call it before
    `Strategy.prepare`: then the all-gather of sharded weights is outside of the part that is computed twice. Gradients
    are the same; dropout draws the same masks both times.

    Raises:
        ConfigError: There are no blocks, or fewer than `every`.
    """
    require_blocks(blocks, "train.activation_checkpointing", every)
    if every > len(blocks):
        raise ConfigError(
            f"train.activation_checkpointing: {every} is more than the {len(blocks)} blocks of this model; "
            f"set at most {len(blocks)}",
            code="model.no_blocks",
            key="train.activation_checkpointing",
            value=every,
        )
    for block in blocks[::every]:
        # A compiled forward is kept inside. The forward of a shortened last layer is not: it is computed whole again.
        inner = getattr(block.__dict__.get("forward"), "__func__", None)
        is_compiled = hasattr(inner, "_torchdynamo_orig_callable")
        block.forward = MethodType(partial(_forward_twice, inner if is_compiled else None), block)


def _forward_twice(inner: Callable[..., Any] | None, block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    # The class is read at the call, because FSDP2 changes it after this function has run.
    forward = partial(inner or type(block).forward, block, **kwargs)
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args)
    return checkpoint(forward, *args, use_reentrant=False)
