"""Attention of packed rows on the CPU for small batches: the computation of `cpu` for all blocks at once.

In a small batch, calls of PyTorch take more time than their arithmetic. So element-wise operations are one call for all
blocks, and only matrix products, row sums and the gradient of the softmax are computed block by block, with the shapes
of `cpu`. Outputs, gradients and dropout masks have the same bits as those of `cpu`.

Dimensions: `T` tokens of all rows, `H` heads, `K` head width, `L` tokens of a block's rows with padding; a block is
(G, L, K), where G is its rows times heads. All blocks are in one tensor (N, K), with N places. Scores are in base 2, as
in `cpu`; the matrix of keys is called N, too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paratune.models.dropout import MaskSource


@dataclass(frozen=True, eq=False)
class Places:
    """The places of the tokens of a packed batch in its blocks."""

    token_places: Tensor
    """(T * H,), int64: the place of each head of each token."""
    bias: Tensor
    """(N,), float64: 0, and a large negative number for padding, which masks it as a key."""
    shapes: tuple[tuple[int, int], ...]
    """G and L of each block; L is a multiple of 8."""
    views: tuple[tuple[int, slice], ...]
    """Blocks of one row without padding, with the tokens of the row; read as views without a copy, as in `cpu`."""

    def blocks(self, x: Tensor) -> list[Tensor]:
        """Return the blocks of (N, K), views of (G, L, K)."""
        parts = x.split_with_sizes([G * L for G, L in self.shapes])
        return [part.view(G, L, -1) for part, (G, L) in zip(parts, self.shapes, strict=True)]

    def scores(self, like: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return an uninitialized flat tensor for the scores of all blocks, and its parts, (G, L, L)."""
        sizes = [G * L * L for G, L in self.shapes]
        flat = like.new_empty(sum(sizes))
        return flat, [
            part.view(G, L, L) for part, (G, L) in zip(flat.split_with_sizes(sizes), self.shapes, strict=True)
        ]


def find_places(rows: Sequence[tuple[int, int, int]], num_heads: int, never: float) -> Places:
    """Return the places of a batch; `rows` are first token, number of tokens and L of each row, block by block.

    `never` is the bias of padding.
    """
    starts, lengths, padded = np.array(rows, dtype=np.int64).T
    begins = np.cumsum(padded * num_heads) - padded * num_heads
    order = np.argsort(starts)
    in_row_T = np.arange(lengths.sum()) - np.repeat(starts[order], lengths[order])
    first_T, L_T = (np.repeat(x[order], lengths[order]) for x in (begins, padded))
    token_places = ((first_T + in_row_T)[:, None] + np.arange(num_heads) * L_T[:, None]).ravel()
    bias = np.full(int((padded * num_heads).sum()), never)
    bias[token_places] = 0.0
    edges = np.flatnonzero(np.diff(padded, prepend=-1)).tolist()
    counts = np.diff([*edges, len(rows)]).tolist()
    shapes = tuple((count * num_heads, int(padded[at])) for at, count in zip(edges, counts, strict=True))
    views = tuple(
        (number, slice(int(starts[at]), int(starts[at] + lengths[at])))
        for number, (at, count) in enumerate(zip(edges, counts, strict=True))
        if count == 1 and lengths[at] == padded[at]
    )
    return Places(torch.from_numpy(token_places), torch.from_numpy(bias), shapes, views)


def forward(
    inputs: tuple[Tensor, Tensor, Tensor],
    places: Places,
    factor: float,
    dtype: torch.dtype,
    masks: MaskSource | None,
    is_safe: Callable[[Tensor], bool],
) -> tuple[Tensor, list[Tensor]] | None:
    """Return the outputs, (T, H, K), in `dtype`, and the tensors for `backward`; None where a maximum is needed.

    Inputs are queries, keys and values, (T, H, K); `factor` of queries is the scale of the scores in base 2. `is_safe`
    returns from sums of exp2(scores) whether the softmax needs no subtracted maximum. No mask of dropout is drawn where
    the result is None.
    """
    query, key, value = inputs
    Q, N, V = _to_places(query, places, dtype, 2), _to_places(key, places, dtype, 2), _to_places(value, places, dtype)
    Q[:, :-2].mul_(factor)
    Q[:, -1], N[:, -2], N[:, -1] = 1.0, 1.0, places.bias
    P, P_blocks = _probabilities(places.blocks(Q), places.blocks(N), places)
    total = P.new_empty(len(Q), 1)
    for P_GLL, total_GL1 in zip(P_blocks, places.blocks(total), strict=True):
        torch.sum(P_GLL, -1, keepdim=True, out=total_GL1)
    if not is_safe(total):
        return None
    Q[:, -2:-1] = total.log2().neg_()
    V_blocks = _with_views(places.blocks(V), value, places)
    saved = [Q, N, *V_blocks]
    if masks is not None:
        mask = masks.draw(P.numel())
        saved.append(torch.from_numpy(np.packbits(mask)))
        P.mul_(_numbers(mask.view(np.uint8), P))
        total.div_(masks.keep_scale or 1.0)
    out = torch.empty_like(V)
    for P_GLL, V_GLK, out_GLK in zip(P_blocks, V_blocks, places.blocks(out), strict=True):
        torch.bmm(P_GLL, V_GLK, out=out_GLK)
    return _to_packed(out.div_(total), places, value.shape), saved


