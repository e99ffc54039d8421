"""PyTorch's private operators for attention of rows of unequal length on CUDA, forward and backward.

`torch.nn.attention.varlen` has no dropout, so the operators under it are called by name, after a comparison of their
signatures with those for which this module was written. Queries, keys and values are (T, H, K).

Both backward passes add the gradients of queries by atomics, in no fixed order, unless PyTorch is set to be
deterministic: then flash has a buffer for each block that adds, and memory-efficient computes all keys of a row in one
block. `deterministic` sets it for one call only. Set for a whole run, PyTorch's switch would require
CUBLAS_WORKSPACE_CONFIG, and raise in operators without a deterministic version.

Dimensions: `B` rows, `T` tokens of all rows, `H` heads, `K` head width.

Source: PyTorch 2.13, aten/src/ATen/native/transformers/cuda/attention_backward.cu; 2.11 has the same signatures.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Kernel = Literal["flash", "efficient"]
SIGNATURES: dict[Kernel, dict[str, tuple[str, ...]]] = {
    "flash": {
        "_flash_attention_forward": (
            *("query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal"),
            *("return_debug_mask", "scale", "window_size_left", "window_size_right"),
        ),
        "_flash_attention_backward": (
            *("grad_out", "query", "key", "value", "out", "logsumexp", "cum_seq_q", "cum_seq_k", "max_q", "max_k"),
            *("dropout_p", "is_causal", "rng_state", "unused", "scale", "window_size_left", "window_size_right"),
        ),
    },
    "efficient": {
        "_efficient_attention_forward": (
            *("query", "key", "value", "bias", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"),
            *("dropout_p", "custom_mask_type", "compute_log_sumexp", "scale"),
        ),
        "_efficient_attention_backward": (
            *("grad_out_", "query", "key", "value", "bias", "out", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q"),
            *("max_seqlen_k", "logsumexp", "dropout_p", "philox_seed", "philox_offset", "custom_mask_type"),
            *("bias_requires_grad", "scale"),
        ),
    },
}
"""Operators of each kernel with the arguments that we pass, in order; other arguments must have defaults."""
NO_MASK = 0
"""`custom_mask_type` of attention that is not causal."""
_switching = threading.Lock()


@cache
def has_signature(kernel: Kernel) -> bool:
    """Return whether this PyTorch has both operators of a kernel with the arguments that we pass."""
    return all(_has_operator(name, arguments) for name, arguments in SIGNATURES[kernel].items())


def _has_operator(name: str, ours: tuple[str, ...]) -> bool:
    operator = getattr(torch.ops.aten, name, None)
    if operator is None:
        return False
    arguments = operator.default._schema.arguments
    needed = [argument.name for argument in arguments if not argument.has_default_value() or argument.name in ours]
    return tuple(needed) == ours


class PackedRowEnds(NamedTuple):
    """The ends of the rows of queries and of keys, and the options of their attention."""

    cu_seqlens_q: Tensor
    """(B + 1,), int32, on the device of the queries, starts at 0, ends with the number of queries."""
    cu_seqlens_k: Tensor
    """(B + 1,), int32, on the same device, starts at 0, ends with the number of keys."""
    max_q: int
    """Queries of the longest row, or more."""
    max_k: int
    """Keys of the longest row, or more."""
    scale: float
    """Factor of the scores."""
    dropout: float
    """Probability of dropping an attention probability."""
    window: int | None
    """Query i attends to keys j of its row with |i - j| < window; None for all keys. Flash only."""

    @property
    def window_options(self) -> dict[str, int | None]:
        """The window as options of flash: the numbers of keys to the left and right of a query, itself not counted."""
        side = None if self.window is None else self.window - 1
        return {"window_size_left": side, "window_size_right": side}


def self_attention_rows(
    cu_seqlens: Tensor, max_seqlen: int, scale: float, dropout: float, window: int | None
) -> PackedRowEnds:
    """Return the row ends for attention in which queries and keys have the same rows."""
    return PackedRowEnds(cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, scale, dropout, window)


def forward(
    kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, rows: PackedRowEnds, *, has_backward: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the attention of each row by itself, (T, H, K), and the tensors that `backward` needs: the log-sum-exp of
    the scores, float32, and two with the state of the random numbers.

    Keys and values have the dtype of the queries; nothing checks that.
    """
    ends, longest = (rows.cu_seqlens_q, rows.cu_seqlens_k), (rows.max_q, rows.max_k)
    if kernel == "flash":
        outputs = torch.ops.aten._flash_attention_forward(
            *(query, key, value, *ends, *longest, rows.dropout, False, False), scale=rows.scale, **rows.window_options
        )
        return outputs[0], outputs[1], outputs[2], outputs[3]
    inputs = (x.unsqueeze(0) for x in (query, key, value))
    outputs = torch.ops.aten._efficient_attention_forward(
        *inputs, None, *ends, *longest, rows.dropout, NO_MASK, has_backward, scale=rows.scale
    )
    return outputs[0].squeeze(0), outputs[1], outputs[2], outputs[3]


def backward(
    kernel: Kernel,
    grad: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    outputs: tuple[Tensor, Tensor, Tensor, Tensor],
    rows: PackedRowEnds,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, from inputs and results of `forward` and `grad`, (T, H, K)."""
    out, logsumexp, *state = outputs
    ends, longest = (rows.cu_seqlens_q, rows.cu_seqlens_k), (rows.max_q, rows.max_k)
    gradients: tuple[Tensor, Tensor, Tensor]
    if kernel == "flash":
        gradients = torch.ops.aten._flash_attention_backward(
            *(grad, *inputs, out, logsumexp, *ends, *longest, rows.dropout, False, *state),
            scale=rows.scale,
            **rows.window_options,
        )
        return gradients
    tensors = (x.unsqueeze(0) for x in (grad, *inputs))
    dQ, dK, dV, _ = torch.ops.aten._efficient_attention_backward(
        *(*tensors, None, out.unsqueeze(0), *ends, *longest, logsumexp, rows.dropout, *state, NO_MASK, False),
        scale=rows.scale,
    )
    return dQ.squeeze(0), dK.squeeze(0), dV.squeeze(0)


@contextmanager
def deterministic() -> Iterator[None]:
    """Let PyTorch's kernels add in a fixed order, and restore its switches at the end.

    In this mode PyTorch also fills new memory with NaN, which costs time and is switched off here. Inductor's own
    switch, which `torch.use_deterministic_algorithms` also sets, does not change.

    The switches are those of the process, and the kernels take no argument instead. So one thread at a time has them:
    interleaved blocks would leave them on. An operator that another thread starts meanwhile is deterministic, too.
    """
    switches = torch._C
    with _switching:
        is_on, only_warns = switches._get_deterministic_algorithms(), switches._get_deterministic_algorithms_warn_only()
        fills = switches._get_deterministic_fill_uninitialized_memory()
        try:
            switches._set_deterministic_fill_uninitialized_memory(False)
            switches._set_deterministic_algorithms(True, warn_only=False)
            yield
        finally:
            switches._set_deterministic_algorithms(is_on, warn_only=only_warns)
            switches._set_deterministic_fill_uninitialized_memory(fills)
