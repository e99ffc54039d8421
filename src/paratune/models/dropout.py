"""Dropout on the CPU with cheap masks: 16 random bits an entry, exact to 2^-16, in place of one `bernoulli_` an entry.

Floor 3. PyTorch's own costs 6 ns an entry, more than the matrix product it follows; this one 1 ns. `torch.manual_seed`
decides the masks, through three words of torch's generator a mask source. CUDA tensors go to torch's own dropout.

Source: Srivastava et al., Dropout, JMLR 2014; numpy's SFC64 (Doty-Humphrey, PractRand) for the random words.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.random.bit_generator import ISeedSequence
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

ONE = 1 << 16
"""Number of equally likely 16-bit words."""
CHUNK = 1 << 16
"""Entries that are dropped out at a time, so that mask and values stay in the processor's cache."""
FEW = 1 << 14
"""Entries up to which the factors (0 or the scale) are kept in place of bits: at most 64 KiB in float32. PyTorch's own
product takes half of the host's time of `_Dropout`."""


_NUMPY_DTYPES: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


class MaskSource:
    """A stream of dropout masks, all decided by one draw of torch's generator at the start.

    Args:
        p: Probability of dropping an entry, 0 to 1; taken to the nearest multiple of 2^-16.
    """

    def __init__(self, p: float) -> None:
        self.num_dropped_words = round(p * ONE)
        seed = _Seed(torch.empty(3, dtype=torch.int64).random_().numpy().view(np.uint64))
        self._words = np.random.SFC64(seed)  # type: ignore[arg-type]  # NumPy's stub knows SeedSequence alone

    @property
    def keep_scale(self) -> float:
        """What kept values are multiplied by: 1 / (1 - p) with the p that the masks have; 0 if they keep nothing."""
        return ONE / (ONE - self.num_dropped_words) if self.num_dropped_words < ONE else 0.0

    def draw(self, num_entries: int) -> npt.NDArray[np.bool_]:
        """Return the next mask, (num_entries,), true where an entry is kept."""
        if self.num_dropped_words >= ONE:
            return np.zeros(num_entries, np.bool_)
        words = np.asarray(self._words.random_raw((num_entries + 3) // 4)).view(np.int16)[:num_entries]
        return np.greater_equal(words, np.int16(self.num_dropped_words - ONE // 2))

    def factors(self, num_entries: int, dtype: torch.dtype) -> npt.NDArray[Any]:
        """Return what the next entries are multiplied by, (num_entries,): 0 or `keep_scale`; float32 or float64."""
        scale: np.floating[Any] = _NUMPY_DTYPES[dtype](self.keep_scale)
        return self.draw(num_entries) * scale


class _Seed(ISeedSequence):
    """The words that a generator begins with, as they are.

    NumPy's own `SeedSequence` mixes them first, which takes most of the time of a mask for a small tensor. SFC64 does
    not need it: its author seeds it by three words and 12 rounds, which NumPy runs as well.
    """

    def __init__(self, words: npt.NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> npt.NDArray[Any]:
        assert (n_words, dtype) == (len(self._words), np.uint64)
        return self._words


class CheapDropout(nn.Dropout):
    """`nn.Dropout` with masks of `MaskSource` for CPU tensors; the identity in evaluation and with p = 0.

    In place, and on other devices, it is PyTorch's own.
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu" or self.inplace or not self.training or self.p == 0:
            return super().forward(input)
        masks = MaskSource(self.p)
        if keeps_factors(input):
            return input * torch.from_numpy(masks.factors(input.numel(), input.dtype)).view(input.shape)
        keep = torch.is_grad_enabled() and input.requires_grad
        out: Tensor = _Dropout.apply(input, masks, keep)  # type: ignore[no-untyped-call]
        return out


def keeps_factors(x: Tensor) -> bool:
    """Say whether dropout of a tensor keeps its factors for the backward pass, in its dtype, and not a bit an entry."""
    return x.numel() <= FEW and x.dtype in _NUMPY_DTYPES


def use_cheap_dropout(module: nn.Module) -> int:
    """Make every `nn.Dropout` inside a module a `CheapDropout`; names of parameters do not change.

    Dropout that a model applies as a function, without a module, stays as it is.

    Returns:
        Number of modules changed.
    """
    found = [child for child in module.modules() if type(child) is nn.Dropout]
    for child in found:
        # By class, so that hooks and shared modules stay what they are.
        child.__class__ = CheapDropout
    return len(found)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, masks: MaskSource, keep: bool) -> Tensor:
        flat = x.reshape(-1)
        out = torch.empty_like(flat)
        scale = flat.new_empty(min(CHUNK, flat.numel()))
        bits: list[npt.NDArray[np.uint8]] = []
        for start in range(0, flat.numel(), CHUNK):
            part = flat[start : start + CHUNK]
            mask = masks.draw(part.numel())
            if keep:
                bits.append(np.packbits(mask))
            factor = scale[: part.numel()].copy_(torch.from_numpy(mask.view(np.uint8))).mul_(masks.keep_scale)
            torch.mul(part, factor, out=out[start : start + CHUNK])
        if keep:
            ctx.save_for_backward(torch.from_numpy(np.concatenate(bits or [np.empty(0, np.uint8)])))
            ctx.keep_scale = masks.keep_scale
        return out.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        bits = ctx.saved_tensors[0].numpy()
        flat = grad.reshape(-1)
        out = torch.empty_like(flat)
        scale = flat.new_empty(min(CHUNK, flat.numel()))
        for start in range(0, flat.numel(), CHUNK):
            part = flat[start : start + CHUNK]
            mask = np.unpackbits(bits[start // 8 : (start + CHUNK) // 8], count=part.numel())
            factor = scale[: part.numel()].copy_(torch.from_numpy(mask)).mul_(ctx.keep_scale)
            torch.mul(part, factor, out=out[start : start + CHUNK])
        return out.view(grad.shape), None, None
