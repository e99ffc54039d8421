"""Dynamic loss scaling, and what happens without it to gradients that are not finite.

fp16 gradients are multiplied by a scale, so that small ones do not become 0.

PyTorch's GradScaler searches all gradients for infinities. Here the norm of the whole model's gradient, which every
strategy computes for clipping, is enough: it is not finite if any gradient is not finite, and it is the same number on
every rank, so all ranks decide alike without communication. Scale, counter and decision stay on the device, so that
nothing waits for it.
"""

import torch
from torch import Tensor

from paratune.precision import Precision

INITIAL_SCALE = 2.0**16
GROWTH_FACTOR = 2.0
BACKOFF_FACTOR = 0.5
GROWTH_INTERVAL = 2000
"""Steps in a row without an overflow after which the scale grows.

Source of the four: the defaults of torch.amp.GradScaler. The method: Micikevicius et al., Mixed Precision Training,
ICLR 2018, section 3.2. All scales are powers of two, so scaling and unscaling round nothing."""


class LossScaler:
    """The scale and its counter of good steps; the same on every rank."""

    def __init__(self) -> None:
        self.scale = torch.tensor(INITIAL_SCALE)
        """The factor by which the loss of the next step is multiplied: a float32 scalar, after the first update on the
        device of the norm."""
        self.last_scale = self.scale
        self._num_good_steps = torch.tensor(0, dtype=torch.int32)
        """Steps since the last overflow or growth."""

    @torch.no_grad()
    def unscale(self, norm: Tensor) -> tuple[Tensor, Tensor]:
        """Divide the norm of a scaled gradient by the scale, and check that it is finite.

        Returns:
            The norm without the scale, and a float32 scalar: 1 if the norm is not finite, otherwise 0. Both on the
            device of `norm`.
        """
        self._move_to(norm.device)
        unscaled = norm.detach().clone()
        overflow = torch.zeros((), device=norm.device)
        torch._amp_foreach_non_finite_check_and_unscale_([unscaled], overflow, self.scale.reciprocal())
        return unscaled, overflow

    def update(self, overflow: Tensor) -> None:
        """Halve the scale after an overflow, a result of `unscale`; double it after `GROWTH_INTERVAL` good steps."""
        self._move_to(overflow.device)
        self.last_scale = self.scale.clone()
        torch._amp_update_scale_(
            self.scale, self._num_good_steps, overflow, GROWTH_FACTOR, BACKOFF_FACTOR, GROWTH_INTERVAL
        )

    def state(self) -> dict[str, Tensor]:
        """Return the values for a checkpoint by name."""
        return {"loss_scale": self.scale.double(), "loss_scale_good_steps": self._num_good_steps.long()}

    def load(self, name: str, value: Tensor) -> None:
        """Load a value of `state`; names of other strategies are ignored."""
        if name == "loss_scale":
            self.scale = value.detach().to(self.scale.device, torch.float32, copy=True)
        elif name == "loss_scale_good_steps":
            self._num_good_steps = value.detach().to(self._num_good_steps.device, torch.int32, copy=True)

    def _move_to(self, device: torch.device) -> None:
        if self.scale.device != device:
            self.scale, self._num_good_steps = self.scale.to(device), self._num_good_steps.to(device)


class UpdateStop:
    """Stops the updates of a run without a loss scale from the first norm on that is not finite.

    The host reads losses and norms steps later, and ends the run: until then weights and states must not change. The
    decision is the same on every rank, as the norm is, and stays on the device.
    """

    def __init__(self) -> None:
        self.spoiled = torch.zeros(())
        """0, or NaN once a norm was not finite: a scalar, after the first norm on its device."""

    @torch.no_grad()
    def add(self, norm: Tensor) -> Tensor:
        """Add the norm of a step, and return 1 if the updates have stopped, otherwise 0: a float32 scalar."""
        # Zero times a number that is not finite is NaN, and NaN stays NaN.
        self.spoiled = torch.add(self.spoiled.to(norm.device), norm, alpha=0)
        return self.spoiled.isnan().float()


def spoil_gradient(loss: Tensor, stop: UpdateStop | None = None) -> None:
    """Let the gradients of a loss be NaN if it is not finite, or if `stop` has stopped the updates.

    A loss can be infinite with finite gradients. The sum over ranks makes the norm NaN on every rank.
    """
    value = loss.detach() if stop is None else loss.detach() + stop.spoiled.to(loss.dtype)
    loss.register_hook(lambda gradient: torch.add(gradient, value, alpha=0))  # type: ignore[no-untyped-call]


def overflow_of(norm: Tensor) -> Tensor:
    """Return 1 if an unscaled norm is not finite, otherwise 0: a float32 scalar on the norm's device."""
    return norm.isfinite().logical_not().float()


def make_scaler(precision: Precision) -> LossScaler | None:
    """Return the scaler of a policy that scales the loss; None for others."""
    return LossScaler() if precision.scales_loss else None


def scale_of(scaler: LossScaler | None) -> Tensor | float:
    """Return the factor by which the gradients of the current step are multiplied."""
    return 1.0 if scaler is None else scaler.scale
