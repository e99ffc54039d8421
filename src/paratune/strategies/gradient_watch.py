"""Measures squared norms of gradients during backward passes, separately for each micro-batch and rank.

A hook on a leaf of autograd gets the gradient of one backward pass, before it is added to the gradients of earlier
micro-batches and reduced over ranks. The squared norm of a micro-batch's gradient is the sum of the squares over
parameters and pipeline stages, so all squares are simply added, in any order.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from paratune.strategies.adam_preconditioner import SHARDED, AdamPreconditioner
from paratune.strategies.protocol import UnavailableEstimate


class GradientWatch:
    """Sums |g_i|^2 of the watched parameters within its `with` block; never waits for the device. See `protocol.Watch`.

    The sums are those of gradients without the scale.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        scale: float | Tensor = 1.0,
        gathering: Iterable[Any] = (),
        preconditioner: AdamPreconditioner | UnavailableEstimate | None = None,
    ) -> None:
        """Create a watch of trained parameters; it measures within its `with` block.

        Args:
            parameters: Leaves of autograd.
            scale: The factor by which gradients are multiplied.
            gathering: FSDP2 modules, whose parameters are leaves only while they are gathered.
            preconditioner: That of `make_preconditioner`. None: this rank has only shards of the optimizer's states.
        """
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._scale = scale
        self._gathering = list(gathering)
        self._gathered: dict[int, nn.Parameter] = {}
        self._norms: list[Tensor] = []
        self._preconditioner = SHARDED if preconditioner is None else preconditioner
        self._preconditioned_norms: list[Tensor | None] = []
        self._handles: list[Any] = []

    def squared_norm(self) -> Tensor | None:
        return _squared_sum(self._norms, self._scale) if self._norms else None

    @property
    def why_not_preconditioned(self) -> UnavailableEstimate | None:
        return self._preconditioner if isinstance(self._preconditioner, UnavailableEstimate) else None

    def preconditioned_squared_norms(self) -> tuple[Tensor, Tensor] | None:
        if isinstance(self._preconditioner, UnavailableEstimate):
            return None
        whole = self._preconditioner.whole_squared_norm()
        norms = [norm for norm in self._preconditioned_norms if norm is not None]
        if whole is None or len(norms) < len(self._preconditioned_norms):
            return None
        return _squared_sum(norms, self._scale) if norms else torch.zeros_like(whole), whole

    def __enter__(self) -> "GradientWatch":
        self._handles += [_hooked(parameter, partial(self._add, parameter)) for parameter in self._parameters]
        # FSDP2 registers its pre-forward hook, which gathers the weights, with `prepend`: it runs before this hook.
        self._handles += [module.register_forward_pre_hook(self._hook_gathered) for module in self._gathering]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook_gathered(self, module: nn.Module, args: Any) -> None:
        for parameter in module.parameters():
            is_gathered = parameter.requires_grad and not isinstance(parameter, DTensor)
            if is_gathered and id(parameter) not in self._gathered:
                self._gathered[id(parameter)] = parameter
                self._handles.append(_hooked(parameter, partial(self._add, parameter)))

    def _add(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        wide = torch.promote_types(gradient.dtype, torch.float32)  # a 16-bit norm is rounded or infinite
        self._norms.append(torch.linalg.vector_norm(gradient.detach(), dtype=wide))
        preconditioner = self._preconditioner
        if isinstance(preconditioner, AdamPreconditioner) and preconditioner.includes(parameter):
            self._preconditioned_norms.append(preconditioner.norm(parameter, gradient))


def _squared_sum(norms: list[Tensor], scale: float | Tensor) -> Tensor:
    return (torch.stack(norms).double() / scale).square().sum()


def _hooked(parameter: nn.Parameter, hook: Callable[[Tensor], None]) -> Any:
    return parameter.register_hook(hook)  # type: ignore[no-untyped-call]
