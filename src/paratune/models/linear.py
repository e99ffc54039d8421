"""Linear layers of float32 models on AMD processors: products by oneDNN, where PyTorch would take MKL.

Floor 3. PyTorch's float32 products are MKL's, whose kernels for AMD are not its best: oneDNN, which is in PyTorch as
well (inductor calls it), is 1.06 to 1.3 times as fast at the shapes of BERT there, forward and for the gradient of the
input; for the gradient of the weight it is not, and that stays (benchmarks/linear.py). The arithmetic is the same.

K features in, N out; `*` any dimensions.
"""

from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

_CPUINFO = Path("/proc/cpuinfo")
NARROW = 256
"""Features of a layer, in or out, below which a small product is left to MKL."""
SMALL = 1 << 24
"""Multiplications and additions of a small product. oneDNN compiles a kernel for each new shape (0.7 to 2 ms), and a
packed batch of a narrow model has a new number of tokens in nearly every step; a call takes 10 to 20 us more, too."""


class OneDnnLinear(nn.Linear):
    """`nn.Linear` whose float32 products on the CPU are oneDNN's, but for small ones; under autocast PyTorch's own."""

    is_plain_under_autocast: ClassVar = True
    """Says to `paratune.precision.working_weights` that nothing is lost there by computing it otherwise."""

    def forward(self, input: Tensor) -> Tensor:
        if self._is_small(input):  # first, for there a call of Python is what counts
            return functional.linear(input, self.weight, self.bias)
        weight = self.weight
        is_plain = input.dtype == weight.dtype == torch.float32 and input.device.type == weight.device.type == "cpu"
        if not is_plain or input.numel() == 0 or torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        if not torch.is_grad_enabled():
            return _product(input, weight, self.bias)
        out: Tensor = _Linear.apply(input, weight, self.bias)  # type: ignore[no-untyped-call]
        return out

    def _is_small(self, input: Tensor) -> bool:
        """Say whether a product is too small for oneDNN. Wider layers compute as they always did: to the same bits."""
        N, K = self.out_features, self.in_features
        return N < NARROW and K < NARROW and input.numel() * N < SMALL


def use_onednn(module: nn.Module) -> int:
    """Make every `nn.Linear` inside a module a `OneDnnLinear`, where that is faster; names of parameters do not change.

    It is decided by the processor's maker, not by timing: two sessions of one run on one machine compute the same.

    Returns:
        Number of modules changed.
    """
    if not is_faster():
        return 0
    found = [child for child in module.modules() if type(child) is nn.Linear]
    for child in found:
        child.__class__ = OneDnnLinear
    return len(found)


@cache
def is_faster() -> bool:
    """Say whether this is an AMD processor, and this PyTorch has MKL and oneDNN's product."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return False
    try:
        maker = "AuthenticAMD" in _CPUINFO.read_text(encoding="utf-8", errors="replace")
        one = torch.ones(2, 2)
        return maker and torch.equal(_product(one, one, one[0]), torch.full((2, 2), 3.0))
    except (OSError, AttributeError, RuntimeError):  # another system, or a PyTorch without it
        return False


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x @ weight.T + bias; the operator is PyTorch's own, and private."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        flat = grad.reshape(-1, grad.shape[-1])
        return (
            _product(grad, weight.t(), None) if needs_x else None,
            flat.t() @ x.reshape(-1, x.shape[-1]) if needs_weight else None,
            flat.sum(0) if needs_bias else None,
        )
