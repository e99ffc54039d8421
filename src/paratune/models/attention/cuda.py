"""Attention of packed rows on CUDA: chooses among PyTorch's kernels for rows of unequal length, with dropout.

The kernels are private operators (`kernels`). Where a kernel is missing, or its first call fails, attention is computed
by PyTorch's public function: in one call with a window, and otherwise row by row, which is slow. After a kernel has
worked once, its errors are raised: if ranks changed kernels one by one, they would compute different results.

    kernel       dtypes                window   head width
    flash        float16, bfloat16     yes      up to 256, a multiple of 8; compute capability 8.0 or newer
    efficient    float32 too           no       a multiple of 4 (float32) or 8
    rows         all                   yes      all; without a window it reads the lengths on the host, which waits

Gradients of the first two kernels are deterministic, unless `attention_settings` allows otherwise. Those of `rows` are
not: PyTorch's functions add by atomics in float32 and half precision.

Dimensions: `B` rows, `T` tokens of all rows, `H` heads, `K` head width.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from paratune.errors import coded
from paratune.models.attention import kernels
from paratune.models.attention.kernels import PackedRowEnds, has_signature, self_attention_rows
from paratune.models.attention.rows import attend_rows
from paratune.models.attention.windows import attend_windows

Kernel = Literal["flash", "efficient", "rows"]
HALF = (torch.float16, torch.bfloat16)
_refused: set[Kernel] = set()
_worked: set[Kernel] = set()
_is_deterministic = True
_log = logging.getLogger(__name__)


@contextmanager
def attention_settings(*, deterministic: bool = True) -> Iterator[None]:
    """Apply the settings of attention on CUDA for a run, and restore the earlier ones at the end.

    If `deterministic`, gradients of packed rows have the same bits each time.

    cuDNN's attention is switched off, which PyTorch prefers for padded rows in half precision on GPUs of compute
    capability 9.0 and newer: it makes a plan for each new shape, which takes tens of milliseconds on the host, and
    padded batches have many shapes.
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
    """Return the fastest kernel for a dtype, K, `window` (see `attend`) and a compute capability, such as (8, 0)."""
    half = dtype in HALF
    is_supported: dict[kernels.Kernel, bool] = {
        "flash": half and head_width % 8 == 0 and head_width <= 256 and capability >= (8, 0),
        "efficient": window is None
        and ((half and head_width % 8 == 0) or (dtype == torch.float32 and head_width % 4 == 0)),
    }
    for kernel, supported in is_supported.items():  # the faster one first
        if supported and kernel not in _refused and has_signature(kernel):
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
    """Return softmax(scale Q K^T) V of each row by itself, (T, H, K); arguments as in `cpu.attend_tiles`.

    Tensors are on one CUDA device; `cu_seqlens`, (B + 1,), int32, are the ends of rows, from 0 to T, and `max_seqlen`
    is the number of tokens of the longest row, or more.

    Raises:
        ValueError: Tensors differ in dtype or device, or `cu_seqlens` is not int32 on that device: the kernels do not
            check that, and would misread the memory.
        RuntimeError: A kernel that has worked before failed, or the device or its memory failed.
    """
    if window is not None and window >= max_seqlen:
        window = None  # it hides nothing, and more kernels have none
    rows = self_attention_rows(cu_seqlens, max_seqlen, scale, dropout, window)
    out = _by_fastest(query, key, value, rows)
    return without_kernel(query, key, value, rows) if out is None else out


