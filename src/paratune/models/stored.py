"""Weights in the dtype of their file: loaded as views of the file, and changed to float32 where a strategy takes them.

Most large models are stored in 16 bits. Converted when it is loaded, a model of 7 billion weights would take 28 GB of
the host in each process, before any of it is sharded. As views of the file its weights take no memory of a process, and
processes on one machine share the pages that they read.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import nn

from paratune.models.task_model import find_blocks
from paratune.precision import changed, values_of

_DTYPES: Final = {"BF16": torch.bfloat16, "F16": torch.float16}


def stored_dtype(source: str) -> torch.dtype | None:
    """Return bfloat16 or float16 where all weights of a local folder have it; None for other dtypes, and for names."""
    found = set()
    for path in Path(source).glob("*.safetensors"):
        file: Any = safe_open(path, framework="pt")
        found |= {file.get_slice(name).get_dtype() for name in [*file.keys()]}
    return _DTYPES.get(found.pop()) if len(found) == 1 else None


def draw_in_float32(hf: Any, names: Sequence[str], seed: int) -> None:
    """Draw the new weights of a model again in float32: the same bits as in a model that is loaded in float32.

    Also compute the 16-bit buffers again that are in no file; those that the code of the model leaves alone are NaN.
    """
    new: dict[str, Any] = {name: own for name, own in hf.named_parameters(remove_duplicate=False) if name in names}
    for name, own in hf.named_buffers():
        if own.dtype in _DTYPES.values() and name not in hf.state_dict():
            new[name] = own.fill_(torch.nan)
    for name, own in new.items():
        own.data = own.data.float()
        own._is_hf_initialized = False  # transformers initialises what lacks this mark, and skips modules that have it
        parts = name.split(".")
        for number in range(len(parts)):
            hf.get_submodule(".".join(parts[:number]))._is_hf_initialized = False
    torch.manual_seed(seed)
    with torch.no_grad():
        hf.initialize_weights()


def float32_shapes(hf: nn.Module) -> AbstractContextManager[None]:
    """In the block, 16-bit weights are float32 without memory: layers that are made for them get float32 weights."""
    held = [parameter for parameter in hf.parameters() if parameter.dtype in _DTYPES.values()]
    return changed(held, lambda weight: torch.zeros(()).expand(weight.shape))


@contextmanager
def few_blocks(hf: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """In the block, the model has its first three blocks and its last one, in `dtype`: enough to test a kernel.

    Three, because windows of attention repeat in threes (ModernBERT); the last, because it may be shortened.
    """
    blocks = find_blocks(hf)
    lists = [m for m in hf.modules() if isinstance(m, nn.ModuleList) and list(m) == blocks]
    try:
        for layers in lists:
            del layers[3:-1]
        floats = [tensor for tensor in (*hf.parameters(), *hf.buffers()) if tensor.is_floating_point()]
        with changed(floats, lambda tensor: values_of(tensor)().to(dtype)):
            yield
    finally:
        for layers in lists:
            del layers[:]
            layers.extend(blocks)
