"""The name `paratune_packed` in transformers' attention interface: what a model's layers call on a packed batch.

Floor 3. A packed batch is one row (1, T) of all rows' tokens, with `cu_seqlens` (B + 1,) for where rows end. Both it
and `max_seqlen` are given to the model's forward and reach every layer. B rows, T tokens, H heads, K head width.

Source: transformers, AttentionInterface; the definition of `sliding_window` is the one of its
`sdpa` masks for encoders, as ModernBERT hands it over: |i - j| < sliding_window.
"""

from typing import Any

import torch
from torch import Tensor, nn

from paratune.models.attention import cpu, cuda, operator
from paratune.models.attention.rows import attend_rows

NAME = "paratune_packed"
"""Without "flash" in it, for transformers treats such names differently."""
REFUSED = ("position_bias", "softcap", "s_aux", "head_mask", "layer_head_mask")
"""What some models give to their attention, changes its result and is not computed here."""
ON_DEVICE = ("cuda",)
"""Kinds of devices whose kernels read `cu_seqlens` where it lies: the host does not wait for it."""


def register() -> None:
    """Make `NAME` known to transformers; doing it again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)
    operator.define()


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend within each row of a packed batch; called by the layers of a transformers model.

    Under autocast, rotary positions in float32 make queries and keys float32 beside values in half precision, which
    kernels do not take: all three are computed in the dtype of `value`.

    Args:
        module: The layer. Its `is_causal` counts where the argument is None; without either it is causal, as in `sdpa`.
        query: (1, H, T, K).
        key: (1, H, T, K), or with a divisor of H heads, each for a group of query heads.
        value: As `key`.
        attention_mask: None: a packed batch has no padding.
        scaling: What scores are multiplied by; None for K ** -0.5.
        dropout: Probability of dropping an attention probability; 0 in evaluation.
        sliding_window: Query i meets keys j of its row with |i - j| < sliding_window; None for all.
        cu_seqlens: (B + 1,), int32, starts at 0, ends with T; on the device of `query`.
        max_seqlen: Tokens of the longest row, or more, as a host number; on CUDA only.
        is_causal: Must not be true.

    Returns:
        (1, T, H, K) in the dtype of `value`, and None for the probabilities.

    Raises:
        NotImplementedError: Causal attention, a mask, or something else that is not computed here.
        ValueError: `cu_seqlens` is missing, or `max_seqlen` where it is needed.
    """
    _check(module, attention_mask, is_causal, others)
    if cu_seqlens is None:
        raise ValueError(f"{NAME}: cu_seqlens did not reach {type(module).__name__}; give it to the model")
    query, key = query.to(value.dtype), key.to(value.dtype)
    group = query.shape[1] // key.shape[1]
    if group > 1:
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    is_on_device = query.device.type in ON_DEVICE
    if is_on_device and max_seqlen is None:
        raise ValueError(f"{NAME}: max_seqlen did not reach {type(module).__name__}; give it to the model")
    if torch.compiler.is_compiling():
        out = operator.packed_attention(q, k, v, cu_seqlens, max_seqlen or 0, scale, dropout, sliding_window)
    elif is_on_device:
        assert max_seqlen is not None
        out = cuda.attend(q, k, v, cu_seqlens, max_seqlen, scale=scale, dropout=dropout, window=sliding_window)
    else:
        attend = cpu.attend if query.device.type == "cpu" else attend_rows
        out = attend(q, k, v, cu_seqlens.diff().tolist(), scale=scale, dropout=dropout, window=sliding_window)
    return out.unsqueeze(0), None


def _check(module: nn.Module, mask: Tensor | None, is_causal: bool | None, others: dict[str, Any]) -> None:
    name = type(module).__name__
    if is_causal or (is_causal is None and getattr(module, "is_causal", True)):
        raise NotImplementedError(f"{NAME}: {name} is causal; packed attention is for encoders")
    if mask is not None:
        raise NotImplementedError(f"{NAME}: {name} came with an attention mask; packed rows need none")
    if found := [key for key in REFUSED if others.get(key) is not None]:
        raise NotImplementedError(
            f"{NAME}: {name} requires {', '.join(found)}, which this implementation does not compute"
        )
