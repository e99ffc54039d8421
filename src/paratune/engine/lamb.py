"""LAMB: Adam's step, with a length that is proportional to the norm of each weight matrix.

This process may have the whole matrix or a shard of FSDP2 (a `DTensor`); norms are those of the whole matrix.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

PART_NUMBERS = 2**22
"""Parameters with at most this many numbers are updated together, so that the memory of an update is bounded."""


class Lamb(Optimizer):
    """LAMB with bias correction and with phi(z) = z.

        m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
        r = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)
        x = x - lr |x| / |r + decay x| (r + decay x)

    The trust ratio |x| / |r + decay x| is one number for each parameter. It is 1 if one of the two norms is 0, and in
    groups with `adapts: False`, such as biases and norms. The paper does not define these cases; this follows its
    authors' code.

    `step` overwrites the gradients with the updates.

    Source: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, ICLR 2020
        (arXiv:1904.00962), algorithm 2; google-research/albert, lamb_optimizer.py (`exclude_from_layer_adaptation`).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        adapts: bool = True,
    ) -> None:
        """Create the optimizer; `lr` is relative to the norm of each matrix, `betas` are at least 0 and below 1."""
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapts": adapts}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient. Collective if they are sharded."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            for part in _in_parts(trained):
                self._gradients_to_updates(part, group)
            if group["adapts"]:
                _multiply_by_trust_ratios(trained)
            if trained:
                torch._foreach_add_(_locals(trained), _locals(_gradients(trained)), alpha=-group["lr"])
        return loss

    def _gradients_to_updates(self, parameters: Sequence[nn.Parameter], group: dict[str, Any]) -> None:
        """Update the moments, and overwrite each gradient with r + decay x."""
        beta1, beta2 = group["betas"]
        states = [self._parameter_state(parameter) for parameter in parameters]
        weights, gradients = _locals(parameters), _locals(_gradients(parameters))
        first, second = (_locals([state[name] for state in states]) for name in ("exp_avg", "exp_avg_sq"))
        # torch._foreach_*: a few kernel launches for all tensors, not one for each of hundreds of small tensors.
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        steps = [float(state["step"].add_(1)) for state in states]
        denominators = torch._foreach_sqrt(second)
        torch._foreach_div_(denominators, [math.sqrt(1 - beta2**t) for t in steps])
        torch._foreach_add_(denominators, group["eps"])
        # The updates overwrite the gradients, which are not needed any more, so that they need no further memory.
        updates = gradients
        torch._foreach_copy_(updates, weights)
        torch._foreach_mul_(updates, group["weight_decay"])
        torch._foreach_addcdiv_(updates, first, denominators, [1 / (1 - beta1**t) for t in steps])

    def _parameter_state(self, parameter: nn.Parameter) -> dict[str, Any]:
        """Return the states under AdamW's names; the step count is on the host, which reads it in each step."""
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        elif state["step"].device.type != "cpu":  # after a checkpoint was loaded
            state["step"] = state["step"].cpu()
        return state


def _multiply_by_trust_ratios(parameters: Sequence[nn.Parameter]) -> None:
    """Multiply each update, which is stored in the gradient, by |x| over its own norm."""
    if not parameters:
        return
    updates = _gradients(parameters)
    weight_norms, update_norms = whole_norms([*parameters, *updates]).chunk(2)
    ratios = torch.where((weight_norms > 0) & (update_norms > 0), weight_norms / update_norms, 1.0)
    torch._foreach_mul_(_locals(updates), list(ratios.unbind()))


def whole_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of each tensor, (len(tensors),), on their device. Collective if they are sharded.

    All tensors are on one device. The norm of a sharded tensor is that of the whole tensor on all ranks.
    """
    norms = torch.stack(torch._foreach_norm(_locals(tensors)))
    sharded: dict[Any, list[int]] = defaultdict(list)
    for number, tensor in enumerate(tensors):
        if isinstance(tensor, DTensor):
            sharded[tensor.device_mesh, tensor.placements].append(number)
    for (mesh, placements), numbers in sharded.items():
        # Offloaded shards are on the host, but the all-reduce is on the device. In float64 no square overflows.
        squares = norms[numbers].to(mesh.device_type, torch.float64).square()
        for dimension, placement in enumerate(placements):
            if placement.is_shard():
                dist.all_reduce(squares, group=mesh.get_group(dimension))
        norms[numbers] = squares.sqrt().to(norms)
    return norms


def _in_parts(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield the parameters in lists with at most PART_NUMBERS numbers; a larger parameter is alone in its list."""
    part: list[nn.Parameter] = []
    num_values = 0
    for parameter in parameters:
        size = parameter.to_local().numel() if isinstance(parameter, DTensor) else parameter.numel()
        if part and num_values + size > PART_NUMBERS:
            yield part
            part, num_values = [], 0
        part.append(parameter)
        num_values += size
    if part:
        yield part


def _gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _locals(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return this rank's part of each tensor, without a copy."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
