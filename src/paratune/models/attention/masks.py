"""Masks of padded batches on a GPU, made without a look at them.

Floor 3. Before it makes a mask for PyTorch's attention, transformers asks the device whether anything is padded at all,
and the host waits for the answer in every pass. The batch was made on the host, which knows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

ON_DEVICE = ("cuda",)
"""Kinds of devices that are not to be waited for."""
NAME = "sdpa"
"""Transformers' name for PyTorch's attention, and for the masks that it takes."""
_is_full = False


def register() -> None:
    """Have transformers make masks for `NAME` by `make_mask`; doing it again changes nothing."""
    from transformers import AttentionMaskInterface

    AttentionMaskInterface.register(NAME, make_mask)


@contextmanager
def without_padding(is_full: bool) -> Iterator[None]:
    """Say of the batch of the forward pass in this block whether every row is as long as the longest."""
    global _is_full
    before, _is_full = _is_full, is_full
    try:
        yield
    finally:
        _is_full = before


def make_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Return what transformers' `sdpa_mask` returns, or, on a GPU, a mask that says the same; see there.

    Where nothing is padded and no window is set, that is None on a GPU too, and PyTorch may take its flash kernel.
    """
    from transformers.masking_utils import sdpa_mask

    padding: Tensor | None = kwargs.get("attention_mask")
    if padding is not None and padding.device.type in ON_DEVICE:
        kwargs |= {"attention_mask": None} if _is_full else {"allow_is_bidirectional_skip": False}
    mask: Tensor | None = sdpa_mask(*args, **kwargs)
    return mask
