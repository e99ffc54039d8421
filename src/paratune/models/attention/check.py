"""Tests the attention kernel with which a run will train: one forward and backward call, compared with the definition.

The kernel depends on device, dtype and window, and some kernels are private operators of PyTorch, which may work on one
machine and fail on another. Dimensions: `T` tokens of all rows, `H` heads, `K` head width.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor

from paratune.models.attention import cpu, cuda
from paratune.models.attention.rows import attend_rows

LENGTHS: Final = (5, 200, 70)
"""Short rows, which tiles pad, and one longer than `cpu.SHORT`, which they do not."""
MOST_HEADS: Final = 2
"""Most heads in the test, because all heads are computed in the same way; a window takes about 10 ms on the CPU."""
TOLERANCE: Final = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Largest relative difference (to the largest number). One key too many or too few makes a difference above 0.1."""
TF32: Final = 5e-3
"""The same for float32 on CUDA, where products may be computed in TF32."""


def why_not(
    device: torch.device, dtype: torch.dtype, *, num_heads: int, head_width: int, windows: Iterable[int | None]
) -> str | None:
    """Return why packed rows cannot be trained on a device, a sentence for a log; None where outputs and gradients of
    its kernel agree with `reference_attention` within `TOLERANCE`.

    The kernel is called without dropout, once for each of the `windows` of layers, in the compute dtype. On the CPU the
    tiles are called, even where `cpu.attend` would choose another function. No random numbers of a device are drawn.

    Raises:
        torch.OutOfMemoryError: There is no memory for even this.
    """
    for window in dict.fromkeys(windows):
        case = f"{device.type} in {dtype}, {num_heads} heads of {head_width}" + (f", window {window}" if window else "")
        try:
            worst = _difference(device, dtype, num_heads, head_width, window)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a private operator that raises anything cannot be used
            reason = " ".join(str(error).split())[:200]
            return f"attention of packed rows failed on {case}: {type(error).__name__}: {reason}"
        allowed = TF32 if (device.type, dtype) == ("cuda", torch.float32) else TOLERANCE[dtype]
        if not worst <= allowed:
            return (
                f"attention of packed rows on {case} differs by {worst:.1e} of the largest number, above {allowed:.0e}"
            )
    return None


def _difference(device: torch.device, dtype: torch.dtype, num_heads: int, head_width: int, window: int | None) -> float:
    """Return the largest relative difference of outputs and gradients (to the largest number of each), or NaN."""
    generator = torch.Generator().manual_seed(0)
    shape = (sum(LENGTHS), min(num_heads, MOST_HEADS), head_width)
    query, key, value, weights = (torch.randn(shape, generator=generator).to(dtype) for _ in range(4))
    scale, exact_dtype = head_width**-0.5, torch.promote_types(dtype, torch.float32)
    with torch.enable_grad():
        ours = [x.to(device, copy=True).requires_grad_() for x in (query, key, value)]
        out = _attend(ours, scale, window)
        computed = [out, *torch.autograd.grad(out, ours, weights.to(device))]
        exact = [x.to(exact_dtype, copy=True).requires_grad_() for x in (query, key, value)]
        out = reference_attention(*exact, lengths=LENGTHS, scale=scale, window=window)
        expected = [out, *torch.autograd.grad(out, exact, weights.to(exact_dtype))]
    largest = torch.stack([x.detach().abs().max() for x in expected])
    apart = torch.stack([(x.detach().cpu() - y.detach()).abs().max() for x, y in zip(computed, expected, strict=True)])
    # Where a query has only one key, some gradients are 0: these are scaled by the largest of the others.
    return float((apart / largest.clamp(min=0.01 * float(largest.max()))).max())


def _attend(xs: Sequence[Tensor], scale: float, window: int | None) -> Tensor:
    query, key, value = xs
    if query.device.type == "cpu":
        return cpu.attend_tiles(query, key, value, LENGTHS, scale=scale, window=window)
    if query.device.type == "cuda":
        ends = torch.tensor([0, *accumulate(LENGTHS)], dtype=torch.int32, device=query.device)
        return cuda.attend(query, key, value, ends, max(LENGTHS), scale=scale, window=window)
    return attend_rows(query, key, value, LENGTHS, scale=scale, window=window)


def reference_attention(
    query: Tensor, key: Tensor, value: Tensor, *, lengths: Sequence[int], scale: float, window: int | None
) -> Tensor:
    """Return softmax(scale Q K^T) V of each row, (T, H, K), by its definition; arguments as in `cpu.attend`."""
    outs = []
    for q, k, v in zip(*(torch.split(x, list(lengths)) for x in (query, key, value)), strict=True):
        scores = scale * torch.einsum("ihk,jhk->hij", q, k)
        if window is not None:
            i = torch.arange(len(q))
            scores = scores.masked_fill((i[:, None] - i).abs() >= window, float("-inf"))
        outs.append(torch.einsum("hij,jhk->ihk", scores.softmax(-1), v))
    return torch.cat(outs)
