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
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from paratune.models.dropout import MaskSource

LN_2 = math.log(2.0)
TILE = 1 << 17
"""Scores of a tile at most: with its mask they fill about a processor's level 2 cache."""
MIN_QUERIES = 128
"""Queries of a tile at least, where a row has as many: fewer make the products slow."""
SHORT = 192
"""Rows up to this length share tiles with rows of nearly the same length, padded to a multiple of `STEP`."""
STEP = 16
NEVER = 1e30
"""Subtracted from scores that must not count: exp2 gives exactly 0 in every dtype computed with."""
SAFE = 100.0
"""Scores (base 2) within this need no maximum subtracted: exp2 and its sums stay normal numbers in float32."""


@dataclass(frozen=True)
class Block:
    """Rows that share tiles."""

    starts: tuple[int, ...]
    """First token of each row in the packed batch."""
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
        Block(tuple(start for start, _ in rows), tuple(length for _, length in rows), padded=key[0])
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
        T, H, K = query.shape
        Q, N, V = _widened(query, scale / LN_2, dtype), _widened(key, 1.0, dtype), value.to(dtype)
        Q[..., K:] = Q.new_tensor([0.0, 1.0])
        N[..., K:] = N.new_tensor([1.0, 0.0])
        safe = _largest(Q[..., :K]) * _largest(N[..., :K]) <= SAFE
        out, neg_lse = Q.new_empty(T, H, K), Q.new_empty(T, H, 1)
        planned = plan(lengths, H, window)
        bits: list[Tensor] = []
        S_, M_ = _scratch(planned, Q, 2)
        with torch.autocast("cpu", enabled=False):
            for block, its_tiles in planned:
                Qb, Nb, Vb = _rows(Q, block), _keys(N, block), _rows(V, block)
                Ob, Lb = _room(out, block), _room(neg_lse, block)
                for tile in its_tiles:
                    g, i, j = tile.g, tile.i, tile.j
                    S = torch.bmm(Qb[g, i], Nb[g, j].mT, out=_part(S_, tile))
                    if window is not None:
                        S.add_(_outside(tile, window, dtype))
                    peak = None if safe else S.amax(-1, keepdim=True)
                    P = (S if peak is None else S.sub_(peak)).exp2_()
                    total = P.sum(-1, keepdim=True)
                    if keep:
                        lse = total.log2()
                        torch.neg(lse if peak is None else lse.add_(peak), out=Lb[g, i])
                    if masks is not None:
                        mask = masks.draw(P.numel())
                        if keep:
                            bits.append(torch.from_numpy(np.packbits(mask)))
                        P.mul_(_part(M_, tile).copy_(_as_tensor(mask, tile)))
                        total.div_(masks.keep_scale or 1.0)
                    torch.div(torch.bmm(P, Vb[g, j]), total, out=Ob[g, i])
                _unpad(Ob, out, block)
                _unpad(Lb, neg_lse, block)
        if keep:
            Q[..., K : K + 1] = neg_lse
            ctx.save_for_backward(Q, N, V, *bits)
            ctx.planned, ctx.scale, ctx.window = planned, scale, window
            ctx.keep_scale = 1.0 if masks is None else masks.keep_scale
        return out.to(query.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        Q, N, V, *bits = ctx.saved_tensors
        K = V.shape[-1]
        dO = grad.to(V.dtype) * ctx.keep_scale
        dQ, dN, dV = (torch.empty_like(dO, memory_format=torch.contiguous_format) for _ in range(3))
        P_, M_, D_ = _scratch(ctx.planned, Q, 3)
        masks = iter(bits)
        with torch.autocast("cpu", enabled=False):
            for block, its_tiles in ctx.planned:
                Qb, Nb, Vb, dOb = _rows(Q, block), _keys(N, block), _rows(V, block), _rows(dO, block)
                dQb, dNb, dVb = (_room(x, block) for x in (dQ, dN, dV))
                # Transposed sums: D^T Q as (Q^T D)^T, which is 1.6 times as fast at L = 512.
                dNt, dVt = (Q.new_zeros(Qb.shape[0], K, block.padded) for _ in range(2))
                for tile in its_tiles:
                    g, i, j = tile.g, tile.i, tile.j
                    P = torch.bmm(Qb[g, i], Nb[g, j].mT, out=_part(P_, tile))
                    if ctx.window is not None:
                        P.add_(_outside(tile, ctx.window, P.dtype))
                    P.exp2_()
                    D = _part(D_, tile)
                    M = None
                    if bits:
                        mask = np.unpackbits(next(masks).numpy(), count=P.numel())
                        M = _part(M_, tile).copy_(_as_tensor(mask, tile))
                    dVt[g, :, j].baddbmm_(dOb[g, i].mT, P if M is None else torch.mul(P, M, out=D))
                    torch.bmm(dOb[g, i], Vb[g, j].mT, out=D)
                    if M is not None:
                        D.mul_(M)
                    torch._softmax_backward_data(D, P, -1, D.dtype, grad_input=D)
                    torch.mul(torch.bmm(D, Nb[g, j, :K]), ctx.scale, out=dQb[g, i])
                    dNt[g, :, j].baddbmm_(Qb[g, i, :K].mT, D)
                torch.mul(dNt.mT, LN_2, out=dNb)
                dVb.copy_(dVt.mT)
                for room, x in ((dQb, dQ), (dNb, dN), (dVb, dV)):
                    _unpad(room, x, block)
        return (*(x.to(grad.dtype) for x in (dQ, dN, dV)), *[None] * 5)


def _widened(x: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
    """Return factor * x with room for two more columns."""
    wide = x.new_empty((*x.shape[:-1], x.shape[-1] + 2), dtype=dtype)
    torch.mul(x.to(dtype), factor, out=wide[..., : x.shape[-1]])
    return wide


def _largest(x: Tensor) -> float:
    """Return the largest norm of the vectors of a tensor."""
    return math.sqrt(float(x.square().sum(-1).amax()))


def _scratch(planned: list[tuple[Block, list[Tile]]], like: Tensor, count: int) -> list[Tensor]:
    size = max(math.prod(tile.shape) for _, its_tiles in planned for tile in its_tiles)
    return [like.new_empty(size) for _ in range(count)]


def _part(scratch: Tensor, tile: Tile) -> Tensor:
    return scratch[: math.prod(tile.shape)].view(tile.shape)


def _as_tensor(mask: npt.NDArray[Any], tile: Tile) -> Tensor:
    # As bytes: the copy of bytes to floats is a tenth of the one of booleans.
    return torch.from_numpy(mask.view(np.uint8)).view(tile.shape)


def _outside(tile: Tile, window: int, dtype: torch.dtype) -> Tensor:
    """Return (I, J): what keeps keys outside of the window from being met."""
    i = torch.arange(tile.i.start, tile.i.stop)[:, None]
    j = torch.arange(tile.j.start, tile.j.stop)
    return ((i - j).abs() >= window).to(dtype).mul_(-NEVER)


def _rows(x: Tensor, block: Block) -> Tensor:
    """Return (T, H, *) as (G, L, *): a view of a row that is alone, else copies with zeros behind the shorter ones."""
    if block.alone:
        return _alone(x, block)
    _T, H, width = x.shape
    rows = x.new_zeros(len(block.starts), H, block.padded, width)
    for row, start, length in zip(rows, block.starts, block.lengths, strict=True):
        row[:, :length] = x[start : start + length].transpose(0, 1)
    return rows.flatten(0, 1)


def _alone(x: Tensor, block: Block) -> Tensor:
    return x[block.starts[0] : block.starts[0] + block.padded].transpose(0, 1)


def _by_row(x: Tensor, block: Block) -> Tensor:
    return x.view(len(block.starts), -1, *x.shape[1:])


def _keys(x: Tensor, block: Block) -> Tensor:
    """As `_rows`, with the bias that keeps padding from being met."""
    keys = _rows(x, block)
    if not block.alone:
        for row, length in zip(_by_row(keys, block), block.lengths, strict=True):
            row[:, length:, -1] = -NEVER
    return keys


def _room(x: Tensor, block: Block) -> Tensor:
    """Return (G, L, *) to be written: a view of `x` where the row is alone, else memory for `_unpad`."""
    if block.alone:
        return _alone(x, block)
    return x.new_empty(len(block.starts) * x.shape[1], block.padded, x.shape[2])


def _unpad(room: Tensor, x: Tensor, block: Block) -> None:
    """Copy the rows of `_room` to where they belong, unless they are there."""
    if block.alone:
        return
    for row, start, length in zip(_by_row(room, block), block.starts, block.lengths, strict=True):
        x[start : start + length] = row[:, :length].transpose(0, 1)
