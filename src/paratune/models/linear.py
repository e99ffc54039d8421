"""Linear layers of float32 models on AMD processors, with matrix products of oneDNN instead of MKL.

PyTorch computes float32 products by MKL, which is slow on AMD processors. oneDNN, which PyTorch contains, too (inductor
calls it), is 1.06 to 1.3 times as fast for the shapes of BERT, in forward and for the gradient of the input. For the
gradient of the weight it is not faster, and MKL stays (benchmarks/linear.py). The arithmetic is the same.

"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

_CPUINFO = Path("/proc/cpuinfo")
NARROW = 256
"""Input and output features of a layer below which a small product is computed by MKL."""
SMALL = 1 << 24
"""Multiplications of a small product, at most. oneDNN compiles a kernel for each new shape (0.7 to 2 ms), and a packed
batch of a narrow model has a new number of tokens in nearly every step; each call also takes 10 to 20 us more."""


class OneDnnLinear(nn.Linear):
    """`nn.Linear` with oneDNN for large float32 products on the CPU; under autocast the same as `nn.Linear`."""

    def forward(self, input: Tensor) -> Tensor:
        # Small products first, because the overhead of Python matters for them. Wide layers always use oneDNN.
        if self.out_features < NARROW and self.in_features < NARROW and input.numel() * self.out_features < SMALL:
            return functional.linear(input, self.weight, self.bias)
        weight = self.weight
        is_plain = input.dtype == weight.dtype == torch.float32 and input.device.type == weight.device.type == "cpu"
        if not is_plain or input.numel() == 0 or torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        if not torch.is_grad_enabled():
            return _product(input, weight, self.bias)
        out: Tensor = _Linear.apply(input, weight, self.bias)  # type: ignore[no-untyped-call]
        return out


def use_onednn(module: nn.Module) -> int:
    """Change every `nn.Linear` inside a module to `OneDnnLinear`, where that is faster, and return their number.

    The processor's vendor decides, not a measurement: so two sessions of a run on one machine compute the same bits.
    """
    if not is_onednn_faster():
        return 0
    layers = [layer for layer in module.modules() if type(layer) is nn.Linear]
    for layer in layers:
        layer.__class__ = OneDnnLinear
    return len(layers)


@cache
def is_onednn_faster() -> bool:
    """Return whether this is an AMD processor, and this PyTorch has MKL and oneDNN's product."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return False
    try:
        is_amd = "AuthenticAMD" in _CPUINFO.read_text(encoding="utf-8", errors="replace")
        ones = torch.ones(2, 2)
        return is_amd and torch.equal(_product(ones, ones, ones[0]), torch.full((2, 2), 3.0))
    except (OSError, AttributeError, RuntimeError):  # another system, or a PyTorch without the operator
        return False


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x @ weight.T + bias by a private operator of PyTorch."""
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
