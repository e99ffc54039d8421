"""Functions of transformers' attention interface, called by layers: `paratune_packed`, and those with masks.

A packed batch is one row (1, T) with the tokens of all rows, and `cu_seqlens` (B + 1,) with the ends of rows. The
model's forward receives `cu_seqlens` and `max_seqlen` and passes them to every layer.

Dimensions: `B` rows, `T` tokens, `H` heads, `K` head width.

Source: transformers, AttentionInterface; the definition of `sliding_window` is that of its `sdpa` masks for encoders,
as ModernBERT passes it: |i - j| < sliding_window.

Masks of padded batches on a GPU are made without waiting for the GPU. Before transformers makes a mask, it reads from
the device whether the batch has any padding. Here the host provides the answer, because it made the batch: by the name
of the attention function in the configuration of the model, which transformers looks up in each pass. The names are our
own, and stand for the same functions and masks in all models and threads. The entries of transformers are those of the
whole process: another model, or another thread, would get what is replaced there.
"""

import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from paratune.models.attention import cpu, cuda, operator
from paratune.models.attention.rows import attend_rows

NAMES = {
    "sdpa": ("paratune_sdpa", "paratune_sdpa_full"),
    "eager": ("paratune_eager", "paratune_eager_full"),
}
"""Names in transformers of its attention functions with PyTorch's kernel and in plain operators, with our names of them
for a batch with padding, and for one without."""
MakeMask = Callable[..., Tensor | None]
NAME = "paratune_packed"
"""Name of the function; without "flash", because transformers treats such names differently."""
REFUSED = ("position_bias", "softcap", "s_aux", "head_mask", "layer_head_mask")
"""Arguments of some models that change the result of attention and are not supported here."""
ON_DEVICE = ("cuda",)
"""Types of devices whose kernels read `cu_seqlens` on the device, so that the host does not wait for it."""


def attention_name(attention: str | None, device: torch.device, *, is_full: bool) -> str | None:
    """Return the name with which a model attends in a pass of a padded batch; `attention` itself on a CPU.

    Args:
        attention: Name of the model's attention function in transformers; None where it has none.
        device: Device of the batch.
        is_full: Whether the batch has no padding.
    """
    if attention not in NAMES or device.type not in ON_DEVICE:
        return attention
    _register()
    return NAMES[attention][is_full]


@cache
def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import eager_mask, sdpa_mask

    functions = {"sdpa": (sdpa_attention_forward, sdpa_mask), "eager": (_attend_eagerly, eager_mask)}
    for attention, names in NAMES.items():
        attend, make = functions[attention]
        for is_full, name in enumerate(names):
            AttentionInterface.register(name, attend)
            AttentionMaskInterface.register(name, partial(make_mask, make, bool(is_full)))


def _attend_eagerly(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call the attention in plain operators of the model's own module, which transformers finds by `eager` only."""
    forward = inspect.unwrap(type(module).forward)
    return forward.__globals__["eager_attention_forward"](module, *args, **kwargs)


def make_mask(make: MakeMask, is_full: bool, /, *args: Any, **kwargs: Any) -> Tensor | None:
    """Return the mask of transformers' function `sdpa_mask` or `eager_mask`, or an equivalent one for a mask on a GPU.

    Without padding (`is_full`) and window it is None on a GPU, too, so that PyTorch can use its flash kernel. The other
    arguments are those of `make`.
    """
    padding: Tensor | None = kwargs.get("attention_mask")
    if padding is None or padding.device.type not in ON_DEVICE:
        return make(*args, **kwargs)
    if is_full:
        return make(*args, **kwargs | {"attention_mask": None})
    # Without these the function would read the mask from the device, to return None where it hides nothing.
    return make(*args, **kwargs | {"allow_is_bidirectional_skip": False, "allow_is_causal_skip": False})


def register() -> None:
    """Register the attention function with transformers; later calls change nothing."""
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
    """Compute attention within each row of a packed batch; called by the layers of a transformers model.

    Args:
        module: The layer. Its `is_causal` counts where the argument is None; without both it is causal, as in `sdpa`.
        query: (1, H, T, K); keys and values may have fewer heads, a divisor of H, each for a group of query heads.
        cu_seqlens: As in `cuda.attend`, with `max_seqlen`, which only CUDA requires.

    Others are those of transformers' interface, and as in `cpu.attend_tiles`. Returns (1, T, H, K) in the dtype of
    `value`, and None for the probabilities.

    Raises:
        NotImplementedError: Causal attention, a mask, or another unsupported argument.
        ValueError: `cu_seqlens` is missing, or `max_seqlen` where it is required.
    """
    _check(module, attention_mask, is_causal, others)
    if cu_seqlens is None:
        raise ValueError(f"{NAME}: {type(module).__name__} received no cu_seqlens; pass it to the model's forward")
    # Under autocast, rotary embeddings in float32 make queries and keys float32, while values have half precision.
    # Kernels need one dtype: that of the values, which is the dtype of autocast.
    query, key = query.to(value.dtype), key.to(value.dtype)
    group = query.shape[1] // key.shape[1]
    if group > 1:
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    is_on_device = query.device.type in ON_DEVICE
    if is_on_device and max_seqlen is None:
        raise ValueError(f"{NAME}: {type(module).__name__} received no max_seqlen; pass it to the model's forward")
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
        raise NotImplementedError(f"{NAME}: {name} passes an attention mask, which packed rows do not support")
    if unsupported := [key for key in REFUSED if others.get(key) is not None]:
        raise NotImplementedError(f"{NAME}: {name} requires {', '.join(unsupported)}, which packed rows do not support")
