"""Attention of packed rows on the CPU: one autograd function for all rows and heads of a layer, forward and backward.

Scores are computed in tiles that stay in the processor's cache between the two matrix products. The backward pass
computes them again, so that the memory for it grows with T, except for one bit of dropout mask per score.

Two tricks save passes over the scores. Scores are in base 2, because `exp2` takes a third of the time of `exp` here: Q
is multiplied by scale / ln 2. And queries and keys have two more columns, so that the matrix product itself subtracts
the log-sum-exp and adds the bias of padding: [q, -lse, 1] . [k, 1, bias] = q . k - lse + bias.

Dimensions: `B` rows, `T` tokens of all rows, `H` heads, `K` head width, `L` tokens of a row; a tile is (G, I, J): rows
times heads, queries, keys. Formulas have the letters of Dao et al., FlashAttention, NeurIPS 2022, appendix B.4: P, dP,
dS; N is the matrix of keys.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from paratune.models.attention.rows import attend_rows
from paratune.models.dropout import MaskSource

LN_2 = math.log(2.0)
TILE = 1 << 18
"""Most scores of a tile: with its mask, it fills about the level 2 cache of a processor."""
MIN_QUERIES = 128
"""Fewest queries of a tile, where a row has as many: with fewer, matrix products are slow."""
SHORT = 192
"""Rows up to this length share tiles with rows of similar length, padded to a multiple of `STEP`."""
STEP = 8
NEVER = 1e30
"""Subtracted from scores of masked keys: exp2 of the result is exactly 0, in float32 and float64."""
SAFE = 2.0**60
"""If sums of exp2(scores) are between 1 / SAFE and SAFE, the softmax is exact enough without subtracting a maximum."""


@dataclass(frozen=True)
class Block:
    """Rows that share tiles."""

    spans: tuple[slice, ...]
    """Tokens of each row in the packed batch."""
    lengths: tuple[int, ...]
    padded: int
    """Length of the rows in the tiles, with padding."""


@dataclass(frozen=True)
class Tile:
    """Entries [g, i, j] of a block's scores: rows times heads, queries, keys."""

    g: slice
    i: slice
    j: slice

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.g.stop - self.g.start, self.i.stop - self.i.start, self.j.stop - self.j.start)


