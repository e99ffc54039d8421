"""Finds operators that make the host wait for a GPU, without a GPU: `from waits import watched_for_waits`.

Operators are the same on every device, except for the choice of kernels. The host waits in an operator that copies a
number to the host, or has an output whose size is a number on the device.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from paratune.models.attention import cuda, register
from paratune.models.attention.kernels import PackedRowEnds
from paratune.strategies import whole

aten = torch.ops.aten
WAITS: dict[Any, str] = {
    aten._local_scalar_dense: "item(), float(), bool() or int() of a tensor",
    aten.equal: "torch.equal",
    aten.is_nonzero: "bool() of a tensor",
    aten.nonzero: "nonzero()",
    aten.masked_select: "masked_select",
    aten._unique2: "unique()",
    aten.unique_consecutive: "unique_consecutive()",
    aten.unique_dim: "unique()",
    aten.bincount: "bincount()",
    aten.repeat_interleave: "repeat_interleave by a tensor",
}
TO_HOST = {Tensor.tolist: "tolist()", Tensor.numpy: "numpy()", Tensor.cpu: "cpu()", Tensor.__array__: "numpy.asarray"}
"""Methods that call no operator on the CPU."""
BY_INDEX = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index)
"""For an index of booleans, the number of true values is computed first."""


class Waits(TorchDispatchMode):
    """Records operators that wait; `found` has one line for each."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.num_operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_operators += 1
        packet = func.overloadpacket
        if packet in WAITS:
            self.found.append(WAITS[packet])
        if packet in BY_INDEX and any(
            value is not None and value.dtype in (torch.bool, torch.uint8) for value in args[1]
        ):
            self.found.append("an index of booleans")
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in TO_HOST:
            self._waits.found.append(TO_HOST[func])
        # Compared as a string: batches are moved to the device of the loop, which is a CPU here.
        if func is Tensor.to and any(value == "cpu" for value in [*args[1:], *(kwargs or {}).values()]):
            self._waits.found.append("to('cpu')")
        return func(*args, **(kwargs or {}))


@contextmanager
def watched_for_waits() -> Iterator[Waits]:
    """Record the waits in the block, including its backward passes; a CPU decides about updates as a GPU does."""
    on_device = mock.patch.object(whole, "READ_ON_HOST", ())
    with on_device, torch.autograd.set_multithreading_enabled(False), Waits() as waits, _Methods(waits):
        yield waits


def attend_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Handle rows as on a GPU, packed ones with kernels that compute on the CPU; return the kernels' arguments."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(register, "ON_DEVICE", ("cpu",))
    monkeypatch.setattr(cuda, "_refused", set())
    monkeypatch.setattr(cuda, "_worked", set())
    monkeypatch.setattr(cuda, "has_signature", lambda kernel: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(cuda, "_by_kernel", _kernel(calls))
    return calls


def _kernel(calls: list[tuple[Any, ...]]) -> Callable[..., Tensor]:
    def by_kernel(kernel: str, query: Tensor, key: Tensor, value: Tensor, rows: PackedRowEnds) -> Tensor:
        """Compute (T, H, K) with one mask of queries and keys, without reading the lengths on the host."""
        calls.append((kernel, rows.max_k, rows.dropout, rows.window))
        i, j = (torch.arange(len(x), device=x.device) for x in (query, key))
        row_i, row_j = (
            torch.bucketize(at, ends[1:].to(at.dtype), right=True)
            for at, ends in ((i, rows.cu_seqlens_q), (j, rows.cu_seqlens_k))
        )
        visible = row_i[:, None] == row_j
        if rows.window is not None:
            visible = visible & ((i[:, None] - j).abs() < rows.window)
        scores = torch.einsum("ihk,jhk->hij", query, key) * rows.scale
        probabilities = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        return torch.einsum("hij,jhk->ihk", torch.nn.functional.dropout(probabilities, rows.dropout), value)

    return by_kernel
