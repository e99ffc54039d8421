"""PyTorch's private operators for attention of rows of unequal length on CUDA, forward and backward.

Floor 3. `torch.nn.attention.varlen` has no dropout, so the operators below it are called by name, and their signatures
are compared with the ones this module was written for. Queries, keys and values are (T, H, K); B rows, T tokens of all
rows, H heads, K head width.

Both backward passes add the gradients of queries by atomics, in no fixed order, unless PyTorch is told to be
deterministic: flash then has a buffer for each block that adds, memory-efficient works on all keys of a row in one
block. `deterministic` tells it so for one call only. The global switch of PyTorch, on for a whole run, would ask for
CUBLAS_WORKSPACE_CONFIG and raise in operators that know no other way.

Source: PyTorch 2.13, aten/src/ATen/native/transformers/cuda/attention_backward.cu; 2.11 has the same signatures.
"""

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
"""Operators of each kernel and the arguments we give them, in order; others must have defaults."""
NO_MASK = 0
"""`custom_mask_type` of attention that is not causal."""


@cache
def has_signature(kernel: Kernel) -> bool:
    """Return whether this PyTorch has both operators of a kernel with the arguments that we give."""
    return all(_has(name, arguments) for name, arguments in SIGNATURES[kernel].items())


def _has(name: str, ours: tuple[str, ...]) -> bool:
    operator = getattr(torch.ops.aten, name, None)
    if operator is None:
        return False
    arguments = operator.default._schema.arguments
    needed = [argument.name for argument in arguments if not argument.has_default_value() or argument.name in ours]
    return tuple(needed) == ours


class PackedRowEnds(NamedTuple):
    """Where the rows of queries and of keys end, and what is computed of them."""

    cu_seqlens_q: Tensor
    """(B + 1,), int32, on the device of the queries, starts at 0, ends with the number of queries."""
    cu_seqlens_k: Tensor
    """(B + 1,), int32, on the same device, starts at 0, ends with the number of keys."""
    max_q: int
    """Queries of the longest row, or more."""
    max_k: int
    """Keys of the longest row, or more."""
    scale: float
    """What scores are multiplied by."""
    dropout: float
    """Probability of dropping an attention probability."""
    window: int | None
    """Query i meets keys j of its row with |i - j| < window; None for all. Flash only."""

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """How many keys a query meets to its left and to its right, itself not counted: both ends are inclusive."""
        side = None if self.window is None else self.window - 1
        return side, side


def forward(
    kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, rows: PackedRowEnds, *, keeps: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the attention of each row by itself, and what `backward` needs of it.

    Args:
        kernel: Which one.
        query: (T, H, K), of queries.
        key: (T, H, K), of keys, in the dtype of `query`; nothing checks that.
        value: As `key`.
        rows: See there.
        keeps: Whether there will be a backward pass.

    Returns:
        (T, H, K); the log-sum-exp of the scores, float32; two tensors that hold the state of the random numbers.
    """
    ends, longest = (rows.cu_seqlens_q, rows.cu_seqlens_k), (rows.max_q, rows.max_k)
    if kernel == "flash":
        left, right = rows.limits
        outputs = torch.ops.aten._flash_attention_forward(
            *(query, key, value, *ends, *longest, rows.dropout, False, False),
            scale=rows.scale,
            window_size_left=left,
            window_size_right=right,
        )
        return outputs[0], outputs[1], outputs[2], outputs[3]
    inputs = (x.unsqueeze(0) for x in (query, key, value))
    outputs = torch.ops.aten._efficient_attention_forward(
        *inputs, None, *ends, *longest, rows.dropout, NO_MASK, keeps, scale=rows.scale
    )
    return outputs[0].squeeze(0), outputs[1], outputs[2], outputs[3]


def backward(
    kernel: Kernel,
    grad: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    outputs: tuple[Tensor, Tensor, Tensor, Tensor],
    rows: PackedRowEnds,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values.

    Args:
        kernel: As in `forward`.
        grad: Of the attention, (T, H, K).
        inputs: Queries, keys and values, as given to `forward`.
        outputs: What `forward` returned.
        rows: As given to `forward`.
    """
    out, logsumexp, *state = outputs
    ends, longest = (rows.cu_seqlens_q, rows.cu_seqlens_k), (rows.max_q, rows.max_k)
    gradients: tuple[Tensor, Tensor, Tensor]
    if kernel == "flash":
        left, right = rows.limits
        gradients = torch.ops.aten._flash_attention_backward(
            *(grad, *inputs, out, logsumexp, *ends, *longest, rows.dropout, False, *state),
            scale=rows.scale,
            window_size_left=left,
            window_size_right=right,
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
    """Let PyTorch's kernels add in a fixed order in the block, and put its switches back at the end.

    It would also fill new memory with NaN, for nothing: that is switched off. Inductor's own switch, which
    `torch.use_deterministic_algorithms` sets too, stays as it is.
    """
    switches = torch._C
    is_on, only_warns = switches._get_deterministic_algorithms(), switches._get_deterministic_algorithms_warn_only()
    fills = switches._get_deterministic_fill_uninitialized_memory()
    try:
        switches._set_deterministic_fill_uninitialized_memory(False)
        switches._set_deterministic_algorithms(True, warn_only=False)
        yield
    finally:
        switches._set_deterministic_algorithms(is_on, warn_only=only_warns)
        switches._set_deterministic_fill_uninitialized_memory(fills)
