"""Makes the attention masks of padded batches on a GPU without waiting for the GPU.

Before it makes a mask, transformers reads from the device whether the batch has any padding, and the host waits for it
in every pass. Here the host provides the answer, because it made the batch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

ON_DEVICE = ("cuda",)
"""Types of devices for which masks are made without a check on the device."""
NAMES = ("sdpa", "eager")
"""Names in transformers of its attention functions with PyTorch's kernel and in plain operators, and of their masks."""
MakeMask = Callable[..., Tensor | None]


@contextmanager
def masks_without_sync(device: torch.device, *, is_full: bool) -> Iterator[None]:
    """Replace transformers' mask functions during a forward pass, except on a CPU; `is_full` is for no padding."""
    if device.type not in ON_DEVICE:
        yield
        return
    from transformers import AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    before: dict[str, MakeMask] = {name: ALL_MASK_ATTENTION_FUNCTIONS[name] for name in NAMES}
    try:
        for name, make in before.items():
            AttentionMaskInterface.register(name, partial(make_mask, make, is_full))
        yield
    finally:
        for name, make in before.items():
            AttentionMaskInterface.register(name, make)


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
