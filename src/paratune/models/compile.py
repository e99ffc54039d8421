"""torch.compile block by block: every repeated layer becomes a few large kernels, compiled once for all of them.

Floor 3. Attention of packed rows stays outside of the graphs: what it calls is chosen by device and dtype at run time.

Source: PyTorch, "Reducing torch.compile cold start compilation time with regional compilation".
"""

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from paratune.errors import ConfigError
from paratune.models.attention.register import NAME
from paratune.models.task_model import TaskModel, find_blocks


def compile_blocks(model: TaskModel) -> None:
    """Have every block compiled at its first pass, for any number of tokens after the second number that it meets.

    Modules and names of parameters stay, so that strategies may wrap and shard as they like.

    Raises:
        ConfigError: The model has no repeated layers.
    """
    blocks = find_blocks(model)
    if not blocks:
        raise ConfigError("train.compile: true, but this model has no repeated layers to compile; leave it out")
    if NAME in ALL_ATTENTION_FUNCTIONS:
        disabled = torch.compiler.disable(ALL_ATTENTION_FUNCTIONS[NAME])  # type: ignore[no-untyped-call]
        ALL_ATTENTION_FUNCTIONS.register(NAME, disabled)
    for block in blocks:
        block.compile()
