"""Changes how blocks run: by torch.compile, or with activation checkpointing. Names of modules and parameters stay.

Activation checkpointing: a block keeps only its inputs and computes its activations again in the backward pass. Blocks
of one class share their compiled graphs. Attention of packed rows is one operator (`attention.operator`), so that a
block is one graph; a block with code that cannot be compiled, such as DeBERTa's attention, becomes several graphs with
the same results.

Sources: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016; PyTorch, "Reducing torch.compile cold start
compilation time with regional compilation". PyTorch does the work of both.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from paratune.errors import ConfigError
from paratune.models.task_model import TaskModel, find_blocks, require_blocks
from paratune.processes.progress import working


def checkpoint_blocks(blocks: Sequence[nn.Module], every: int) -> None:
    """Checkpoint the activations of every `every`-th block (1: all), beginning with the first.

    Call it before `Strategy.prepare`: then the all-gather of sharded weights is outside of the part that is computed
    twice. Gradients are the same; dropout draws the same masks both times.

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


def compile_blocks(model: TaskModel) -> None:
    """Let torch.compile compile each block at its first pass.

    The second number of tokens that a block receives leads to a graph for any number of tokens. Hooks of strategies,
    and activation checkpointing, which is added later, are outside of the graphs. A shortened last layer (`last_layer`)
    is computed whole again, because it would be compiled for each number of rows.

    Raises:
        ConfigError: The model has no repeated layers.
    """
    blocks = find_blocks(model)
    require_blocks(blocks, "train.compile", "true")
    # Above this limit PyTorch silently computes without graphs. Blocks of a class may differ (ModernBERT's first block
    # has no first norm), and each kind needs a graph for its first size and one for others, in training and evaluation.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 4 * len(blocks) + 4)
    _report_compilations()
    compiled = {kind: torch.compile(kind.forward) for kind in {type(block) for block in blocks}}
    for block in blocks:
        block.forward = MethodType(compiled[type(block)], block)


_current = ExitStack()
"""The context `working` of the compilation that is running."""


def _report_compilations() -> None:
    """Report each compilation to the hang watchdog: PyTorch compiles inside a forward or backward pass, for minutes."""
    handler = torch._dynamo.callback.callback_handler
    if _begin_compilation not in handler.start_callbacks:
        handler.register_start_callback(_begin_compilation)
        handler.register_end_callback(_end_compilation)


def _begin_compilation(_: object) -> None:
    _current.enter_context(working("compile"))


def _end_compilation(_: object) -> None:
    _current.close()
