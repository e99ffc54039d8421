"""A model on a simulated GPU, with the dtypes that autocast selects: `from fake_cuda import on_fake_cuda`.

Operators compute shapes, dtypes and devices of tensors on a simulated CUDA device without data. A CPU build of PyTorch
aborts the process when autograd receives such a tensor, so only forward passes are traced, and no parameter requires a
gradient.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from paratune.batch import Batch


@contextmanager
def on_fake_cuda(autocast: torch.dtype | None) -> Iterator[None]:
    """In the block, compute operators without data, under CUDA's autocast to a dtype."""
    with FakeTensorMode(allow_non_fake_inputs=True), _Methods(), torch.no_grad():
        # torch.autocast("cuda") disables itself without a GPU.
        torch.set_autocast_enabled("cuda", autocast is not None)
        if autocast is not None:
            torch.set_autocast_dtype("cuda", autocast)
        torch.autocast_increment_nesting()
        try:
            yield
        finally:
            torch.autocast_decrement_nesting()
            torch.clear_autocast_cache()
            torch.set_autocast_enabled("cuda", False)


def moved(thing: Any) -> Any:
    """Return a tensor, a batch or a module (changed in place) on the simulated GPU."""
    if isinstance(thing, Tensor):
        return torch.empty_like(thing, device="cuda", requires_grad=False)
    if isinstance(thing, Batch):
        return replace(thing, **{name: moved(value) for name, value in thing._tensors()})
    assert isinstance(thing, nn.Module)
    return thing.requires_grad_(False)._apply(moved)


class _Methods(TorchFunctionMode):
    """Replaces `x[...]` and `x.contiguous()` by operators: these methods need a device of CUDA's driver."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__ and args[0].device.type == "cuda":
            return _at(*args)
        if func is Tensor.contiguous and args[0].device.type == "cuda":
            return args[0].clone(memory_format=torch.contiguous_format)
        return func(*args, **(kwargs or {}))


def _at(x: Tensor, index: Any) -> Tensor:
    parts = index if isinstance(index, tuple) else (index,)
    num_left, dim = sum(part is not None and part is not Ellipsis for part in parts), 0
    for part in parts:
        if part is Ellipsis:
            dim = x.ndim - num_left
            continue
        num_left -= part is not None
        if part is None:
            x = x.unsqueeze(dim)
        elif isinstance(part, slice):
            x = torch.ops.aten.slice(x, dim, part.start, part.stop, part.step or 1)
        elif isinstance(part, Tensor):
            x = torch.ops.aten.index(x, [None] * dim + [part])
        else:
            x = x.select(dim, part)
            continue
        dim += 1
    return x
