"""Dropout on the CPU with cheap masks: 16 random bits per entry, with a probability that is exact to 2^-16.

PyTorch's dropout needs 6 ns per entry, more than the matrix product before it; this one needs 1 ns. `torch.manual_seed`
determines the masks, because each mask source takes its seed, three words, from PyTorch's generator. Tensors on other
devices use PyTorch's dropout.

Source: Srivastava et al., Dropout, JMLR 2014; numpy's SFC64 (Doty-Humphrey, PractRand) for the random words.
"""

from collections.abc import Callable
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
"""Entries that are computed at a time, so that mask and values stay in the processor's cache."""


class MaskSource:
    """A stream of dropout masks; its seed is drawn once from PyTorch's generator.

    Args:
        p: Probability of dropping an entry, 0 to 1; rounded to a multiple of 2^-16.
    """

    def __init__(self, p: float) -> None:
        self.num_dropped_words = round(p * ONE)
        seed = _Seed(torch.empty(3, dtype=torch.int64).random_().numpy().view(np.uint64))
        self._words = np.random.SFC64(seed)  # type: ignore[arg-type]  # NumPy's stub allows only SeedSequence

    @property
    def keep_scale(self) -> float:
        """Factor of values that are kept: 1 / (1 - p) with the rounded p; 0 for p = 1."""
        return ONE / (ONE - self.num_dropped_words) if self.num_dropped_words < ONE else 0.0

    def draw(self, num_entries: int) -> npt.NDArray[np.bool_]:
        """Return the next mask, (num_entries,), true where an entry is kept."""
        if self.num_dropped_words >= ONE:
            return np.zeros(num_entries, np.bool_)
        words = np.asarray(self._words.random_raw((num_entries + 3) // 4)).view(np.int16)[:num_entries]
        return np.greater_equal(words, np.int16(self.num_dropped_words - ONE // 2))


class _Seed(ISeedSequence):
    """A seed whose words a generator uses directly.

    NumPy's `SeedSequence` mixes the words first, which takes most of the time of a mask for a small tensor. SFC64 does
    not need that: its author seeds it by three words and 12 rounds, and NumPy runs these rounds, too.
    """

    def __init__(self, words: npt.NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> npt.NDArray[Any]:
        assert (n_words, dtype) == (len(self._words), np.uint64)
        return self._words


class CheapDropout(nn.Dropout):
    """`nn.Dropout` with masks of `MaskSource` for CPU tensors; in place and on other devices, PyTorch's dropout."""

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu" or self.inplace or not self.training or self.p == 0:
            return super().forward(input)
        masks = MaskSource(self.p)
        has_backward = torch.is_grad_enabled() and input.requires_grad
        out: Tensor = _ChunkedDropout.apply(input, masks, has_backward)  # type: ignore[no-untyped-call]
        return out


def use_cheap_dropout(root: nn.Module) -> int:
    """Change every `nn.Dropout` inside a module to `CheapDropout`, and return their number.

    Dropout that a model calls as a function, without a module, does not change.
    """
    modules = [module for module in root.modules() if type(module) is nn.Dropout]
    for module in modules:
        # A new class, not a new module: hooks stay, and a module that is shared by several parents stays shared.
        module.__class__ = CheapDropout
    return len(modules)


class _ChunkedDropout(torch.autograd.Function):
    """Dropout chunk by chunk; the backward pass needs one bit per entry."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, masks: MaskSource, has_backward: bool) -> Tensor:
        bits: list[npt.NDArray[np.uint8]] = []

        def draw(start: int, num_entries: int) -> npt.NDArray[np.uint8]:
            mask = masks.draw(num_entries)
            if has_backward:
                bits.append(np.packbits(mask))
            return mask.view(np.uint8)

        out = _multiply(x, masks.keep_scale, draw)
        if has_backward:
            ctx.save_for_backward(torch.from_numpy(np.concatenate(bits or [np.empty(0, np.uint8)])))
            ctx.keep_scale = masks.keep_scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        bits = ctx.saved_tensors[0].numpy()

        def unpack(start: int, num_entries: int) -> npt.NDArray[np.uint8]:
            return np.unpackbits(bits[start // 8 : (start + CHUNK) // 8], count=num_entries)

        return _multiply(grad, ctx.keep_scale, unpack), None, None


def _multiply(x: Tensor, scale: float, read_mask: Callable[[int, int], npt.NDArray[np.uint8]]) -> Tensor:
    """Return x * mask * scale; `read_mask` returns the mask of a chunk by its start and its number of entries."""
    flat = x.reshape(-1)
    out = torch.empty_like(flat)
    factors = flat.new_empty(min(CHUNK, flat.numel()))
    for start in range(0, flat.numel(), CHUNK):
        part = flat[start : start + CHUNK]
        mask = torch.from_numpy(read_mask(start, part.numel()))
        torch.mul(part, factors[: part.numel()].copy_(mask).mul_(scale), out=out[start : start + CHUNK])
    return out.view(x.shape)
