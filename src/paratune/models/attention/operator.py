"""Attention of packed rows as one operator of PyTorch, so that torch.compile keeps a block in one graph.

The compiler sees only an operator with shapes. When the graph runs, the operator chooses a function by device and dtype
and reads the lengths of rows. Eager blocks do not call it, because an operator with gradients in Python needs tens of
microseconds more per call than these functions.

An operator must return the same number of tensors for every batch. The two kernels for CUDA do: their backward pass
uses the saved results of forward. The other functions save a number of tensors that depends on the lengths; so for them
the operator saves only the state of the random numbers, and its backward pass computes the attention again.

Dimensions: `T` tokens of all rows, `H` heads, `K` head width.
"""

from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from paratune.models.attention import cpu, cuda, kernels
from paratune.models.attention.kernels import PackedRowEnds, self_attention_rows

NAMESPACE: Final = "paratune"
Saved = tuple[Tensor, Tensor, Tensor, Tensor]
"""The attention, and three tensors for the backward pass."""
_OPTIONS: Final = "Tensor cu_seqlens, SymInt max_seqlen, float scale, float dropout, SymInt? window"
_FORWARD: Final = f"packed_attention(Tensor query, Tensor key, Tensor value, {_OPTIONS})"
_BACKWARD: Final = "packed_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, "
_libraries: list[Any] = []
"""Keeps the library alive, because its operators are deleted with it."""


@cache
def define() -> None:
    """Define `torch.ops.paratune.packed_attention`; later calls change nothing."""
    library: Any = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    tags = (torch.Tag.nondeterministic_seeded,)  # because of dropout, two equal calls must not be merged
    library.define(f"{_FORWARD} -> (Tensor, Tensor, Tensor, Tensor)", tags=tags)
    library.define(f"{_BACKWARD}Tensor a, Tensor b, Tensor c, {_OPTIONS}) -> (Tensor, Tensor, Tensor)")
    for key in ("CPU", "CUDA"):
        library.impl("packed_attention", forward, key)
        library.impl("packed_attention_backward", backward, key)
    names = [f"{NAMESPACE}::packed_attention", f"{NAMESPACE}::packed_attention_backward"]
    torch.library.register_fake(names[0], _fake_forward, lib=library)
    torch.library.register_fake(names[1], _fake_backward, lib=library)
    torch.library.register_autograd(names[0], _gradients, setup_context=_save, lib=library)


def packed_attention(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, *options: Any) -> Tensor:
    """Return the result of `cuda.attend`; the options are max_seqlen, scale, dropout and window, in this order."""
    out: Tensor = torch.ops.paratune.packed_attention(query, key, value, cu_seqlens, *options)[0]
    return out


def _kernel(query: Tensor, window: int | None) -> cuda.Kernel:
    if query.device.type != "cuda":
        return "rows"
    capability = torch.cuda.get_device_capability(query.device)
    return cuda.choose_kernel(query.dtype, query.shape[-1], window, capability)


def forward(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, *options: Any) -> Saved:
    """Compute the operator; shapes and dtypes of the results are those of `_fake_forward`."""
    rows = self_attention_rows(cu_seqlens, *options)
    kernel = _kernel(query, rows.window)
    if kernel != "rows":
        cuda.check_same_dtype_and_device(query, key, value, cu_seqlens)
        return kernels.forward(kernel, query, key, value, rows, has_backward=True)
    state = _random_state(query.device)
    with torch.no_grad():
        out = _attend_rows(query, key, value, rows)
    return out, state, query.new_empty(0), query.new_empty(0)


def backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of queries, keys and values; `others` are the results of `forward`, then its options."""
    out, a, b, c, cu_seqlens, *options = others
    rows = self_attention_rows(cu_seqlens, *options)
    kernel = _kernel(query, rows.window)
    if kernel != "rows":
        return cuda.gradients(kernel, grad, (query, key, value), (out, a, b, c), rows)
    q, k, v = (x.detach().requires_grad_() for x in (query, key, value))
    # The forward pass is repeated from its saved random state, so that dropout has the same masks, and with
    # gradients enabled, which are disabled in a backward pass.
    is_on_cpu = query.device.type == "cpu"
    with torch.random.fork_rng([] if is_on_cpu else [query.device]), torch.enable_grad():
        torch.set_rng_state(a) if is_on_cpu else torch.cuda.set_rng_state(a, query.device)
        repeated = _attend_rows(q, k, v, rows)
    dQ, dK, dV = torch.autograd.grad(repeated, (q, k, v), grad)
    return dQ.contiguous(), dK.contiguous(), dV.contiguous()


def _attend_rows(query: Tensor, key: Tensor, value: Tensor, rows: PackedRowEnds) -> Tensor:
    if query.device.type != "cpu":
        return cuda.without_kernel(query, key, value, rows)
    lengths = rows.cu_seqlens_q.diff().tolist()
    return cpu.attend(query, key, value, lengths, scale=rows.scale, dropout=rows.dropout, window=rows.window)


def _random_state(device: torch.device) -> Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)


def _fake_forward(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, *options: Any) -> Saved:
    rows = self_attention_rows(cu_seqlens, *options)
    kernel = _kernel(query, rows.window)
    if kernel != "rows":
        return kernels.forward(kernel, query, key, value, rows, has_backward=True)
    state = torch.empty(_state_size(query.device.type), dtype=torch.uint8, device="cpu")
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    return out, state, query.new_empty(0), query.new_empty(0)


def _fake_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, ...]:
    like = torch.preserve_format if _kernel(query, others[-1]) == "flash" else torch.contiguous_format
    return tuple(torch.empty_like(x, memory_format=like) for x in (query, key, value))


@cache
def _state_size(kind: str) -> int:
    return _random_state(torch.device(kind)).numel()


def _save(ctx: Any, inputs: tuple[Any, ...], output: Saved) -> None:
    query, key, value, cu_seqlens, *options = inputs
    ctx.save_for_backward(query, key, value, *output, cu_seqlens)
    ctx.options = options


def _gradients(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, cu_seqlens = ctx.saved_tensors
    gradients = torch.ops.paratune.packed_attention_backward(grad, *tensors, cu_seqlens, *ctx.options)
    return (*gradients, None, None, None, None, None)
