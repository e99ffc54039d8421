"""Attention of packed rows on the CPU for tiny batches: all rows are padded to one length, for few calls of PyTorch.

In a tiny batch, calls of PyTorch take more time than their arithmetic, so that the fewest calls are fastest, and the
computation of padding costs nothing. The results equal those of `cpu` and `small_batches` up to rounding; dropout
masks differ.

Dimensions: `B` rows, `T` tokens of all rows, `H` heads, `K` head width, `L` tokens of the longest row; G = B * H.
Formulas have the letters of Dao et al., FlashAttention, NeurIPS 2022, appendix B.4: P, dP, dS; N is the matrix of keys.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paratune.models.dropout import MaskSource

STEP = 8
"""L is rounded up to a multiple of it."""
MOST = 1 << 16
"""Most scores of a dense batch, padding included."""
MOST_PADDING = 1 << 15
"""Most scores more than in blocks of rows of similar length: above it, padding takes more time than the calls for
blocks."""


@dataclass(frozen=True, eq=False)
class DensePlaces:
    """Index arrays between a packed batch, (T, H), and a dense one, (G, L)."""

    sources: Tensor
    """(G * L,), int64: index into (T, H) of each place; the first token of the same row for padding."""
    targets: Tensor
    """(T * H,), int64: index into (G, L) of each head of each token."""
    bias: Tensor
    """(G, 1, L), float32: 0, and minus infinity for keys of padding."""
    shape: tuple[int, int]
    """G and L."""


def find_places(lengths: tuple[int, ...], num_heads: int, window: int | None) -> DensePlaces | None:
    """Return the places of a tiny batch; None for a larger batch, or with a window."""
    rows = [length for length in lengths if length]
    if window is not None or not rows:
        return None
    L = _rounded(max(rows))
    num_scores = num_heads * len(rows) * L * L
    num_in_blocks = num_heads * sum(_rounded(length) ** 2 for length in rows)
    if num_scores > MOST or num_scores - num_in_blocks > MOST_PADDING:
        return None
    return _places(tuple(rows), num_heads, L)


@lru_cache(maxsize=16)
def _places(lengths: tuple[int, ...], num_heads: int, longest: int) -> DensePlaces:
    lengths_B, heads_H, place_L = np.array(lengths), np.arange(num_heads), np.arange(longest)
    starts_B = lengths_B.cumsum() - lengths_B
    is_token_BL = place_L < lengths_B[:, None]
    tokens_BL = starts_B[:, None] + place_L * is_token_BL
    sources = tokens_BL[:, None] * num_heads + heads_H[:, None]
    B, G = len(lengths), len(lengths) * num_heads
    rows_BL = np.arange(B)[:, None] * num_heads * longest + place_L
    targets = rows_BL[is_token_BL][:, None] + heads_H * longest
    bias_BL = np.where(is_token_BL, np.float32(0), np.float32(-np.inf))
    return DensePlaces(
        torch.from_numpy(sources.ravel()),
        torch.from_numpy(targets.ravel()),
        torch.from_numpy(bias_BL.repeat(num_heads, axis=0)).unsqueeze(1),
        (G, longest),
    )


def _rounded(length: int) -> int:
    return -(-length // STEP) * STEP


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    places: DensePlaces,
    *,
    scale: float,
    masks: MaskSource | None,
    is_first: bool = False,
) -> Tensor:
    """Return the result of `cpu.attend_tiles`, with the `places` of the batch, and `masks` for dropout.

    With `is_first`, query and result are (B, H, K), one for each row; no row is empty.
    """
    options = places, scale, masks, is_first
    out: Tensor = _DenseAttention.apply(query, key, value, *options)  # type: ignore[no-untyped-call]
    return out


class _DenseAttention(torch.autograd.Function):
    """Not marked `once_differentiable`, which takes 15 us per call: `_softmax_backward_data` with `grad_input` raises
    for a second derivative."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        places: DensePlaces,
        scale: float,
        masks: MaskSource | None,
        is_first: bool,
    ) -> Tensor:
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        G, _ = places.shape
        N, V = (_to_dense(x, places, dtype) for x in (key, value))
        Q = query.to(dtype).reshape(G, 1, -1) if is_first else _to_dense(query, places, dtype)
        with torch.autocast("cpu", enabled=False):
            P = torch.baddbmm(places.bias.to(dtype), Q, N.mT, alpha=scale).softmax(-1)
            factors = None
            if masks is not None:
                factors = torch.from_numpy(masks.factors(P.numel(), dtype)).view(P.shape)
            out = torch.bmm(P if factors is None else P * factors, V)
        ctx.save_for_backward(Q, N, V, P, factors)
        ctx.places, ctx.scale, ctx.is_first = places, scale, is_first
        return (out.view(query.shape) if is_first else _to_packed(out, places, query.shape)).to(query.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        Q, N, V, P, factors = ctx.saved_tensors
        places, num_tokens = ctx.places, len(ctx.places.targets) // grad.shape[1]
        if ctx.is_first:
            dO = grad.to(Q.dtype).reshape(Q.shape)
        else:
            dO = Q.new_zeros(Q.shape)
            dO.view(-1, Q.shape[2]).index_copy_(0, places.targets, grad.reshape(-1, Q.shape[2]).to(Q.dtype))
        with torch.autocast("cpu", enabled=False):
            dV = torch.bmm((P if factors is None else P * factors).mT, dO)
            dP = torch.bmm(dO, V.mT)
            if factors is not None:
                dP.mul_(factors)
            dS = torch._softmax_backward_data(dP, P, -1, P.dtype, grad_input=dP).mul_(ctx.scale)
            dQ, dN = torch.bmm(dS, N), torch.bmm(dS.mT, Q)
        shape_of_keys = torch.Size((num_tokens, *grad.shape[1:]))
        gradients = (
            dQ.view(grad.shape) if ctx.is_first else _to_packed(dQ, places, grad.shape),
            *(_to_packed(x, places, shape_of_keys) for x in (dN, dV)),
        )
        return (*(x.to(grad.dtype) for x in gradients), None, None, None, None)


def _to_dense(x: Tensor, places: DensePlaces, dtype: torch.dtype) -> Tensor:
    """Return (T, H, K) as (G, L, K)."""
    K = x.shape[2]
    return x.reshape(-1, K).to(dtype).index_select(0, places.sources).view(*places.shape, K)


def _to_packed(x: Tensor, places: DensePlaces, shape: torch.Size) -> Tensor:
    """Return (G, L, K) as (T, H, K)."""
    return x.view(-1, x.shape[2]).index_select(0, places.targets).view(shape)
