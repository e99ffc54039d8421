"""Whether the attention kernel that a run will train with computes attention: one call of it, forward and backward.

Floor 3. Kernels are chosen by device, dtype and window, and some are private operators of PyTorch: what is right on one
machine need not be on another. T tokens of all rows, H heads, K head width.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor

from paratune.models.attention import cpu, cuda
from paratune.models.attention.rows import attend_rows

LENGTHS: Final = (5, 200, 70)
"""Rows that the tiles pad, and one longer than `cpu.SHORT`, which they do not."""
MOST_HEADS: Final = 2
"""Heads are computed alike, so no more are tried: with them a window takes about 10 ms on the CPU."""
TOLERANCE: Final = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Largest difference, as a part of the largest number. A key too many or too few makes one of 0.1 and more."""
TF32: Final = 5e-3
"""The same for float32 on CUDA, where products may be computed with the mantissa of float16."""


def why_not(
    device: torch.device, dtype: torch.dtype, *, num_heads: int, head_width: int, windows: Iterable[int | None]
) -> str | None:
    """Return why packed rows cannot be trained on a device, or None if they can.

    The kernel is called without dropout, with each window once, and compared with softmax attention written out row by
    row on the host, in float32 or float64. On the CPU the tiles are called, whatever `cpu.attend` would choose then.

    Args:
        device: Where the model trains. Random numbers of no device are drawn.
        dtype: What queries, keys and values have there: the compute dtype.
        num_heads: H of queries; at most `MOST_HEADS` are tried.
        head_width: K.
        windows: `window` of `cpu.attend`, for each kind of layer that the model has.

    Returns:
        A sentence without a full stop, for a log; None where outputs and gradients agree within `TOLERANCE`.

    Raises:
        torch.OutOfMemoryError: There is no memory for even this.
    """
    for window in dict.fromkeys(windows):
        case = f"{device.type} in {dtype}, {num_heads} heads of {head_width}" + (f", window {window}" if window else "")
        try:
            worst = _difference(device, dtype, num_heads, head_width, window)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # Whatever a private operator raises means that it cannot be used.
            reason = " ".join(str(error).split())[:200]
            return f"attention of packed rows failed on {case}: {type(error).__name__}: {reason}"
        allowed = TF32 if (device.type, dtype) == ("cuda", torch.float32) else TOLERANCE[dtype]
        if not worst <= allowed:
            return (
                f"attention of packed rows on {case} is off by {worst:.1e} of its largest number, above {allowed:.0e}"
            )
    return None


def _difference(device: torch.device, dtype: torch.dtype, num_heads: int, head_width: int, window: int | None) -> float:
    """Return the largest difference of outputs and gradients, each as a part of its largest number; NaN stays NaN."""
    generator = torch.Generator().manual_seed(0)
    shape = (sum(LENGTHS), min(num_heads, MOST_HEADS), head_width)
    query, key, value, weights = (torch.randn(shape, generator=generator).to(dtype) for _ in range(4))
    scale, exact_dtype = head_width**-0.5, torch.promote_types(dtype, torch.float32)
    with torch.enable_grad():
        ours = [x.to(device, copy=True).requires_grad_() for x in (query, key, value)]
        out = _attend(ours, scale, window)
        found = [out, *torch.autograd.grad(out, ours, weights.to(device))]
        exact = [x.to(exact_dtype, copy=True).requires_grad_() for x in (query, key, value)]
        out = written_out(*exact, lengths=LENGTHS, scale=scale, window=window)
        expected = [out, *torch.autograd.grad(out, exact, weights.to(exact_dtype))]
    largest = torch.stack([x.detach().abs().max() for x in expected])
    apart = torch.stack([(x.detach().cpu() - y.detach()).abs().max() for x, y in zip(found, expected, strict=True)])
    # Where a query meets one key only, some gradients are 0: they are not compared with themselves.
    return float((apart / largest.clamp(min=0.01 * float(largest.max()))).max())


def _attend(xs: Sequence[Tensor], scale: float, window: int | None) -> Tensor:
    query, key, value = xs
    if query.device.type == "cpu":
        return cpu.attend_tiles(query, key, value, LENGTHS, scale=scale, window=window)
    if query.device.type == "cuda":
        ends = torch.tensor([0, *accumulate(LENGTHS)], dtype=torch.int32, device=query.device)
        return cuda.attend(query, key, value, ends, max(LENGTHS), scale=scale, window=window)
    return attend_rows(query, key, value, LENGTHS, scale=scale, window=window)


def written_out(
    query: Tensor, key: Tensor, value: Tensor, *, lengths: Sequence[int], scale: float, window: int | None
) -> Tensor:
    """Return softmax(scale Q K^T) V of each row, (T, H, K), from its definition; arguments as in `cpu.attend`."""
    outs = []
    for q, k, v in zip(*(torch.split(x, list(lengths)) for x in (query, key, value)), strict=True):
        scores = scale * torch.einsum("ihk,jhk->hij", q, k)
        if window is not None:
            i = torch.arange(len(q))
            scores = scores.masked_fill((i[:, None] - i).abs() >= window, float("-inf"))
        outs.append(torch.einsum("hij,jhk->ihk", scores.softmax(-1), v))
    return torch.cat(outs)
