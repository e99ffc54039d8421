"""Attention of packed rows on the CPU: one autograd function for all rows and heads of a layer, forward and backward.

Floor 3. Scores are worked on in tiles that stay in the processor's cache, from the product to the product, and are
computed again in the backward pass: what is kept grows with T, apart from one bit of dropout mask an entry.

B rows, T tokens of all rows, H heads, K head width, L tokens of a row; a tile is (G, I, J): rows times heads, queries,
keys. Scores are in base 2, `exp2` being a third of `exp` here. Two columns are added to queries and keys, so that the
product itself adds what would else be passes over the scores: [q, -lse, 1] . [k, 1, bias] = q . k - lse + bias.
Formulas keep the letters of Dao et al., FlashAttention, NeurIPS 2022, appendix B.4: P, dP, dS.
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

from paratune.models.attention import dense_batches, small_batches
from paratune.models.attention.rows import attend_rows
from paratune.models.attention.small_batches import Places, find_places
from paratune.models.dropout import MaskSource

LN_2 = math.log(2.0)
TILE = 1 << 18
"""Scores of a tile at most: with its mask they fill about a processor's level 2 cache."""
MIN_QUERIES = 128
"""Queries of a tile at least, where a row has as many: fewer make the products slow."""
SHORT = 192
"""Rows up to this length share tiles with rows of nearly the same length, padded to a multiple of `STEP`."""
STEP = 8
NEVER = 1e30
"""Subtracted from scores that must not count: exp2 gives exactly 0 in every dtype computed with."""
SAFE = 2.0**60
"""Where sums of exp2(scores) are within this and its inverse, no maximum need be subtracted, in float32 neither."""


@dataclass(frozen=True)
class Block:
    """Rows that share tiles."""

    spans: tuple[slice, ...]
    """Tokens of each row in the packed batch."""
    lengths: tuple[int, ...]
    padded: int
    """Length that the rows have in the tiles."""

    @property
    def alone(self) -> bool:
        """Whether this is one row without padding, which is read and written where it is."""
        return self.lengths == (self.padded,)


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
    """Return the rows of a packed batch as blocks: long rows alone, short ones with those of nearly their length."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    start = 0
    for row, length in enumerate(lengths):
        short = length <= SHORT
        key = (-(-length // STEP) * STEP, 0) if short else (length, row + 1)
        if length:
            found.setdefault(key, []).append((start, length))
        start += length
    return [
        Block(tuple(slice(at, at + n) for at, n in rows), tuple(n for _, n in rows), padded=key[0])
        for key, rows in found.items()
    ]


def tiles(block: Block, num_heads: int, window: int | None) -> Iterator[Tile]:
    """Yield the tiles of a block's scores; with a window, only those in which |i - j| < window occurs."""
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
    """Return the blocks of a packed batch with their tiles; all layers of a step ask for the same one."""
    return [(block, list(tiles(block, num_heads, window))) for block in blocks(lengths)]


