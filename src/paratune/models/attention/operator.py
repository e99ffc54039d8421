"""Attention of packed rows as one operator of PyTorch, so that torch.compile keeps a block in one graph.

Floor 3. What is called inside is chosen by device and dtype when the graph runs, and lengths are read there: a compiler
sees an operator with shapes. Eager blocks do not call it: an operator with gradients written in Python costs tens of
microseconds a call more than the functions below it.

The backward pass of the two kernels for CUDA is given what their forward pass kept. Any other way keeps the state of
the random numbers instead and computes the attention again: what is kept would have another number of tensors for each
set of lengths. T tokens of all rows, H heads, K head width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from paratune.models.attention import cpu, cuda, kernels
from paratune.models.attention.kernels import PackedRowEnds
from paratune.models.attention.rows import attend_rows

NAMESPACE: Final = "paratune"
Kept = tuple[Tensor, Tensor, Tensor, Tensor]
"""The attention, and three tensors for the backward pass."""
_OPTIONS: Final = "Tensor cu_seqlens, SymInt max_seqlen, float scale, float dropout, SymInt? window"
_FORWARD: Final = f"packed_attention(Tensor query, Tensor key, Tensor value, {_OPTIONS})"
_BACKWARD: Final = "packed_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, "
_libraries: list[Any] = []
"""Kept, for an operator goes with the library that defined it."""


@cache
def define() -> None:
    """Make `torch.ops.paratune.packed_attention` known to PyTorch; doing it again changes nothing."""
    library: Any = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    tags = (torch.Tag.nondeterministic_seeded,)  # dropout: two calls with the same inputs are two
    library.define(f"{_FORWARD} -> (Tensor, Tensor, Tensor, Tensor)", tags=tags)
    library.define(f"{_BACKWARD}Tensor a, Tensor b, Tensor c, {_OPTIONS}) -> (Tensor, Tensor, Tensor)")
    for key in ("CPU", "CUDA"):
        library.impl("packed_attention", forward, key)
        library.impl("packed_attention_backward", backward, key)
    names = [f"{NAMESPACE}::packed_attention", f"{NAMESPACE}::packed_attention_backward"]
    torch.library.register_fake(names[0], _fake_forward, lib=library)
    torch.library.register_fake(names[1], _fake_backward, lib=library)
    torch.library.register_autograd(names[0], _gradients, setup_context=_keep, lib=library)


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    scale: float,
    dropout: float,
    window: int | None,
) -> Tensor:
    """Return softmax(scale Q K^T) V of each row by itself, (T, H, K); arguments as in `cuda.attend`."""
    out: Tensor = torch.ops.paratune.packed_attention(
        query, key, value, cu_seqlens, max_seqlen, scale, dropout, window
    )[0]
    return out


def _kernel(query: Tensor, window: int | None) -> cuda.Kernel:
    if query.device.type != "cuda":
        return "rows"
    capability = torch.cuda.get_device_capability(query.device)
    return cuda.choose_kernel(query.dtype, query.shape[-1], window, capability)


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    scale: float,
    dropout: float,
    window: int | None,
) -> Kept:
    """Compute the operator; of what it keeps there is more than one kind, but shapes are those of `_fake_forward`."""
    kernel = _kernel(query, window)
    if kernel != "rows":
        cuda.check_alike(query, key, value, cu_seqlens)
        rows = PackedRowEnds(cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, scale, dropout, window)
        return kernels.forward(kernel, query, key, value, rows, keeps=True)
    state = _random_state(query.device)
    with torch.no_grad():
        out = _by_rows(query.device)(
            query, key, value, cu_seqlens.diff().tolist(), scale=scale, dropout=dropout, window=window
        )
    return out, state, query.new_empty(0), query.new_empty(0)


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    scale: float,
    dropout: float,
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of queries, keys and values; `out`, `a`, `b` and `c` are what `forward` returned."""
    kernel = _kernel(query, window)
    if kernel != "rows":
        rows = PackedRowEnds(cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, scale, dropout, window)
        return cuda.gradients(kernel, grad, (query, key, value), (out, a, b, c), rows)
    inputs = [x.detach().requires_grad_() for x in (query, key, value)]
    # A backward pass runs without gradients and with the random state of its own moment; the forward pass is repeated
    # here with the masks that it had.
    with _random_numbers_from(a, query.device), torch.enable_grad():
        again = _by_rows(query.device)(*inputs, cu_seqlens.diff().tolist(), scale=scale, dropout=dropout, window=window)
    dQ, dK, dV = torch.autograd.grad(again, inputs, grad)
    return dQ.contiguous(), dK.contiguous(), dV.contiguous()


def _by_rows(device: torch.device) -> Callable[..., Tensor]:
    return cpu.attend if device.type == "cpu" else attend_rows


def _random_state(device: torch.device) -> Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)


@contextmanager
def _random_numbers_from(state: Tensor, device: torch.device) -> Iterator[None]:
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices):
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, device)
        yield


def _fake_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    scale: float,
    dropout: float,
    window: int | None,
) -> Kept:
    kernel = _kernel(query, window)
    if kernel != "rows":
        rows = PackedRowEnds(cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, scale, dropout, window)
        return kernels.forward(kernel, query, key, value, rows, keeps=True)
    state = torch.empty(_size_of_state(query.device.type), dtype=torch.uint8, device="cpu")
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    return out, state, query.new_empty(0), query.new_empty(0)


def _fake_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, ...]:
    like = torch.preserve_format if _kernel(query, others[-1]) == "flash" else torch.contiguous_format
    return tuple(torch.empty_like(x, memory_format=like) for x in (query, key, value))


@cache
def _size_of_state(kind: str) -> int:
    return _random_state(torch.device(kind)).numel()


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Kept) -> None:
    query, key, value, cu_seqlens, *options = inputs
    ctx.save_for_backward(query, key, value, *output, cu_seqlens)
    ctx.options = options


def _gradients(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, cu_seqlens = ctx.saved_tensors
    found = torch.ops.paratune.packed_attention_backward(grad, *tensors, cu_seqlens, *ctx.options)
    return (*found, None, None, None, None, None)
