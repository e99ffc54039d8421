"""Replacements that make meta tensors call the kernels of a real device: fused dropout and attention, and autocast.

On meta tensors PyTorch uses generic kernels: dropout saves its noise in floating point where CUDA saves one byte per
entry, attention is not fused, and autocast has no effect. Inside `Kernels` a model calls the operators that it would
call on the device. Replacements of paratune's own CPU kernels save the same tensors for the backward pass as the real
ones (`models.dropout`, `models.attention.cpu`), and report their operations to the trace.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from paratune.models.attention import cpu
from paratune.models.blocks import attend_first

COUNTED: Final = "paratune_counted"
"""Name in transformers of the function that calls the `counted_attention` of a layer, a `PackedAttention`."""
HALF: Final = (torch.float16, torch.bfloat16)
LOWER: Final = frozenset(
    {
        *(functional.linear, functional.bilinear, functional.conv1d, functional.conv2d),
        functional.scaled_dot_product_attention,
        *(torch.conv1d, torch.conv2d, torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.addbmm),
        *(torch.einsum, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.Tensor.mm),
        *(torch.Tensor.bmm, torch.Tensor.addmm, torch.Tensor.baddbmm),
    }
)
"""Functions that autocast on CUDA computes in the lower precision, as far as transformers calls them."""
UPPER: Final = frozenset(
    {
        *(functional.layer_norm, functional.softmax, functional.log_softmax, functional.cross_entropy),
        *(functional.nll_loss, functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss),
        *(functional.binary_cross_entropy_with_logits, functional.softplus, functional.cosine_similarity),
        *(torch.layer_norm, torch.softmax, torch.log_softmax, torch.Tensor.softmax, torch.Tensor.log_softmax),
        *(torch.pow, torch.Tensor.pow, torch.Tensor.__pow__, torch.exp, torch.Tensor.exp, torch.log, torch.Tensor.log),
        *(torch.rsqrt, torch.Tensor.rsqrt, torch.reciprocal, torch.Tensor.reciprocal, torch.norm, torch.Tensor.norm),
        *(torch.sum, torch.Tensor.sum, torch.prod, torch.Tensor.prod, torch.cumsum, torch.Tensor.cumsum),
    }
)
"""Functions that autocast on CUDA computes in float32.
Source of both: PyTorch 2.13 documentation, Automatic Mixed Precision package, CUDA Op-Specific Behavior.
"""
Count = Callable[[int, Sequence[Tensor], str], None]
"""`Trace.count`: takes floating-point operations, outputs and inputs, and the name of an operation."""


class Kernels(TorchFunctionMode):
    """Calls the operators of a device for meta tensors; with autocast if a dtype is given.

    On CUDA dropout is `native_dropout`, whose mask has one byte per entry, and `scaled_dot_product_attention` is the
    flash kernel for half precision without a mask, else the memory-efficient one. On a CPU it is the flash kernel
    without dropout, else not fused.

    Args:
        on_cuda: Whether to call the kernels of CUDA; else those of a CPU.
        autocast: float16 or bfloat16; None computes in the dtype of the weights.
    """

    def __init__(self, *, on_cuda: bool, autocast: torch.dtype | None = None) -> None:
        super().__init__()
        self._on_cuda = on_cuda
        self._autocast = autocast
        self.cast_weights: dict[int, tuple[Tensor, Tensor]] = {}
        """Weights with their copies in the lower precision, which the pass has made so far, by the weight's id."""
        self.keeps_casts = True
        """Whether a copy is kept for the next use of the weight. Autocast releases all copies at the end of its block;
        those made later, for recomputation in the backward pass, are kept only by autograd."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._autocast is not None and func in LOWER:
            args, kwargs = tree_map(self._lower, (args, kwargs))
        elif self._autocast is not None and func in UPPER:
            args, kwargs = tree_map(
                lambda x: x.float() if isinstance(x, Tensor) and x.dtype in HALF else x, (args, kwargs)
            )
        if func is torch.tensor and isinstance(args[0], bool | int | float):
            # As in a training, which sets no default device: the CPU's, so that its value can be read (DeBERTa slices
            # by it).
            kwargs.setdefault("device", "cpu")
        if func is functional.dropout and self._on_cuda:
            return _dropout(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            return _attention(*args, **kwargs, on_cuda=self._on_cuda)
        return func(*args, **kwargs)

    def _lower(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype != torch.float32:
            return value
        if not (self.keeps_casts and value.is_leaf and value.requires_grad):
            return value.to(self._autocast)
        # Weights are cast once inside an autocast block. A reference to the weight prevents that its id is reused.
        if id(value) not in self.cast_weights:
            self.cast_weights[id(value)] = value, value.to(self._autocast)
        return self.cast_weights[id(value)][1]


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or p == 0:
        return input
    out: Tensor = torch.native_dropout(input, p, True)[0]
    return out


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    on_cuda: bool,
) -> Tensor:
    """Return (B, H, S, K) from the kernel that PyTorch would choose; arguments of `scaled_dot_product_attention`.

    With `on_cuda` it is that of a GPU with compute capability 8.0 or newer.
    """
    group = query.shape[1] // key.shape[1] if enable_gqa else 1
    options: dict[str, Any] = {"is_causal": is_causal, "scale": scale}
    if not on_cuda and (dropout_p > 0 or group > 1):
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, enable_gqa=enable_gqa, **options
        )
    if group > 1:
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
    aten = torch.ops.aten
    out: Tensor
    if not on_cuda:
        flash = aten._scaled_dot_product_flash_attention_for_cpu
        out = flash(query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]
    elif attn_mask is None and query.dtype in HALF:
        out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    else:
        bias = None if attn_mask is None else attn_mask.to(query.dtype).expand(*query.shape[:3], key.shape[2])
        needs_lse = torch.is_grad_enabled() and query.requires_grad
        efficient = aten._scaled_dot_product_efficient_attention
        out = efficient(query, key, value, bias, needs_lse, dropout_p, is_causal, scale=scale)[0]
    return out


@dataclass(frozen=True, eq=False)
class PackedAttention:
    """Replaces the attention of packed rows on a device: saves the same tensors, computes nothing."""

    lengths: tuple[int, ...]
    """Tokens of each row."""
    count: Count
    """Called for each kernel; on a CPU for each product, and for each pass over the scores of a tile."""
    on_cuda: bool
    """Whether it replaces the kernels of `models.attention.cuda`; else the tiles of `models.attention.cpu`."""

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
        q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
        out: Tensor
        if self.on_cuda:
            out = self._kernel(q, k, v, max(self.lengths), sum(length**2 for length in self.lengths))
        else:
            planned = cpu.plan(self.lengths, q.shape[1], sliding_window)
            out = _PackedOnCpu.apply(q, k, v, planned, dropout > 0, self.count)  # type: ignore[no-untyped-call]
        return out.unsqueeze(0), None

    def first(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, scale: float, p: float) -> Tensor:
        """Return the attention output (B, H, K) of one query for each row."""
        if self.on_cuda:
            return self._kernel(query, key, value, 1, sum(self.lengths))
        return attend_first(query, key, value, list(self.lengths), scale=scale, p=p)

    def _kernel(self, query: Tensor, key: Tensor, value: Tensor, longest: int, num_scores: int) -> Tensor:
        shape: tuple[int, ...] = (query.shape[1], len(query))
        if query.dtype not in HALF:
            shape = (len(self.lengths), query.shape[1], -(-longest // 32) * 32)
        logsumexp = query.new_empty(shape, dtype=torch.float32)
        out: Tensor = _PackedOnCuda.apply(query, key, value, logsumexp, num_scores, self.count)  # type: ignore[no-untyped-call]
        return out


class _PackedOnCuda(torch.autograd.Function):
    """Saves the tensors of the flash kernel for rows of unequal length: queries, keys, values, outputs, log-sum-exp.

    The memory-efficient kernel (float32) saves the same with a log-sum-exp of (B, H, longest). The real kernel is not
    called, because the shapes of its backward pass are wrong in PyTorch 2.13. There are two products forward and five
    backward, where scores are recomputed (Dao et al., FlashAttention, NeurIPS 2022, section 3.1 and appendix B).
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        logsumexp: Tensor,
        num_scores: int,
        count: Count,
    ) -> Tensor:
        _, num_heads, width = query.shape
        out = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, out, logsumexp)
        ctx.count, ctx.product = count, 2 * num_heads * width * num_scores
        count(2 * ctx.product, (query, key, value, out), "packed_attention")
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, _ = ctx.saved_tensors
        grads = tuple(torch.empty_like(x) for x in (query, key, value))
        ctx.count(5 * ctx.product, (query, key, value, out, grad, *grads), "packed_attention_backward")
        return (*grads, None, None, None)


class CountedDropout(nn.Dropout):
    """Replaces `CheapDropout`: saves one bit per entry."""

    count: Count

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return input
        out: Tensor = _Dropout.apply(input, self.count)  # type: ignore[no-untyped-call]
        return out


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
