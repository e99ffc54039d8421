"""Dynamic loss scaling: gradients of fp16 are multiplied by a scale, so that small ones do not become 0.

PyTorch's own GradScaler looks through all gradients for infinities. Here every strategy computes the norm of the whole
model's gradient anyhow, which is the same number on every rank and not finite when anything in it is not: so no rank
has to be asked, and all of them decide alike. Scale, counter and decision stay on the device: nothing waits for it.
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
    """The scale, and what it has seen; the same on every rank."""

    def __init__(self) -> None:
        self.scale = torch.tensor(INITIAL_SCALE)
        """What the loss of the next step is multiplied by: a float32 scalar, from the first update on on the device of
        the norm."""
        self.last_scale = self.scale
        """What that of the last step was."""
        self._num_good_steps = torch.tensor(0, dtype=torch.int32)
        """Steps since the last overflow or growth."""

    @torch.no_grad()
    def unscale(self, norm: Tensor) -> tuple[Tensor, Tensor]:
        """Look at the norm of a step's scaled gradient.

        Args:
            norm: A scalar of any floating dtype.

        Returns:
            The norm free of the scale, and a float32 scalar: 1 where the norm is not finite, 0 where the step can be
            taken. Both on the device of `norm`.
        """
        self._bring_to(norm.device)
        unscaled = norm.detach().clone()
        overflow = torch.zeros((), device=norm.device)
        torch._amp_foreach_non_finite_check_and_unscale_([unscaled], overflow, self.scale.reciprocal())
        return unscaled, overflow

    def update(self, overflow: Tensor) -> None:
        """Take note of a step: halve the scale after an overflow, double it after `GROWTH_INTERVAL` good steps.

        Args:
            overflow: As from `unscale`.
        """
        self._bring_to(overflow.device)
        self.last_scale = self.scale.clone()
        torch._amp_update_scale_(
            self.scale, self._num_good_steps, overflow, GROWTH_FACTOR, BACKOFF_FACTOR, GROWTH_INTERVAL
        )

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint has to hold, by name."""
        return {"loss_scale": self.scale.double(), "loss_scale_good_steps": self._num_good_steps.long()}

    def load(self, name: str, value: Tensor) -> None:
        """Take over one value of `state`; others are not known here, and left."""
        if name == "loss_scale":
            self.scale = value.detach().to(self.scale.device, torch.float32, copy=True)
        elif name == "loss_scale_good_steps":
            self._num_good_steps = value.detach().to(self._num_good_steps.device, torch.int32, copy=True)

    def _bring_to(self, device: torch.device) -> None:
        if self.scale.device != device:
            self.scale, self._num_good_steps = self.scale.to(device), self._num_good_steps.to(device)


def overflow_of(norm: Tensor) -> Tensor:
    """Return 1 where a norm that was unscaled already is not finite, else 0: a float32 scalar on its device."""
    return norm.isfinite().logical_not().float()


def make_scaler(precision: Precision) -> LossScaler | None:
    """Return the scaler of a policy that needs one."""
    return LossScaler() if precision.scales_loss else None


def scale_of(scaler: LossScaler | None) -> Tensor | float:
    """Return what the gradients of the step that is being computed are multiplied by."""
    return 1.0 if scaler is None else scaler.scale
