"""Compiles the blocks of a model by torch.compile; blocks of one class share their compiled graphs.

Attention of packed rows is one operator (`attention.operator`), so that a block is one graph. A block with code that
cannot be compiled, such as DeBERTa's attention, becomes several graphs with the same results.

Source: PyTorch, "Reducing torch.compile cold start compilation time with regional compilation".
"""

from contextlib import ExitStack
from types import MethodType

import torch

from paratune.hangs.progress import working
from paratune.models.task_model import TaskModel, find_blocks, require_blocks


def compile_blocks(model: TaskModel) -> None:
    """Let torch.compile compile each block at its first pass.

    The second number of tokens that a block receives leads to a graph for any number of tokens. Modules and names of
    parameters stay the same, so that strategies can wrap and shard blocks: their hooks, and activation checkpointing,
    which is added later, are outside of the graphs. A shortened last layer (`last_layer`) is computed whole again,
    because it would be compiled for each number of rows.

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
