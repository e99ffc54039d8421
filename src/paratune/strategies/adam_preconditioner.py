"""Divides gradients as AdamW does, for the preconditioned estimate of the gradient noise scale."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from paratune.strategies.protocol import UnavailableEstimate

SHARDED = UnavailableEstimate(
    "sharded_states",
    "no process has the whole second moments of its weights: the strategy shards the optimizer states, or its "
    "watch_gradients gives no optimizer; train with single, ddp, pipeline or DeepSpeed stage 0",
)


MIN_STEPS = 5
"""Steps before which v is too uncertain, as in AdaptDL."""


class AdamPreconditioner:
    """P = 1 / (sqrt(v / (1 - beta2^t)) + eps) for each weight, with v and t from before the step; never waits.

    v from before the step does not depend on the gradient of the step, so that E|P g|^2 has the same two unknowns as
    E|g|^2. P must not be 1 / eps where v is unknown, because few such numbers would outweigh all others: it is 0 for
    embeddings, whose rows seldom have a gradient, and for a number with v = 0, which had none yet.

    Source: `AdamGradientNoiseScale` of AdaptDL, since version 0.2.8, which has 1 / eps there, and P = 1 before step 5;
        Qiao et al., Pollux, OSDI 2021, section 3.1.
    """

    def __init__(
        self,
        optimizer: AdamW,
        model: nn.Module,
        parameters: Iterable[nn.Parameter],
        *,
        scale: float | Tensor = 1.0,
        num_copies: int = 1,
    ) -> None:
        """Store the settings; `grad` is multiplied by `scale` before the step; `num_copies` ranks have the weights."""
        groups = [(group, parameter) for group in optimizer.param_groups for parameter in group["params"]]
        self._settings = {id(parameter): (group["betas"][1], group["eps"]) for group, parameter in groups}
        self._optimizer = optimizer
        embeddings = _embeddings(model)
        self._parameters = [p for p in parameters if p.requires_grad and id(p) not in embeddings]
        self._included = {id(parameter) for parameter in self._parameters}
        self._scale = scale
        self._num_copies = num_copies

    def includes(self, parameter: nn.Parameter) -> bool:
        """Return whether P is not 0 for a weight."""
        return id(parameter) in self._included

    def norm(self, parameter: nn.Parameter, gradient: Tensor) -> Tensor | None:
        """Return |P g| of one gradient, a scalar on the device.

        None if the weight has no v yet, NaN before `MIN_STEPS` updates.
        """
        state: dict[str, Any] = self._optimizer.state.get(parameter, {})
        if "exp_avg_sq" not in state:
            return None
        beta2, eps = self._settings[id(parameter)]
        second_moment = state["exp_avg_sq"]
        steps = torch.as_tensor(state["step"], dtype=torch.float64, device=second_moment.device)
        correction = (1 - beta2**steps).sqrt()
        # g / (sqrt(v) / c + eps) = c g / (sqrt(v) + c eps): one temporary tensor of the size of the weight.
        wide = torch.promote_types(second_moment.dtype, torch.float32)  # a 16-bit norm is rounded or infinite
        divided = torch.threshold_(second_moment.to(wide).sqrt(), 0.0, math.inf)  # so P is 0 where v is 0
        divided.add_(correction * eps)
        torch.div(gradient.detach(), divided, out=divided)
        norm = torch.linalg.vector_norm(divided).double() * correction
        return torch.where(steps >= MIN_STEPS, norm, torch.nan)

    def whole_squared_norm(self) -> Tensor | None:
        """Return this rank's part of |P g|^2 of the step's gradient, a float64 scalar; the sum over ranks is |P g|^2.

        Call it after the gradients are reduced and before the optimizer's step. None if a weight has no v yet.
        """
        norms = [self.norm(p, p.grad) for p in self._parameters if p.grad is not None]
        known = [norm for norm in norms if norm is not None]
        if len(known) < len(norms):
            return None
        if not known:  # a stage of a pipeline without trained weights
            return torch.zeros((), dtype=torch.float64)
        return (torch.stack(known) / self._scale).square().sum() / self._num_copies


def make_preconditioner(
    optimizer: Optimizer | None,
    model: nn.Module,
    parameters: Iterable[nn.Parameter],
    *,
    scale: float | Tensor = 1.0,
    num_copies: int = 1,
) -> AdamPreconditioner | UnavailableEstimate:
    """Return the preconditioner of an optimizer, or the reason why it has none.

    The arguments are those of `AdamPreconditioner`; `optimizer` is None if this rank has shards of its states.
    """
    if optimizer is None:
        return SHARDED
    if not isinstance(optimizer, AdamW):
        name = type(optimizer).__name__
        return UnavailableEstimate("other_optimizer", f"the optimizer is {name}; this estimate is that of AdamW")
    return AdamPreconditioner(optimizer, model, parameters, scale=scale, num_copies=num_copies)


def _embeddings(model: nn.Module) -> set[int]:
    """Return the ids of weights that are only looked up; a weight tied to an output layer has dense gradients."""
    modules = list(model.modules())
    looked_up = {id(module.weight) for module in modules if isinstance(module, nn.Embedding)}
    others = [module for module in modules if not isinstance(module, nn.Embedding)]
    return looked_up - {id(parameter) for module in others for parameter in module.parameters(recurse=False)}
