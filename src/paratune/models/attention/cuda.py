"""Attention of packed rows on CUDA: PyTorch's kernels for rows of unequal length, which take dropout as well.

Floor 3. `torch.nn.attention.varlen` has no dropout, so the operators below it are called by name. They are private:
their signatures are compared with the ones this module was written for, and what differs, is missing or refuses its
first call is answered row by row, which is right everywhere and slow. A kernel that has worked once stays: what it
raises later is raised, for ranks that change kernels one by one would no longer compute alike.

    kernel       dtypes                window   head width
    flash        float16, bfloat16     yes      up to 256, a multiple of 8; compute capability 8.0 or newer
    efficient    float32 too           no       a multiple of 4 (float32) or 8
    rows         all                   yes      all; reads the lengths on the host, which waits for the device

B rows, T tokens of all rows, H heads, K head width.
"""

import logging
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from paratune.models.attention.rows import attend_rows

Kernel = Literal["flash", "efficient", "rows"]
HALF = (torch.float16, torch.bfloat16)
SIGNATURES: dict[Kernel, tuple[str, tuple[str, ...]]] = {
    "flash": (
        "_flash_attention_forward",
        (
            "query",
            "key",
            "value",
            "cum_seq_q",
            "cum_seq_k",
            "max_q",
            "max_k",
            "dropout_p",
            "is_causal",
            "return_debug_mask",
            "scale",
            "window_size_left",
            "window_size_right",
        ),
    ),
    "efficient": (
        "_efficient_attention_forward",
        (
            "query",
            "key",
            "value",
            "bias",
            "cu_seqlens_q",
            "cu_seqlens_k",
            "max_seqlen_q",
            "max_seqlen_k",
            "dropout_p",
            "custom_mask_type",
            "compute_log_sumexp",
            "scale",
        ),
    ),
}
"""Operator of each kernel and the arguments we give it, in order; others must have defaults."""
_refused: set[Kernel] = set()
_worked: set[Kernel] = set()
_log = logging.getLogger(__name__)


@cache
def has_signature(kernel: Kernel) -> bool:
    """Say whether this PyTorch has the operator of a kernel with the arguments that we give."""
    name, ours = SIGNATURES[kernel]
    operator = getattr(torch.ops.aten, name, None)
    if operator is None:
        return False
    arguments = operator.default._schema.arguments
    needed = [argument.name for argument in arguments if not argument.has_default_value() or argument.name in ours]
    return tuple(needed) == ours


def choose_kernel(dtype: torch.dtype, head_width: int, window: int | None, capability: tuple[int, int]) -> Kernel:
    """Return the fastest kernel that can do it.

    Args:
        dtype: Of queries, keys and values.
        head_width: K.
        window: See `attend`.
        capability: Compute capability of the device, as (8, 0).
    """
    half = dtype in HALF
    can: dict[Kernel, bool] = {
        "flash": half and head_width % 8 == 0 and head_width <= 256 and capability >= (8, 0),
        "efficient": window is None
        and ((half and head_width % 8 == 0) or (dtype == torch.float32 and head_width % 4 == 0)),
    }
    for kernel, possible in can.items():
        if possible and kernel not in _refused and has_signature(kernel):
            return kernel
    return "rows"


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    scale: float,
    dropout: float = 0.0,
    window: int | None = None,
) -> Tensor:
    """Return softmax(scale Q K^T) V of each row by itself, with dropout on the probabilities.

    Args:
        query: (T, H, K), on a CUDA device.
        key: As `query`.
        value: As `query`.
        cu_seqlens: (B + 1,), int32, on the same device, starts at 0, ends with T.
        max_seqlen: Tokens of the longest row, or more.
        scale: What scores are multiplied by, commonly K ** -0.5.
        dropout: Probability of dropping an attention probability.
        window: Query i meets keys j of its row with |i - j| < window; None for all.

    Returns:
        (T, H, K), in the dtype of `query`.

    Raises:
        ValueError: Tensors differ in dtype or device, or `cu_seqlens` are not int32 on that device: the kernels take
            the numbers of one for those of the other.
        RuntimeError: From a kernel that has worked before; from its first call if the device or its memory failed.
    """
    _check_alike(query, key, value, cu_seqlens)
    kernel = choose_kernel(query.dtype, query.shape[-1], window, torch.cuda.get_device_capability(query.device))
    if kernel != "rows":
        try:
            out = _by_kernel(kernel, query, key, value, cu_seqlens, max_seqlen, scale, dropout, window)
        except RuntimeError as error:
            # An AcceleratorError is of whatever ran before, and the device is lost with it.
            if kernel in _worked or isinstance(error, (torch.OutOfMemoryError, torch.AcceleratorError)):
                raise
            _refused.add(kernel)
            _log.warning("packed attention: the %s kernel refused (%s); trying the next one", kernel, error)
            return attend(query, key, value, cu_seqlens, max_seqlen, scale=scale, dropout=dropout, window=window)
        _worked.add(kernel)
        return out
    lengths = cu_seqlens.diff().tolist()
    return attend_rows(query, key, value, lengths, scale=scale, dropout=dropout, window=window)


def _check_alike(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor) -> None:
    is_one_dtype = query.dtype == key.dtype == value.dtype and cu_seqlens.dtype == torch.int32
    if is_one_dtype and query.device == key.device == value.device == cu_seqlens.device:
        return
    tensors = {"query": query, "key": key, "value": value, "cu_seqlens": cu_seqlens}
    given = ", ".join(f"{name} {tensor.dtype} on {tensor.device}" for name, tensor in tensors.items())
    raise ValueError(
        f"packed attention: got {given}; query, key and value must have one dtype, cu_seqlens must be torch.int32, "
        "and all of them must be on one device"
    )


def _by_kernel(
    kernel: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    scale: float,
    dropout: float,
    window: int | None,
) -> Tensor:
    operator = getattr(torch.ops.aten, SIGNATURES[kernel][0])
    out: Tensor
    if kernel == "flash":
        # Both ends of the window are inclusive there; None is no end.
        side = None if window is None else window - 1
        limits = {"scale": scale, "window_size_left": side, "window_size_right": side}
        seqlens = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
        out = operator(query, key, value, *seqlens, dropout, False, False, **limits)[0]
        return out
    rows = (x.unsqueeze(0) for x in (query, key, value))
    seqlens = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    # Mask type 0: not causal. The backward pass needs the log-sum-exp.
    out = operator(*rows, None, *seqlens, dropout, 0, torch.is_grad_enabled(), scale=scale)[0]
    return out.squeeze(0)
