"""Squared norms of gradients as backward passes make them: of each micro-batch by itself, on this rank by itself.

A hook on a leaf of autograd sees what one backward pass gives it, before that is added to the gradients of earlier
micro-batches and before any exchange between ranks. All squares may be added up, whatever the order: those of one
micro-batch over parameters and pipeline stages are the square of its norm.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


class GradientWatch:
    """Adds up |g_i|^2 over what it watches while it is entered; nothing waits for the device."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, scale: float | Tensor = 1.0) -> None:
        """Watch, once entered, the parameters that are trained.

        Args:
            parameters: Leaves of autograd.
            scale: What gradients come multiplied by.
        """
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._scale = scale
        self._norms: list[Tensor] = []
        self._handles: list[Any] = []

    def squared_norm(self) -> Tensor | None:
        """Return the sum of squares so far, free of the scale: a float64 scalar on the device; None of no gradient."""
        if not self._norms:
            return None
        return (torch.stack(self._norms).double() / self._scale).square().sum()

    def __enter__(self) -> "GradientWatch":
        self._handles += [_hooked(parameter, self._see) for parameter in self._parameters]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _see(self, gradient: Tensor) -> None:
        wide = torch.promote_types(gradient.dtype, torch.float32)  # in 16 bits a norm is rounded, or infinite
        self._norms.append(torch.linalg.vector_norm(gradient.detach(), dtype=wide))


class UnshardedWatch(GradientWatch):
    """The same under FSDP2, where the leaves are the gathered weights, which are there when a unit has begun to run."""

    def __init__(self, model: nn.Module, *, scale: float | Tensor = 1.0) -> None:
        super().__init__([], scale=scale)
        self._model = model
        self._seen: dict[int, nn.Parameter] = {}

    def __enter__(self) -> "UnshardedWatch":
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                # Behind FSDP2's own, which gathers and comes first whenever it was made.
                self._handles.append(module.register_forward_pre_hook(self._begin))
        return self

    def _begin(self, module: nn.Module, args: Any) -> None:
        for parameter in module.parameters():
            if parameter.requires_grad and not isinstance(parameter, DTensor) and id(parameter) not in self._seen:
                self._seen[id(parameter)] = parameter
                self._handles.append(_hooked(parameter, self._see))


def _hooked(parameter: nn.Parameter, see: Callable[[Tensor], None]) -> Any:
    return parameter.register_hook(see)  # type: ignore[no-untyped-call]
