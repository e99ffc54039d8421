"""Changes how blocks run: shortened, compiled, or with activation checkpointing. Names of modules and parameters stay.

Shortened: the heads of classification and regression read only the first token of a row. In the last layer, the other
tokens are needed as keys and values, but not as queries and not in the feed-forward part. The result is the same, and
models of 6 to 12 layers save 1/6 to 1/12 of the computation. For packed batches on the CPU and on CUDA.

Activation checkpointing: a block keeps only its inputs and computes its activations again in the backward pass. Blocks
of one class share their compiled graphs. Attention of packed rows is one operator (`attention.operator`), so that a
block is one graph; a block with code that cannot be compiled, such as DeBERTa's attention, becomes several graphs with
the same results.

Sources: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016; PyTorch, "Reducing torch.compile cold start
compilation time with regional compilation". PyTorch does the work of both.

Dimensions: `B` rows, `T` tokens, `D` width, `H` heads, `K` head width.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

from paratune.models.attention import cuda, register
from paratune.models.task_model import TaskModel, find_blocks, require_blocks
from paratune.processes.progress import working

LAYERS = ("BertLayer", "RobertaLayer", "XLMRobertaLayer", "CamembertLayer", "ElectraLayer", "Data2VecTextLayer")
"""Classes of transformers with the same forward as in this module: attention, its output, feed-forward part."""


def shorten_last_layer(layer: nn.Module, attend: Callable[..., Tensor] | None = None) -> bool:
    """Add the argument `first_tokens_only`, which is passed to the model's forward with `cu_seqlens`, to a last layer.

    With it, the layer returns (1, B, D): the first token of each row. Without it, on the meta device, or where other
    code has replaced its forward (such as activation checkpointing), it returns (1, T, D) as before; so a caller checks
    the shape. `attend` replaces `_attend`, on the meta device, too, where row lengths have no values. Returns whether
    the class of the layer is supported; otherwise nothing changes.
    """
    if type(layer).__name__ not in LAYERS or getattr(layer, "is_decoder", False):
        return False
    layer.forward = MethodType(partial(_forward, attend), layer)
    return True


def _forward(
    attend: Callable[..., Tensor] | None, layer: Any, hidden_states: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    cu_seqlens = kwargs.get("cu_seqlens")
    is_possible = attend is not None or hidden_states.device.type != "meta"
    if not kwargs.get("first_tokens_only") or cu_seqlens is None or not is_possible:
        out: Tensor = type(layer).forward(layer, hidden_states, *args, **kwargs)
        return out
    heads, (hidden,) = layer.attention.self, hidden_states
    first = hidden.index_select(0, cu_seqlens[:-1])
    q, k, v = (
        project(x).unflatten(-1, (heads.num_attention_heads, -1))
        for project, x in ((heads.query, first), (heads.key, hidden), (heads.value, hidden))
    )
    p = heads.dropout.p if heads.training else 0.0
    mixed = (attend or _attend)(q, k, v, cu_seqlens, kwargs.get("max_seqlen"), scale=heads.scaling, p=p)
    attended = layer.attention.output(mixed.flatten(1).unsqueeze(0), first.unsqueeze(0))
    shortened: Tensor = layer.feed_forward_chunk(attended)
    return shortened


def _attend(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, max_seqlen: int | None, *, scale: float, p: float
) -> Tensor:
    if query.device.type in register.ON_DEVICE:
        assert max_seqlen is not None
        out = cuda.attend_first(query, key, value, cu_seqlens, max_seqlen, scale=scale, dropout=p)
        if out is not None:
            return out
    return attend_first(query, key, value, cu_seqlens.diff().tolist(), scale=scale, p=p)


def attend_first(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], *, scale: float, p: float) -> Tensor:
    """Return softmax(scale q K^T) V of one query for each row, (B, H, K), with dropout `p` on the probabilities.

    `query` is (B, H, K), `key` and `value` are packed rows, (T, H, K), and `lengths` their tokens, at least 1 each.
    """
    B, L = len(lengths), max(lengths)
    shift_B = np.arange(0, B * L, L) - np.cumsum([0, *lengths[:-1]])
    slots_T = torch.from_numpy(np.arange(len(key)) + np.repeat(shift_B, lengths)).to(key.device)
    # (B, H, L, K)
    keys, values = (
        x.new_zeros(B * L, *x.shape[1:]).index_copy(0, slots_T, x).view(B, L, *x.shape[1:]).transpose(1, 2)
        for x in (key, value)
    )
    scores = (query.unsqueeze(2) @ keys.mT) * scale
    padding = torch.arange(L, device=keys.device) >= torch.tensor(lengths, device=keys.device)[:, None]
    masked = scores.masked_fill(padding[:, None, None], float("-inf"))
    probabilities = masked.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return (dropout(probabilities, p).to(values.dtype) @ values).squeeze(2)


def checkpoint_blocks(blocks: Sequence[nn.Module], every: int) -> None:
    """Checkpoint the activations of every `every`-th block (1: all), beginning with the first.

    Call it before `Strategy.prepare`: then the all-gather of sharded weights is outside of the part that is computed
    twice. Gradients are the same; dropout draws the same masks both times.

    Raises:
        ConfigError: There are no blocks, or fewer than `every`.
    """
    require_blocks(len(blocks), "train.activation_checkpointing", every, fewest=every)
    for block in blocks[::every]:
        # A compiled forward is kept inside. The forward of a shortened last layer is not: it is computed whole again.
        inner = getattr(block.__dict__.get("forward"), "__func__", None)
        is_compiled = hasattr(inner, "_torchdynamo_orig_callable")
        block.forward = MethodType(partial(_forward_twice, inner if is_compiled else None), block)


def _forward_twice(inner: Callable[..., Any] | None, block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    # The class is read at the call, because FSDP2 changes it after this function has run.
    forward = partial(inner or type(block).forward, block, **kwargs)
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args)
    return checkpoint(forward, *args, use_reentrant=False)


def compile_blocks(model: TaskModel) -> None:
    """Let torch.compile compile each block at its first pass.

    The second number of tokens that a block receives leads to a graph for any number of tokens. Hooks of strategies,
    and activation checkpointing, which is added later, are outside of the graphs. A shortened last layer is computed
    whole again, because it would be compiled for each number of rows.

    Raises:
        ConfigError: The model has no repeated layers.
    """
    blocks = find_blocks(model)
    require_blocks(len(blocks), "train.compile", "true")
    # Above this limit PyTorch silently computes without graphs. Blocks of a class may differ (ModernBERT's first block
    # has no first norm), and each kind needs a graph for its first size and one for others, in training and evaluation.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 4 * len(blocks) + 4)
    # The hang watchdog gets each compilation: PyTorch compiles inside a forward or backward pass, for minutes.
    handler = torch._dynamo.callback.callback_handler
    if _begin_compilation not in handler.start_callbacks:
        handler.register_start_callback(_begin_compilation)
        handler.register_end_callback(_end_compilation)
    compiled = {kind: torch.compile(kind.forward) for kind in {type(block) for block in blocks}}
    for block in blocks:
        block.forward = MethodType(compiled[type(block)], block)


_current = ExitStack()
"""The context `working` of the compilation that is running."""


def _begin_compilation(_: object) -> None:
    _current.enter_context(working("compile"))


def _end_compilation(_: object) -> None:
    _current.close()
