"""Attention of packed rows on CUDA: PyTorch's kernels for rows of unequal length, which take dropout as well.

Floor 3. The kernels are private operators (`kernels`). What is missing or refuses its first call is answered row by
row, which is right everywhere and slow. A kernel that has worked once stays: what it raises later is raised, for ranks
that change kernels one by one would no longer compute alike.

    kernel       dtypes                window   head width
    flash        float16, bfloat16     yes      up to 256, a multiple of 8; compute capability 8.0 or newer
    efficient    float32 too           no       a multiple of 4 (float32) or 8
    rows         all                   yes      all; reads the lengths on the host, which waits for the device

Gradients of the two kernels are the same bits each time, unless `switched` says that they need not be. What PyTorch
calls row by row adds by atomics in float32 and half precision.

B rows, T tokens of all rows, H heads, K head width.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from paratune.errors import coded
from paratune.models.attention import kernels
from paratune.models.attention.kernels import PackedRowEnds, has_signature
from paratune.models.attention.rows import attend_rows

Kernel = Literal["flash", "efficient", "rows"]
HALF = (torch.float16, torch.bfloat16)
_refused: set[Kernel] = set()
_worked: set[Kernel] = set()
_is_deterministic = True
_log = logging.getLogger(__name__)


@contextmanager
def switched(*, deterministic: bool = True) -> Iterator[None]:
    """Set how attention is computed on CUDA in the block, which goes around a run; restore it at the end.

    cuDNN's attention, which PyTorch prefers for padded rows in half precision on GPUs of compute capability 9.0 and
    newer, is off: it makes a plan for each new shape, which takes the host tens of milliseconds, and the shapes of
    padded batches are many.

    Args:
        deterministic: Whether gradients of packed rows must be the same bits each time.
    """
    global _is_deterministic
    backend: Any = torch.backends.cuda
    before, uses_cudnn = _is_deterministic, backend.cudnn_sdp_enabled()
    _is_deterministic = deterministic
    backend.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        _is_deterministic = before
        backend.enable_cudnn_sdp(uses_cudnn)


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
    if can["flash"] and "flash" not in _refused and has_signature("flash"):
        return "flash"
    if can["efficient"] and "efficient" not in _refused and has_signature("efficient"):
        return "efficient"
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
    rows = PackedRowEnds(cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, scale, dropout, window)
    out = _by_fastest(query, key, value, rows)
    if out is not None:
        return out
    lengths = cu_seqlens.diff().tolist()
    return attend_rows(query, key, value, lengths, scale=scale, dropout=dropout, window=window)


def attend_first(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    scale: float,
    dropout: float = 0.0,
) -> Tensor | None:
    """Return softmax(scale q K^T) V of one query for each row; None where no kernel does that.

    Args:
        query: (B, H, K), on a CUDA device.
        key: (T, H, K).
        value: As `key`.
        cu_seqlens: As in `attend`.
        max_seqlen: As in `attend`.
        scale: As in `attend`.
        dropout: As in `attend`.

    Returns:
        (B, H, K), in the dtype of `query`.

    Raises:
        ValueError, RuntimeError: As `attend`.
    """
    one_each = torch.arange(len(query) + 1, dtype=torch.int32, device=query.device)
    return _by_fastest(query, key, value, PackedRowEnds(one_each, cu_seqlens, 1, max_seqlen, scale, dropout, None))


def _by_fastest(query: Tensor, key: Tensor, value: Tensor, rows: PackedRowEnds) -> Tensor | None:
    """Return what the fastest kernel that works computes; None where it has to be done row by row."""
    check_alike(query, key, value, rows.cu_seqlens_k)
    capability = torch.cuda.get_device_capability(query.device)
    while (kernel := choose_kernel(query.dtype, query.shape[-1], rows.window, capability)) != "rows":
        try:
            out = _by_kernel(kernel, query, key, value, rows)
        except RuntimeError as error:
            # An AcceleratorError is of whatever ran before, and the device is lost with it.
            if kernel in _worked or isinstance(error, (torch.OutOfMemoryError, torch.AcceleratorError)):
                raise
            _refused.add(kernel)
            _log.warning(
                "packed attention: the %s kernel refused (%s); trying the next one",
                kernel,
                error,
                extra=coded("attention.kernel_refused", kernel=kernel),
            )
            continue
        _worked.add(kernel)
        return out
    return None


def check_alike(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor) -> None:
    """Raise a ValueError where tensors differ in what no kernel looks at; see `attend`."""
    is_one_dtype = query.dtype == key.dtype == value.dtype and cu_seqlens.dtype == torch.int32
    if is_one_dtype and query.device == key.device == value.device == cu_seqlens.device:
        return
    tensors = {"query": query, "key": key, "value": value, "cu_seqlens": cu_seqlens}
    given = ", ".join(f"{name} {tensor.dtype} on {tensor.device}" for name, tensor in tensors.items())
    raise ValueError(
        f"packed attention: got {given}; query, key and value must have one dtype, cu_seqlens must be torch.int32, "
        "and all of them must be on one device"
    )


def _by_kernel(kernel: kernels.Kernel, query: Tensor, key: Tensor, value: Tensor, rows: PackedRowEnds) -> Tensor:
    keeps = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    if keeps and _is_deterministic:
        out: Tensor = _Deterministic.apply(query, key, value, kernel, rows)  # type: ignore[no-untyped-call]
        return out
    return kernels.forward(kernel, query, key, value, rows, keeps=keeps)[0]


def gradients(
    kernel: kernels.Kernel,
    grad: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    outputs: tuple[Tensor, Tensor, Tensor, Tensor],
    rows: PackedRowEnds,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `kernels.backward`, the same bits each time where the run asks for it."""
    with kernels.deterministic() if _is_deterministic else nullcontext():
        return kernels.backward(kernel, grad, inputs, outputs, rows)


class _Deterministic(torch.autograd.Function):
    """The kernels with a backward pass of our own: the operators' own cannot be told anything.

    A second derivative is refused by the operators that `backward` calls, so it is not marked once_differentiable,
    which takes 15 us a call.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, kernel: kernels.Kernel, rows: PackedRowEnds
    ) -> Tensor:
        outputs = kernels.forward(kernel, query, key, value, rows, keeps=True)
        ctx.save_for_backward(query, key, value, *outputs)
        ctx.kernel, ctx.rows = kernel, rows
        return outputs[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *outputs = ctx.saved_tensors
        return (*gradients(ctx.kernel, grad, (query, key, value), tuple(outputs), ctx.rows), None, None)
