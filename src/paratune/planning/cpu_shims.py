"""Replacements of paratune's CPU kernels for meta tensors: cheap dropout, and attention of packed rows in tiles.

They save the same tensors for the backward pass as the real ones (`models.dropout`, `models.attention.cpu`), and report
their operations to the trace.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from paratune.models.attention import cpu
from paratune.models.blocks import attend_first

Count = Callable[[int, Sequence[Tensor], str], None]
"""`Trace.count`: takes floating-point operations, outputs and inputs, and the name of an operation."""


class CountedDropout(nn.Dropout):
    """Replaces `CheapDropout`: saves one bit per entry."""

    count: Count

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return input
        out: Tensor = _Dropout.apply(input, self.count)  # type: ignore[no-untyped-call]
        return out


def count_cheap_dropout(module: nn.Module, count: Count) -> None:
    """Make every `nn.Dropout` inside a module a `CountedDropout`."""
    for child in module.modules():
        if type(child) is nn.Dropout:
            child.__class__ = CountedDropout
            child.count = count  # type: ignore[assignment]


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, count: Count) -> Tensor:
        out = torch.empty_like(x)
        ctx.save_for_backward(x.new_empty(-(-x.numel() // 8), dtype=torch.uint8))
        ctx.count = count
        count(0, (out, x), "cheap_dropout")
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        out = torch.empty_like(grad)
        ctx.count(0, (out, grad), "cheap_dropout")
        return out, None


class PackedAttentionOnCpu:
    """Replaces `models.attention.cpu.attend`: saves the same tensors and counts its tiles.

    Args:
        lengths: Tokens of each row.
        count: Called for each product, and for each pass over the scores of a tile.
    """

    def __init__(self, lengths: Sequence[int], count: Count) -> None:
        self._lengths = tuple(lengths)
        self._count = count

    def first(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, scale: float, p: float) -> Tensor:
        """Return the attention output (B, H, K) of one query for each row."""
        return attend_first(query, key, value, list(self._lengths), scale=scale, p=p)

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: None,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """Return (1, T, H, K) of queries (1, H, T, K), and None."""
        group = query.shape[1] // key.shape[1]
        if group > 1:
            key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        rows = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
        planned = cpu.plan(self._lengths, query.shape[1], sliding_window)
        out: Tensor = _PackedOnCpu.apply(*rows, planned, dropout > 0, self._count)  # type: ignore[no-untyped-call]
        return out.unsqueeze(0), None


class _PackedOnCpu(torch.autograd.Function):
    """Two products of each tile forward, five backward; queries and keys are two wider than the heads."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        planned: Any,
        is_dropped: bool,
        count: Count,
    ) -> Tensor:
        ctx.width, ctx.count = query.shape[2], count
        ctx.tiles = [tile.shape for _, its_tiles in planned for tile in its_tiles]
        saved: list[Tensor] = []
        for block, its_tiles in planned:
            size = (len(block.lengths) * query.shape[1], block.padded)
            saved += [x.new_empty(*size, ctx.width + more) for x, more in ((query, 2), (key, 2), (value, 0))]
            if is_dropped:
                entries = [g * i * j for g, i, j in (tile.shape for tile in its_tiles)]
                saved += [query.new_empty(-(-num_entries // 8), dtype=torch.uint8) for num_entries in entries]
        ctx.save_for_backward(*saved)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        _count_tiles(ctx, query, 2, "tile_scores")
        count(0, (out, out, query, key, value, query, key, value), "tile_rows")
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors
        grads = tuple(torch.empty_like(grad) for _ in range(3))
        _count_tiles(ctx, grad, 5, "tile_scores_backward")
        ctx.count(0, (*grads, *grads, grad, grad), "tile_rows_backward")
        return (*grads, None, None, None)


def _count_tiles(ctx: Any, like: Tensor, num_products: int, name: str) -> None:
    for g, i, j in ctx.tiles:
        scores = like.new_empty(g, i, j)
        ends = like.new_empty(g, i, ctx.width), like.new_empty(g, j, ctx.width)
        for _ in range(num_products):
            ctx.count(2 * g * i * j * ctx.width, (scores, *ends), "bmm")
        ctx.count(0, (scores,), name)
