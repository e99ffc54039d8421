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
_is_full = False


def register() -> None:
    """Have transformers make masks by the functions below; doing it again changes nothing."""
    from transformers import AttentionMaskInterface

    # Transformers' names for PyTorch's attention and for the one that is written out, and for the masks that they take.
    AttentionMaskInterface.register("sdpa", make_mask)
    AttentionMaskInterface.register("eager", make_eager_mask)


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

    mask: Tensor | None = sdpa_mask(*args, **_without_a_look(kwargs))
    return mask


def make_eager_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Return what transformers' `eager_mask` returns, or, on a GPU, a mask that says the same; see there."""
    from transformers.masking_utils import eager_mask

    mask: Tensor | None = eager_mask(*args, **_without_a_look(kwargs))
    return mask


def _without_a_look(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a mask with which transformers does not ask a GPU for its values."""
    padding: Tensor | None = kwargs.get("attention_mask")
    if padding is None or padding.device.type not in ON_DEVICE:
        return kwargs
    if _is_full:
        return kwargs | {"attention_mask": None}
    return kwargs | {"allow_is_bidirectional_skip": False, "allow_is_causal_skip": False}