def blocks(lengths: Sequence[int]) -> list[Block]:
    """Return the rows of a packed batch as blocks: each long row is a block; short rows of similar length share one."""
    rows_by_key: dict[tuple[int, int], list[tuple[int, int]]] = {}
    start = 0
    for row, length in enumerate(lengths):
        short = length <= SHORT
        key = (-(-length // STEP) * STEP, 0) if short else (length, row + 1)
        if length:
            rows_by_key.setdefault(key, []).append((start, length))
        start += length
    return [
        Block(tuple(slice(at, at + n) for at, n in rows), tuple(n for _, n in rows), padded=key[0])
        for key, rows in rows_by_key.items()
    ]


def tiles(block: Block, num_heads: int, window: int | None) -> Iterator[Tile]:
    """Yield the tiles of a block's scores; with a window, only the tiles with pairs |i - j| < window."""
    L = block.padded
    G = len(block.lengths) * num_heads
    num_queries = min(L, max(MIN_QUERIES, TILE // L // STEP * STEP))
    num_groups = max(1, TILE // (L * L)) if num_queries == L else 1
    for g in range(0, G, num_groups):
        for i in range(0, L, num_queries):
            end = min(L, i + num_queries)
            first, last = (0, L) if window is None else (max(0, i - window + 1), min(L, end + window - 1))
            yield Tile(slice(g, min(G, g + num_groups)), slice(i, end), slice(first, last))


@lru_cache(maxsize=16)
def plan(lengths: tuple[int, ...], num_heads: int, window: int | None) -> list[tuple[Block, list[Tile]]]:
    """Return the blocks of a packed batch with their tiles; cached, because all layers of a step need the same."""
    return [(block, list(tiles(block, num_heads, window))) for block in blocks(lengths)]


def attend(*inputs: Any, **options: Any) -> Tensor:
    """Return the result of `attend_tiles`, which has the arguments, or of `attend_rows` where that is faster.

    PyTorch's flash kernel for the CPU has no dropout, and computes scores outside of a window, too. Without dropout and
    window, it is 1.0 to 1.7 times as fast as the tiles, most for short rows and consecutive rows of equal length.
    """
    needs_tiles = options.get("dropout", 0.0) > 0 or options.get("window") is not None
    return (attend_tiles if needs_tiles else attend_rows)(*inputs, **options)


def attend_tiles(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    *,
    scale: float,
    dropout: float = 0.0,
    window: int | None = None,
) -> Tensor:
    """Return softmax(scale Q K^T) V of each row by itself, with dropout on the probabilities.

    Half precision is computed in float32; the probability of dropout is rounded to a multiple of 2^-16.

    Args:
        query: (T, H, K), floating point, on the CPU; any strides.
        key: As `query`.
        value: As `query`.
        lengths: Tokens of each row, in order; they sum to T.
        scale: Factor of the scores, commonly K ** -0.5.
        dropout: Probability of dropping an attention probability.
        window: Query i attends to keys j of its row with |i - j| < window; None for all keys.

    Returns:
        (T, H, K), contiguous, in the dtype of `query`.

    Raises:
        ValueError: `lengths` do not sum to T.
    """
    if sum(lengths) != len(query):
        raise ValueError(f"packed attention: lengths sum to {sum(lengths)}, but there are {len(query)} tokens")
    masks = MaskSource(dropout) if dropout > 0 else None
    has_backward = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    out: Tensor = _TiledAttention.apply(  # type: ignore[no-untyped-call]
        query, key, value, tuple(lengths), scale, masks, window, has_backward
    )
    return out


class _TiledAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: tuple[int, ...],
        scale: float,
        masks: MaskSource | None,
        window: int | None,
        has_backward: bool,
    ) -> Tensor:
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        ctx.scale, ctx.keep_scale = scale, 1.0 if masks is None else masks.keep_scale
        planned = plan(lengths, query.shape[1], window)
        out = torch.empty_like(query, dtype=dtype, memory_format=torch.contiguous_format)
        scratch = _scratch(planned, out, 2)
        saved: list[Tensor] = []
        with torch.autocast("cpu", enabled=False):
            for block, its_tiles in planned:
                Q, N, V = (
                    _queries(query, block, scale / LN_2, dtype),
                    _keys(key, block, dtype),
                    _rows(value, block, dtype),
                )
                bits = _forward(block, its_tiles, (Q, N, V), out, masks, window, scratch)
                if has_backward:
                    saved += [Q, N, V, *bits]
        if has_backward:
            ctx.save_for_backward(*saved)
            ctx.planned, ctx.window, ctx.dropped = planned, window, masks is not None
        return out.to(query.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        dtype = torch.float64 if grad.dtype == torch.float64 else torch.float32
        # Constant factors of dQ, dK and dV, left out of the tiles. With dS = P * (dP - rowsum(P * dP)), dQ is
        # scale * dS K and dK is scale * dS^T Q; the saved Q has the factor scale / ln 2, so that ln 2 remains for dK.
        # The masks in the tiles are 0 or 1: dropout's factor of kept entries, `keep_scale`, is applied here, too.
        c = ctx.keep_scale
        factors = c * ctx.scale, c * LN_2, c
        saved = iter(ctx.saved_tensors)  # in the order of forward: for each block Q, N, V, then the bits of its tiles
        dQ, dN, dV = (torch.empty_like(grad, dtype=dtype, memory_format=torch.contiguous_format) for _ in range(3))
        scratch = _scratch(ctx.planned, dQ, 3)
        with torch.autocast("cpu", enabled=False):
            for block, its_tiles in ctx.planned:
                QNV = next(saved), next(saved), next(saved)
                bits = islice(saved, len(its_tiles)) if ctx.dropped else repeat(None)
                dO = _rows(grad, block, dtype)
                parts = _backward(its_tiles, QNV, dO, bits, ctx.window, scratch)
                for part, factor, whole in zip(parts, factors, (dQ, dN, dV), strict=True):
                    for span, length, row in zip(block.spans, block.lengths, _by_row(part, block), strict=True):
                        torch.mul(row[:, :length].transpose(0, 1), factor, out=whole[span])
        return (*(x.to(grad.dtype) for x in (dQ, dN, dV)), *[None] * 5)


def _forward(
    block: Block,
    its_tiles: list[Tile],
    inputs: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
    masks: MaskSource | None,
    window: int | None,
    scratch: list[Tensor],
) -> list[Tensor]:
    """Write the outputs of a block to `out` and -lse into Q; return the masks as bits, one tensor for each tile."""
    Q, N, V = inputs
    G, L, K = V.shape
    # Outputs before the division by the sums of their probabilities, these sums, and what is subtracted from scores.
    Ob, total, peak = Q.new_empty(G, L, K), Q.new_empty(G, L, 1), Q.new_zeros(G, L, 1)
    bits: list[Tensor] = []
    for tile in its_tiles:
        g, i, j = tile.g, tile.i, tile.j
        P = _scores(Q, N, tile, window, scratch[0]).exp2_()
        torch.sum(P, -1, keepdim=True, out=total[g, i])
        # Not subtracting the maximum saves a pass over the scores. Where sums are near overflow or underflow, or NaN,
        # the tile is repeated.
        least, most = map(float, torch.aminmax(total[g, i]))
        if not (least >= 1 / SAFE and most <= SAFE):
            S = _scores(Q, N, tile, window, scratch[0])
            peak[g, i] = S.amax(-1, keepdim=True)
            P = S.sub_(peak[g, i]).exp2_()
            torch.sum(P, -1, keepdim=True, out=total[g, i])
        if masks is not None:
            mask = masks.draw(P.numel())
            bits.append(torch.from_numpy(np.packbits(mask)))
            # After the sums: dropout sets probabilities of the softmax to 0, and does not make the others larger.
            P.mul_(_part(scratch[1], tile).copy_(_as_tensor(mask, tile)))
        torch.bmm(P, V[g, j], out=Ob[g, i])
    # Minus the log-sum-exp goes into the column of Q that is multiplied by the ones in N: in the backward pass, exp2 of
    # the same matrix product gives the probabilities.
    Q[..., K : K + 1] = total.log2().add_(peak).neg_()
    if masks is not None:
        total.div_(masks.keep_scale or 1.0)  # 0 if all entries are dropped: then the outputs are 0, not 0 / 0
    for span, length, o, t in zip(block.spans, block.lengths, _by_row(Ob, block), _by_row(total, block), strict=True):
        torch.div(o[:, :length].transpose(0, 1), t[:, :length].transpose(0, 1), out=out[span])
    return bits


def _backward(
    its_tiles: list[Tile],
    inputs: tuple[Tensor, Tensor, Tensor],
    grad: Tensor,
    bits: Iterator[Tensor | None],
    window: int | None,
    scratch: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of a block, dQ, dN and dV, (G, L, K), without their constant factors.

    The first tile that adds to a gradient overwrites it (beta = 0), so that it need not be zero before. With a window,
    the tiles of a row have different keys, and gradients start at zero.
    """
    Q, N, V = inputs
    dO = grad
    G, L, K = V.shape
    new = Q.new_empty if window is None else Q.new_zeros
    # For long rows dN and dV are stored transposed: D^T Q as (Q^T D)^T is 1.6 times as fast at L = 512.
    transposed = L > SHORT
    dQ = Q.new_empty(G, L, K)
    dN, dV = (new(G, K, L).mT if transposed else new(G, L, K) for _ in range(2))

    def add(total: Tensor, tile: Tensor, x: Tensor, beta: int) -> None:
        if transposed:
            total.mT.baddbmm_(x.mT, tile, beta=beta)
        else:
            total.baddbmm_(tile.mT, x, beta=beta)

    for tile, its_bits in zip(its_tiles, bits, strict=False):
        g, i, j = tile.g, tile.i, tile.j
        P, D = _scores(Q, N, tile, window, scratch[0]).exp2_(), _part(scratch[2], tile)
        beta = 0 if window is None and i.start == 0 else 1
        if its_bits is None:
            add(dV[g, j], P, dO[g, i], beta)
            torch.bmm(dO[g, i], V[g, j].mT, out=D)
        else:
            mask = np.unpackbits(its_bits.numpy(), count=P.numel())
            M = _part(scratch[1], tile).copy_(_as_tensor(mask, tile))
            add(dV[g, j], torch.mul(P, M, out=D), dO[g, i], beta)
            torch.bmm(dO[g, i], V[g, j].mT, out=D).mul_(M)
        # D becomes dS = P * (D - rowsum(P * D)), in one pass and in place.
        torch._softmax_backward_data(D, P, -1, D.dtype, grad_input=D)
        torch.bmm(D, N[g, j, :K], out=dQ[g, i])
        add(dN[g, j], D, Q[g, i, :K], beta)
    return dQ, dN, dV


def _scores(queries: Tensor, keys: Tensor, tile: Tile, window: int | None, scratch: Tensor) -> Tensor:
    S = torch.bmm(queries[tile.g, tile.i], keys[tile.g, tile.j].mT, out=_part(scratch, tile))
    if window is None or max(tile.i.stop - tile.j.start, tile.j.stop - tile.i.start) <= window:
        return S
    return S.add_(_outside(tile, window, S.dtype))


def _queries(x: Tensor, block: Block, factor: float, dtype: torch.dtype) -> Tensor:
    """Return (G, L, K + 2): factor * x; a column of 0, later -lse; a column of 1."""
    wide = _rows(x, block, dtype, num_more=2)
    wide[..., :-2].mul_(factor)
    wide[..., -2], wide[..., -1] = 0.0, 1.0
    return wide


def _keys(x: Tensor, block: Block, dtype: torch.dtype) -> Tensor:
    """Return (G, L, K + 2): x; a column of 1; a column with the bias, -NEVER for padding."""
    wide = _rows(x, block, dtype, num_more=2)
    wide[..., -2], wide[..., -1] = 1.0, 0.0
    for row, length in zip(_by_row(wide, block), block.lengths, strict=True):
        row[:, length:, -1] = -NEVER
    return wide


def _rows(x: Tensor, block: Block, dtype: torch.dtype, *, num_more: int = 0) -> Tensor:
    """Return (T, H, K) as (G, L, K + num_more): a view where possible, else a copy with zeros after shorter rows."""
    if block.lengths == (block.padded,) and not num_more:  # one row without padding
        return x[block.spans[0]].to(dtype).transpose(0, 1)
    _, H, K = x.shape
    rows = x.new_empty(len(block.lengths), H, block.padded, K + num_more, dtype=dtype)
    for row, span, length in zip(rows, block.spans, block.lengths, strict=True):
        row[:, :length, :K] = x[span].transpose(0, 1)
        row[:, length:] = 0.0
    return rows.flatten(0, 1)


def _by_row(x: Tensor, block: Block) -> Tensor:
    rows: Tensor = x.unflatten(0, (len(block.lengths), -1))  # type: ignore[no-untyped-call]
    return rows


def _scratch(planned: list[tuple[Block, list[Tile]]], like: Tensor, count: int) -> list[Tensor]:
    size = max((math.prod(tile.shape) for _, its_tiles in planned for tile in its_tiles), default=0)
    return [like.new_empty(size) for _ in range(count)]


def _part(scratch: Tensor, tile: Tile) -> Tensor:
    return scratch[: math.prod(tile.shape)].view(tile.shape)


def _as_tensor(mask: npt.NDArray[Any], tile: Tile) -> Tensor:
    # As bytes, whose conversion to floats takes a tenth of the time of that of booleans.
    return torch.from_numpy(mask.view(np.uint8)).view(tile.shape)


def _outside(tile: Tile, window: int, dtype: torch.dtype) -> Tensor:
    """Return the bias (I, J) of a tile: 0 inside the window, -NEVER outside."""
    _, num_queries, num_keys = tile.shape
    # A cached band has powers of two as sides, so that tiles of similar sizes share it.
    sides = (1 << (num_queries - 1).bit_length(), 1 << (num_keys - 1).bit_length())
    band = _band(tile.i.start - tile.j.start, *sides, window, dtype)
    return band[:num_queries, :num_keys]


@lru_cache(maxsize=16)
def _band(first: int, num_queries: int, num_keys: int, window: int, dtype: torch.dtype) -> Tensor:
    """Return (num_queries, num_keys) with 0 where |first + i - j| < window; at most 4 times as large as a tile."""
    i = torch.arange(first, first + num_queries)[:, None]
    return ((i - torch.arange(num_keys)).abs() >= window).to(dtype).mul_(-NEVER)
