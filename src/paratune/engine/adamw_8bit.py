"""AdamW with moments of 8 bits: a quarter of the memory of its states.

The states are plain tensors, which a checkpoint in safetensors contains as they are, and no code is compiled.

Dimensions: `N` numbers of a parameter, `N / BLOCK_SIZE` blocks.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paratune.config.model_states import BLOCK_SIZE, PART_NUMBERS_8_BITS, has_8_bits


class AdamW8bit(Optimizer):
    """AdamW whose moments are stored as codes of a table of 256 values, with a scale for each block of 256 numbers.

        m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
        x = x - lr decay x - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)

    The step uses the moments before they are rounded to codes. A moment is off by at most half the distance of two
    values of the table, times the largest number of its block.

    Source: Dettmers et al., 8-bit Optimizers via Block-wise Quantization, ICLR 2022, sections 2.1 to 2.3; the table and
    the sizes are those of bitsandbytes and of `torchao.optim.AdamW8bit`, whose results it has.
    """

    found_inf: Tensor | None = None
    """A scalar on the device: if it is 1, a step changes neither weights nor moments. None means 0."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        """Create the optimizer for whole parameters; arguments as in `torch.optim.AdamW`."""
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        assert parameter.grad is not None
        state = self._state_of(parameter)
        state["step"] += 1
        step = float(state["step"])
        weights, gradients = parameter.view(-1), parameter.grad.reshape(-1)
        skips, decay = self.found_inf, 1 - group["lr"] * group["weight_decay"]
        if skips is not None:
            skips = skips.bool()
            # `torch.where` of two numbers is float32.
            decay = torch.full((), decay, dtype=torch.float64, device=skips.device).masked_fill_(skips, 1.0)
        for start in range(0, len(weights), PART_NUMBERS_8_BITS):
            part = slice(start, start + PART_NUMBERS_8_BITS)
            wide = torch.promote_types(gradients.dtype, torch.float32)
            gradient, (beta1, beta2) = gradients[part].to(wide), group["betas"]
            first = _read(state, "exp_avg", part, signed=True).to(wide).lerp_(gradient, 1 - beta1)
            second = _read(state, "exp_avg_sq", part, signed=False).to(wide).lerp_(gradient.square(), 1 - beta2)
            _write(state, "exp_avg", part, first, signed=True, skips=skips)
            _write(state, "exp_avg_sq", part, second, signed=False, skips=skips)
            denominator = second.sqrt_().div_((1 - beta2**step) ** 0.5).add_(group["eps"])
            update = first.div_(denominator).mul_(group["lr"] / (1 - beta1**step))
            weights[part].mul_(decay)
            weights[part].sub_(update if skips is None else update.masked_fill_(skips, 0.0))

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        """Return the states; the step count is on the host, which reads it in each step."""
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            for name, signed in (("exp_avg", True), ("exp_avg_sq", False)):
                if has_8_bits(parameter.numel()):
                    zero = int(_table(signed, parameter.device).eq(0).nonzero())
                    state[f"{name}_codes"] = torch.full_like(parameter, zero, dtype=torch.uint8)
                    state[f"{name}_scale"] = parameter.new_zeros(parameter.numel() // BLOCK_SIZE, dtype=torch.float32)
                else:
                    state[name] = torch.zeros_like(parameter)
        elif state["step"].device.type != "cpu":  # after a checkpoint was loaded
            state["step"] = state["step"].cpu()
        return state


def _read(state: dict[str, Any], name: str, part: slice, *, signed: bool) -> Tensor:
    """Return the numbers of a part of a moment, as a copy."""
    if name in state:
        return state[name].view(-1)[part].clone()  # type: ignore[no-any-return]
    codes, scales = state[f"{name}_codes"].view(-1)[part], state[f"{name}_scale"][_blocks(part)]
    values = _table(signed, codes.device)[codes.int()].view(-1, BLOCK_SIZE)
    return values.mul_(scales.unsqueeze(1)).view(-1)


def _write(
    state: dict[str, Any], name: str, part: slice, values: Tensor, *, signed: bool, skips: Tensor | None
) -> None:
    """Store the numbers of a part of a moment, unless `skips` is true."""
    if name in state:
        _store(state[name].view(-1)[part], values, skips)
        return
    blocks = values.float().view(-1, BLOCK_SIZE)
    scales = blocks.abs().amax(dim=1).clamp_min_(1e-12)
    places = torch.bucketize(blocks / scales.unsqueeze(1), _middles(signed, values.device), out_int32=True, right=True)
    _store(state[f"{name}_codes"].view(-1)[part], places.view(-1).to(torch.uint8), skips)
    _store(state[f"{name}_scale"][_blocks(part)], scales, skips)


def _store(target: Tensor, values: Tensor, skips: Tensor | None) -> None:
    target.copy_(values if skips is None else torch.where(skips, target, values))


def _blocks(part: slice) -> slice:
    return slice(part.start // BLOCK_SIZE, -(-part.stop // BLOCK_SIZE))


def dynamic_table(*, signed: bool) -> Tensor:
    """Return the 256 values of the dynamic 8-bit type, ascending, (256,), float32: from -1 or 0 to 1.

    Values of one decimal exponent are equally far from each other; small exponents have fewer values.

    Source: Dettmers, 8-Bit Approximations for Parallelism in Deep Learning, ICLR 2016, section 2; `create_dynamic_map`
        of bitsandbytes.
    """
    values = [0.0, 1.0]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (exponent if signed else exponent + 1) + 1)
        middles = (10.0 ** (exponent - 6) * ((edges[:-1] + edges[1:]) / 2)).tolist()
        values += middles + ([-value for value in middles] if signed else [])
    return torch.tensor(sorted(values))


@cache
def _table(signed: bool, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return dynamic_table(signed=signed).to(device)


@cache
def _middles(signed: bool, device: torch.device) -> Tensor:
    table = _table(signed, device)
    return (table[:-1] + table[1:]) / 2
