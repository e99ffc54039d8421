"""Makes the attention masks of padded batches on a GPU without waiting for the GPU.

Before it makes a mask, transformers reads from the device whether the batch has any padding, and the host waits for it
in every pass. Here the host provides the answer, because it made the batch: by the name of the attention function in
the configuration of the model, which transformers looks up in each pass.

The names are our own, and stand for the same functions and masks in all models and threads. The entries of transformers
are those of the whole process: another model, or another thread, would get what is replaced there.
"""

import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

ON_DEVICE = ("cuda",)
"""Types of devices for which masks are made without a check on the device."""
NAMES = {
    "sdpa": ("paratune_sdpa", "paratune_sdpa_full"),
    "eager": ("paratune_eager", "paratune_eager_full"),
}
"""Names in transformers of its attention functions with PyTorch's kernel and in plain operators, with our names of them
for a batch with padding, and for one without."""
MakeMask = Callable[..., Tensor | None]


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
    return make(*args, **kwargs | {"allow_is_bidirectional_skip": False, "allow_is_causal_skip": False})