def backward(
    saved: Sequence[Tensor], places: Places, grad: Tensor, dtype: torch.dtype, factors: Sequence[float]
) -> list[Tensor]:
    """Return the gradients of queries, keys and values, (T, H, K), in `dtype`, each times its constant of `factors`."""
    Q, N, *V_blocks = saved
    bits = V_blocks.pop() if len(V_blocks) > len(places.shapes) else None
    K = grad.shape[2]
    Q_blocks, N_blocks = places.blocks(Q), places.blocks(N)
    dO_blocks = _with_views(places.blocks(_to_places(grad, places, dtype)), grad, places)
    P, P_blocks = _probabilities(Q_blocks, N_blocks, places)
    D, D_blocks = places.scores(P)
    M = None if bits is None else _numbers(np.unpackbits(bits.numpy(), count=P.numel()), P)
    if M is not None:
        torch.mul(P, M, out=D)
    dQ, dN, dV = (Q.new_empty(len(Q), K) for _ in range(3))
    # baddbmm_ with beta=0 as in `cpu`, because another function might round differently.
    for dropped, dO, dV_GLK in zip(P_blocks if M is None else D_blocks, dO_blocks, places.blocks(dV), strict=True):
        dV_GLK.baddbmm_(dropped.mT, dO, beta=0)
    for D_GLL, dO, V_GLK in zip(D_blocks, dO_blocks, V_blocks, strict=True):
        torch.bmm(dO, V_GLK.mT, out=D_GLL)
    if M is not None:
        D.mul_(M)
    blocks = zip(P_blocks, D_blocks, Q_blocks, N_blocks, places.blocks(dQ), places.blocks(dN), strict=True)
    for P_GLL, D_GLL, Q_GLK, N_GLK, dQ_GLK, dN_GLK in blocks:
        torch._softmax_backward_data(D_GLL, P_GLL, -1, dtype, grad_input=D_GLL)
        torch.bmm(D_GLL, N_GLK[..., :K], out=dQ_GLK)
        dN_GLK.baddbmm_(D_GLL.mT, Q_GLK[..., :K], beta=0)
    return [_to_packed(x, places, grad.shape).mul_(by) for x, by in zip((dQ, dN, dV), factors, strict=True)]


def _to_places(x: Tensor, places: Places, dtype: torch.dtype, num_more: int = 0) -> Tensor:
    """Return (T, H, K) as (N, K + num_more), with zeros in other places and columns."""
    K = x.shape[2]
    flat = x.new_zeros((len(places.bias), K + num_more), dtype=dtype)
    flat[:, :K].index_copy_(0, places.token_places, x.reshape(-1, K).to(dtype))
    return flat


def _to_packed(flat: Tensor, places: Places, shape: torch.Size) -> Tensor:
    """Return (N, K) as (T, H, K)."""
    return flat.index_select(0, places.token_places).view(shape)


def _with_views(blocks: list[Tensor], x: Tensor, places: Places) -> list[Tensor]:
    """Return the blocks, with views of (T, H, K) for `places.views`: `cpu` multiplies these with the same strides."""
    for number, tokens in places.views:
        blocks[number] = x[tokens].to(blocks[number].dtype).transpose(0, 1)
    return blocks


def _probabilities(queries: list[Tensor], keys: list[Tensor], places: Places) -> tuple[Tensor, list[Tensor]]:
    """Return exp2 of all scores, flat, and its parts, (G, L, L)."""
    flat, parts = places.scores(queries[0])
    for Q_GLK, N_GLK, part in zip(queries, keys, parts, strict=True):
        torch.bmm(Q_GLK, N_GLK.mT, out=part)
    return flat.exp2_(), parts


def _numbers(mask: npt.NDArray[np.uint8], like: Tensor) -> Tensor:
    """Return a mask in the dtype of `like`."""
    return torch.empty_like(like).copy_(torch.from_numpy(mask))
