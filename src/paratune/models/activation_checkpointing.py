"""Activation checkpointing: a block keeps its inputs and computes what is inside again when its backward pass needs it.

Floor 3. Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016; PyTorch does the work.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from paratune.errors import ConfigError


def checkpoint_blocks(blocks: Sequence[nn.Module], every: int) -> None:
    """Make every `every`-th block, from the first one on, compute its activations twice instead of keeping them.

    Modules stay where they are, so names of parameters do not change and strategies may wrap, shard or move blocks as
    they like: call it before `Strategy.prepare`, so that the gathering of sharded weights stays outside of what is
    computed again. Gradients are the same; dropout draws the same masks both times.

    Args:
        blocks: The repeated layers of a model, in order.
        every: 1 for all of them.

    Raises:
        ConfigError: There are no blocks, or fewer than `every`.
    """
    if not blocks:
        raise ConfigError(
            f"train.activation_checkpointing: {every}, but this model has no repeated layers to do it with; "
            "leave it out",
            code="model.no_blocks",
            key="train.activation_checkpointing",
            value=every,
        )
    if every > len(blocks):
        raise ConfigError(
            f"train.activation_checkpointing: {every} is more than the {len(blocks)} blocks of this model; "
            "set it to at most that",
            code="model.no_blocks",
            key="train.activation_checkpointing",
            value=every,
        )
    for block in blocks[::every]:
        # A compiled forward stays inside; a last layer that was shortened is whole again.
        inner = getattr(block.__dict__.get("forward"), "__func__", None)
        is_compiled = hasattr(inner, "_torchdynamo_orig_callable")
        block.forward = MethodType(partial(_forward_twice, inner if is_compiled else None), block)


def _forward_twice(inner: Callable[..., Any] | None, block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    # By the class at the time of the call: FSDP2 changes it.
    forward = partial(inner or type(block).forward, block, **kwargs)
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args)
    return checkpoint(forward, *args, use_reentrant=False)
