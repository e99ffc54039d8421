"""torch.compile block by block: every repeated layer becomes a few large kernels, compiled once for all of them.

Floor 3. Attention of packed rows is one operator of a graph (`attention.operator`), so that a block is one graph. A
block that has something that cannot be compiled, as DeBERTa's attention, becomes several, which compute the same.

Source: PyTorch, "Reducing torch.compile cold start compilation time with regional compilation".
"""

from contextlib import ExitStack
from types import MethodType

import torch

from paratune.errors import ConfigError
from paratune.hangs.pulse import working
from paratune.models.task_model import TaskModel, find_blocks


def compile_blocks(model: TaskModel) -> None:
    """Have every block compiled at its first pass, for any number of tokens after the second number that it meets.

    Modules and names of parameters stay, so that strategies may wrap and shard as they like: what they hook around a
    block stays outside of the graphs, and so does activation checkpointing, which comes after this. Blocks of one class
    share their graphs. A last layer that was shortened (`last_layer`) is whole again, for it would be compiled for each
    number of rows.

    Raises:
        ConfigError: The model has no repeated layers.
    """
    blocks = find_blocks(model)
    if not blocks:
        raise ConfigError(
            "train.compile: true, but this model has no repeated layers to compile; leave it out",
            code="model.no_blocks",
            key="train.compile",
        )
    # Past its limit PyTorch computes without graphs. Blocks of a class may differ (ModernBERT's first has a norm less),
    # and each kind needs one for its first size and one for others, in training and in evaluation.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 4 * len(blocks) + 4)
    _note_compilations()
    compiled = {kind: torch.compile(kind.forward) for kind in {type(block) for block in blocks}}
    for block in blocks:
        block.forward = MethodType(compiled[type(block)], block)


_noted = ExitStack()
"""Holds what `working` gave for the compilation that goes on."""


def _note_compilations() -> None:
    """Tell who watches the run of each compilation: PyTorch makes it within the first pass, forward or backward."""
    handler = torch._dynamo.callback.callback_handler
    if _begin_compilation not in handler.start_callbacks:
        handler.register_start_callback(_begin_compilation)
        handler.register_end_callback(_end_compilation)


def _begin_compilation(_: object) -> None:
    _noted.enter_context(working("compile"))


def _end_compilation(_: object) -> None:
    _noted.close()
