"""Linear layers that use copies of their weights, alone or in one product, and inputs that are already cast.

`paratune.precision.working_weights` chooses the layers, and gives them the copies for each pass.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


class WorkingLinear(nn.Linear):
    """`nn.Linear` that uses copies of its parameters in the block of `WorkingWeights.use`."""

    copies: tuple[Tensor, Tensor | None] | None = None
    """The copies of weight and bias."""
    product: "SharedProduct | None" = None
    """Computes this layer together with others, instead of `copies`."""
    lowered: "LoweredOutput | None" = None
    """May have the input in the lower dtype."""

    def forward(self, input: Tensor) -> Tensor:
        if _is_under_autocast(input):
            if self.product is not None and self.product.copies is not None:
                return self.product.output(self, input)
            if self.copies is not None:
                return functional.linear(input if self.lowered is None else self.lowered.take(input), *self.copies)
        return super().forward(input)


def _is_under_autocast(x: Tensor) -> bool:
    """Return whether autocast is on: models switch it off for float32 operations. Meta tensors count as autocast."""
    return x.device.type == "meta" or torch.is_autocast_enabled(x.device.type)


class LoweredOutput:
    """The last output of a module in float32 and in the lower dtype, until the next layer reads it."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._pair: tuple[Tensor, int, Tensor] | None = None

    def give(self, output: Tensor) -> Tensor:
        """Return the output of a module, and store it in the lower dtype too."""
        same: Tensor
        same, lower = _InBoth.apply(output, self._dtype)  # type: ignore[no-untyped-call]
        self._pair = same, same._version, lower
        return same

    def take(self, input: Tensor) -> Tensor:
        """Return a layer's input in the lower dtype if it is stored, otherwise unchanged; autocast then casts it."""
        if self._pair is None or self._pair[0] is not input or self._pair[1] != input._version:
            return input
        lower, self._pair = self._pair[2], None
        return lower

    def clear(self) -> None:
        self._pair = None


class _InBoth(torch.autograd.Function):
    """Returns a float32 tensor and its cast; one kernel adds their gradients, without a cast of the lower one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        # The same memory, but not a view for autograd, which would forbid changes in place.
        return torch.ops.aten._unsafe_view(x, x.shape), x.to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, lower: Tensor | None) -> tuple[Tensor | None, None]:
        if lower is None:
            return grad, None
        return (lower.float() if grad is None else torch.add(grad, lower)), None


class SharedProduct:
    """The outputs of several layers for the same input, computed in one product when the first layer is called."""

    def __init__(self, layers: Sequence[WorkingLinear]) -> None:
        self.layers = tuple(layers)
        self.copies: tuple[Tensor, Tensor | None] | None = None
        """The copies of the weights, concatenated along the outputs, and of the biases."""
        self._sizes = [layer.out_features for layer in layers]
        self._numbers = {id(layer): number for number, layer in enumerate(layers)}
        self._input: tuple[Tensor, int] | None = None
        self._outputs: dict[int, Tensor] = {}

    def output(self, layer: WorkingLinear, input: Tensor) -> Tensor:
        """Return the output of `layer` for `input`."""
        number = self._numbers[id(layer)]
        is_known = self._input is not None and self._input[0] is input and self._input[1] == input._version
        if not is_known or number not in self._outputs:
            assert self.copies is not None
            self._input = input, input._version
            lowered = self.layers[0].lowered
            whole = functional.linear(input if lowered is None else lowered.take(input), *self.copies)
            # Not views for autograd: like other outputs of layers they may be changed in place.
            self._outputs = dict(enumerate(torch.unsafe_split_with_sizes(whole, self._sizes, dim=-1)))
        output = self._outputs.pop(number)
        if not self._outputs:
            self._input = None
        return output

    def clear(self) -> None:
        self.copies, self._input, self._outputs = None, None, {}
