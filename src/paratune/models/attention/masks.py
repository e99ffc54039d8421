"""Masks of padded batches on a GPU, made without a look at them.

Floor 3. Before it makes a mask for PyTorch's attention, transformers asks the device whether anything is padded at all,
and the host waits for the answer in every pass. The batch was made on the host, which knows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

ON_DEVICE = ("cuda",)
"""Kinds of devices that are not to be waited for."""
NAMES = ("sdpa", "eager")
"""Transformers' names for PyTorch's attention and for the one that is written out, and for the masks that they take."""
MakeMask = Callable[..., Tensor | None]


@contextmanager
def without_waiting(device: torch.device, *, is_full: bool) -> Iterator[None]:
    """Have transformers make the masks of the forward pass in this block without a look at the device.

    Transformers' own functions are back at the end of the block, and stay in their place on a CPU.

    Args:
        device: On which the pass runs.
        is_full: Whether every row is as long as the longest.
    """
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
    """Return what transformers' function returns, or, of a mask on a GPU, one that says the same; see there.

    Where nothing is padded and no window is set, that is None on a GPU too, and PyTorch may take its flash kernel.

    Args:
        make: `sdpa_mask` or `eager_mask` of transformers.
        is_full: Whether every row is as long as the longest.
        args: Of `make`.
        kwargs: Of `make`.
    """
    padding: Tensor | None = kwargs.get("attention_mask")
    if padding is None or padding.device.type not in ON_DEVICE:
        return make(*args, **kwargs)
    if is_full:
        return make(*args, **kwargs | {"attention_mask": None})
    return make(*args, **kwargs | {"allow_is_bidirectional_skip": False, "allow_is_causal_skip": False})