def small_batch(lengths: tuple[int, ...], num_heads: int, window: int | None) -> Places | None:
    """Return the places of a packed batch that `small_batches` computes: no window, one tile a block, few scores."""
    padded = [-(-length // STEP) * STEP for length in lengths if length]
    if window is not None or not padded or max(padded) > SHORT or sum(L * L for L in padded) * num_heads > TILE:
        return None
    return _places(lengths, num_heads)


@lru_cache(maxsize=16)
def _places(lengths: tuple[int, ...], num_heads: int) -> Places:
    rows = [
        (span.start, length, block.padded)
        for block in blocks(lengths)
        for span, length in zip(block.spans, block.lengths, strict=True)
    ]
    return find_places(rows, num_heads, -NEVER)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    *,
    scale: float,
    dropout: float = 0.0,
    window: int | None = None,
) -> Tensor:
    """As `attend_tiles`, or by `attend_rows` where that is faster.

    PyTorch's flash kernel for the CPU has no dropout and computes what is outside of a window; where there is neither
    of them, it is 1.0 to 1.7 times as fast as the tiles, the more so the shorter the rows (more yet where many that
    follow each other have one length).
    """
    attend_by = attend_tiles if dropout > 0 or window is not None else attend_rows
    return attend_by(query, key, value, lengths, scale=scale, dropout=dropout, window=window)


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

    Half precision is computed in float32.

    Args:
        query: (T, H, K), floating point, on the CPU; any strides.
        key: As `query`.
        value: As `query`.
        lengths: Tokens of each row, in order; they add up to T.
        scale: What scores are multiplied by, commonly K ** -0.5.
        dropout: Probability of dropping an attention probability, to the nearest multiple of 2^-16.
        window: Query i meets keys j of its row with |i - j| < window; None for all.

    Returns:
        (T, H, K), contiguous, in the dtype of `query`.

    Raises:
        ValueError: `lengths` do not add up to T.
    """
    if sum(lengths) != len(query):
        raise ValueError(f"packed attention: lengths add up to {sum(lengths)}, but there are {len(query)} tokens")
    masks = MaskSource(dropout) if dropout > 0 else None
    if (places := dense_batches.find_places(tuple(lengths), query.shape[1], window)) is not None:
        return dense_batches.attend(query, key, value, places, scale=scale, masks=masks)
    grad = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    out: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        query, key, value, tuple(lengths), scale, masks, window, grad
    )
    return out


class _Attention(torch.autograd.Function):
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
        keep: bool,
    ) -> Tensor:
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        ctx.scale, ctx.keep_scale = scale, 1.0 if masks is None else masks.keep_scale
        ctx.places = small_batch(lengths, query.shape[1], window)
        if ctx.places is not None:
            with torch.autocast("cpu", enabled=False):
                found = small_batches.forward(
                    (query, key, value), ctx.places, scale / LN_2, dtype, masks, is_safe=_safe
                )
            if found is not None:
                if keep:
                    ctx.save_for_backward(*found[1])
                return found[0].to(query.dtype)
            ctx.places = None
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
                if keep:
                    saved += [Q, N, V, *bits]
        if keep:
            ctx.save_for_backward(*saved)
            ctx.planned, ctx.window, ctx.dropped = planned, window, masks is not None
        return out.to(query.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        dtype = torch.float64 if grad.dtype == torch.float64 else torch.float32
        c = ctx.keep_scale
        factors = c * ctx.scale, c * LN_2, c
        if ctx.places is not None:
            with torch.autocast("cpu", enabled=False):
                gradients = small_batches.backward(ctx.saved_tensors, ctx.places, grad, dtype, factors)
            return (*(x.to(grad.dtype) for x in gradients), *[None] * 5)
        saved = iter(ctx.saved_tensors)
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
    """Write the rows of a block to `out` and -lse to their queries; return the bits of the masks."""
    Q, N, V = inputs
    G, L, K = V.shape
    Ob, total, peak = Q.new_empty(G, L, K), Q.new_empty(G, L, 1), Q.new_zeros(G, L, 1)
    bits: list[Tensor] = []
    for tile in its_tiles:
        g, i, j = tile.g, tile.i, tile.j
        P = _scores(Q, N, tile, window, scratch[0]).exp2_()
        torch.sum(P, -1, keepdim=True, out=total[g, i])
        # A softmax without subtracting the maximum saves a pass over the scores; it is repeated where sums are unsafe.
        if not _safe(total[g, i]):
            S = _scores(Q, N, tile, window, scratch[0])
            peak[g, i] = S.amax(-1, keepdim=True)
            P = S.sub_(peak[g, i]).exp2_()
            torch.sum(P, -1, keepdim=True, out=total[g, i])
        if masks is not None:
            mask = masks.draw(P.numel())
            bits.append(torch.from_numpy(np.packbits(mask)))
            P.mul_(_part(scratch[1], tile).copy_(_as_tensor(mask, tile)))
        torch.bmm(P, V[g, j], out=Ob[g, i])
    # Minus the log-sum-exp, in the column of Q that meets the ones of N: exp2 of the same product is then, in the
    # backward pass, the probabilities.
    Q[..., K : K + 1] = total.log2().add_(peak).neg_()
    if masks is not None:
        total.div_(masks.keep_scale or 1.0)
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
    """Return the gradients of a block, dQ, dN and dV, (G, L, K), without their constant factors."""
    Q, N, V = inputs
    dO = grad
    G, L, K = V.shape
    room = Q.new_empty if window is None else Q.new_zeros
    # Sums over many queries are kept transposed, D^T Q as (Q^T D)^T, which is 1.6 times as fast at L = 512.
    transposed = L > SHORT
    dQ = Q.new_empty(G, L, K)
    dN, dV = (room(G, K, L).mT if transposed else room(G, L, K) for _ in range(2))

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
        # P times (D - rowsum(P * D)), in one pass and in place.
        torch._softmax_backward_data(D, P, -1, D.dtype, grad_input=D)
        torch.bmm(D, N[g, j, :K], out=dQ[g, i])
        add(dN[g, j], D, Q[g, i, :K], beta)
    return dQ, dN, dV


def _scores(queries: Tensor, keys: Tensor, tile: Tile, window: int | None, scratch: Tensor) -> Tensor:
    S = torch.bmm(queries[tile.g, tile.i], keys[tile.g, tile.j].mT, out=_part(scratch, tile))
    if window is None or max(tile.i.stop - tile.j.start, tile.j.stop - tile.i.start) <= window:
        return S
    return S.add_(_outside(tile, window, S.dtype))


def _safe(total: Tensor) -> bool:
    """Whether sums of exp2 without a maximum subtracted are far from overflow and underflow; false for NaN."""
    least, most = torch.aminmax(total)
    return float(least) >= 1 / SAFE and float(most) <= SAFE


def _queries(x: Tensor, block: Block, factor: float, dtype: torch.dtype) -> Tensor:
    """Return (G, L, K + 2): factor * x, 0 for what will be -lse, 1."""
    wide = _rows(x, block, dtype, num_more=2)
    wide[..., :-2].mul_(factor)
    wide[..., -2], wide[..., -1] = 0.0, 1.0
    return wide


def _keys(x: Tensor, block: Block, dtype: torch.dtype) -> Tensor:
    """Return (G, L, K + 2): x, 1, and the bias that keeps padding from being met."""
    wide = _rows(x, block, dtype, num_more=2)
    wide[..., -2], wide[..., -1] = 1.0, 0.0
    for row, length in zip(_by_row(wide, block), block.lengths, strict=True):
        row[:, length:, -1] = -NEVER
    return wide


def _rows(x: Tensor, block: Block, dtype: torch.dtype, *, num_more: int = 0) -> Tensor:
    """Return (T, H, K) as (G, L, K + num_more): a view if it can be, else copies with zeros behind the shorter rows."""
    if block.alone and not num_more:
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
    # As bytes: the copy of bytes to floats is a tenth of the one of booleans.
    return torch.from_numpy(mask.view(np.uint8)).view(tile.shape)


def _outside(tile: Tile, window: int, dtype: torch.dtype) -> Tensor:
    """Return (I, J): what keeps keys outside of the window from being met."""
    _, num_queries, num_keys = tile.shape
    # Tiles of nearly one size are parts of the same one: sides are powers of two.
    sides = (1 << (num_queries - 1).bit_length(), 1 << (num_keys - 1).bit_length())
    band = _band(tile.i.start - tile.j.start, *sides, window, dtype)
    return band[:num_queries, :num_keys]


@lru_cache(maxsize=16)
def _band(first: int, num_queries: int, num_keys: int, window: int, dtype: torch.dtype) -> Tensor:
    """Return (num_queries, num_keys) with 0 where |first + i - j| < window; at most 4 times as large as a tile."""
    i = torch.arange(first, first + num_queries)[:, None]
    return ((i - torch.arange(num_keys)).abs() >= window).to(dtype).mul_(-NEVER)