def without_kernel(query: Tensor, key: Tensor, value: Tensor, rows: PackedRowEnds) -> Tensor:
    """Return the result of `attend` with PyTorch's public function; waits for the device unless there is a window."""
    options: dict[str, Any] = {"scale": rows.scale, "dropout": rows.dropout, "window": rows.window}
    if rows.window is not None:
        return attend_windows(query, key, value, rows.cu_seqlens_k, **options)
    return attend_rows(query, key, value, rows.cu_seqlens_k.diff().tolist(), **options)


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
    """Return softmax(scale q K^T) V of one query for each row, (B, H, K); None where no kernel supports it.

    Arguments and errors as in `attend`, but `query` is (B, H, K).
    """
    one_each = torch.arange(len(query) + 1, dtype=torch.int32, device=query.device)
    return _by_fastest(query, key, value, PackedRowEnds(one_each, cu_seqlens, 1, max_seqlen, scale, dropout, None))


def _by_fastest(query: Tensor, key: Tensor, value: Tensor, rows: PackedRowEnds) -> Tensor | None:
    """Return the result of the fastest kernel that works; None where attention must be computed row by row."""
    check_same_dtype_and_device(query, key, value, rows.cu_seqlens_k)
    capability = torch.cuda.get_device_capability(query.device)
    while (kernel := choose_kernel(query.dtype, query.shape[-1], rows.window, capability)) != "rows":
        try:
            out = _by_kernel(kernel, query, key, value, rows)
        except RuntimeError as error:  # such as a kernel that this build of PyTorch lacks for the GPU
            # An AcceleratorError belongs to an earlier kernel, and the device cannot be used any more.
            if kernel in _worked or isinstance(error, (torch.OutOfMemoryError, torch.AcceleratorError)):
                raise
            _refused.add(kernel)
            extra = coded("attention.kernel_refused", kernel=kernel)
            _log.warning("packed attention: the %s kernel failed (%s); using the next one", kernel, error, extra=extra)
            continue
        _worked.add(kernel)
        return out
    return None


def check_same_dtype_and_device(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor) -> None:
    """Raise a ValueError where dtypes or devices differ, which no kernel checks; see `attend`."""
    is_one_dtype = query.dtype == key.dtype == value.dtype and cu_seqlens.dtype == torch.int32
    if is_one_dtype and query.device == key.device == value.device == cu_seqlens.device:
        return
    tensors = {"query": query, "key": key, "value": value, "cu_seqlens": cu_seqlens}
    described = ", ".join(f"{name} {tensor.dtype} on {tensor.device}" for name, tensor in tensors.items())
    raise ValueError(
        f"packed attention: got {described}; query, key and value must have one dtype, cu_seqlens must be torch.int32, "
        "and all of them must be on one device"
    )


def _by_kernel(kernel: kernels.Kernel, query: Tensor, key: Tensor, value: Tensor, rows: PackedRowEnds) -> Tensor:
    has_backward = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    if has_backward and _is_deterministic:
        out: Tensor = _Deterministic.apply(query, key, value, kernel, rows)  # type: ignore[no-untyped-call]
        return out
    return kernels.forward(kernel, query, key, value, rows, has_backward=has_backward)[0]


def gradients(
    kernel: kernels.Kernel,
    grad: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    outputs: tuple[Tensor, Tensor, Tensor, Tensor],
    rows: PackedRowEnds,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result of `kernels.backward`, deterministic where the run requires it."""
    with kernels.deterministic() if _is_deterministic else nullcontext():
        return kernels.backward(kernel, grad, inputs, outputs, rows)


class _Deterministic(torch.autograd.Function):
    """The kernels with a backward pass that can be deterministic, which PyTorch's own backward of the operators cannot.

    Not marked `once_differentiable`, which takes 15 us per call: the operators in `backward` raise for a second
    derivative.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, kernel: kernels.Kernel, rows: PackedRowEnds
    ) -> Tensor:
        outputs = kernels.forward(kernel, query, key, value, rows, has_backward=True)
        ctx.save_for_backward(query, key, value, *outputs)
        ctx.kernel, ctx.rows = kernel, rows
        return outputs[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *outputs = ctx.saved_tensors
        return (*gradients(ctx.kernel, grad, (query, key, value), tuple(outputs), ctx.rows), None, None)
