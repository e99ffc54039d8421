"""Dynamic loss scaling: gradients of fp16 are made larger on their way, so that small ones do not vanish.

PyTorch's own GradScaler looks through all gradients for infinities. Here every strategy computes the norm of the whole
model's gradient anyhow, which is the same number on every rank and not finite when anything in it is not: so no rank
has to be asked, and all of them decide alike.
"""

import logging

import torch
from torch import Tensor

from paratune.errors import NotFiniteError
from paratune.precision import Precision

INITIAL_SCALE = 2.0**16
GROWTH_FACTOR = 2.0
BACKOFF_FACTOR = 0.5
GROWTH_INTERVAL = 2000
"""Steps in a row without an overflow after which the scale grows.

Source of the four: the defaults of torch.amp.GradScaler. The method: Micikevicius et al., Mixed Precision Training,
ICLR 2018, section 3.2. All scales are powers of two, so scaling and unscaling round nothing."""

log = logging.getLogger(__name__)


class LossScaler:
    """The scale, and what it has seen; the same on every rank."""

    def __init__(self, *, speaks: bool) -> None:
        self.scale = INITIAL_SCALE
        """What the loss of the next step is multiplied by."""
        self.last_scale = INITIAL_SCALE
        """What that of the last step was."""
        self.num_good_steps = 0
        """Steps since the last overflow or growth."""
        self._speaks = speaks
        self._has_spoken = False

    def update(self, norm: Tensor) -> bool:
        """Take note of the norm of a step's gradient; return whether the step can be taken.

        It waits for the device: whether to update the weights is the host's decision.

        Raises:
            NotFiniteError: There was an overflow with a scale of 1, below which scaling is of no use.
        """
        self.last_scale = self.scale
        if bool(torch.isfinite(norm)):
            self.num_good_steps += 1
            if self.num_good_steps == GROWTH_INTERVAL:
                self.scale *= GROWTH_FACTOR
                self.num_good_steps = 0
            return True
        self.scale *= BACKOFF_FACTOR
        self.num_good_steps = 0
        if self.scale < 1:
            raise NotFiniteError(
                "precision: fp16: the gradients are not finite even with a loss scale of 1: what overflows is the "
                "forward pass, or the weights have diverged. Use precision: bf16 or fp32 (docs/precision.md#fp16), or "
                "a smaller train.learning_rate"
            )
        if self._speaks and not self._has_spoken:
            log.info(
                "gradients overflowed in fp16 with a loss scale of %g: this step is skipped, the next one takes %g. "
                "That is usual in the first steps; further ones are marked `skipped` in the event log",
                self.last_scale,
                self.scale,
            )
            self._has_spoken = True
        return False

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint has to hold, by name."""
        return {
            "loss_scale": torch.tensor(self.scale, dtype=torch.float64),
            "loss_scale_good_steps": torch.tensor(self.num_good_steps),
        }

    def load(self, name: str, value: Tensor) -> None:
        """Take over one value of `state`; others are not known here, and left."""
        if name == "loss_scale":
            self.scale = float(value)
        elif name == "loss_scale_good_steps":
            self.num_good_steps = int(value)


def make_scaler(precision: Precision, *, rank: int) -> LossScaler | None:
    """Return the scaler of a policy that needs one; rank 0 logs."""
    return LossScaler(speaks=rank == 0) if precision.scales_loss else None


def scale_of(scaler: LossScaler | None) -> float:
    """Return what the gradients of the step that is being computed are multiplied by."""
    return 1.0 if scaler is None else scaler.scale
