"""The loss scale of DeepSpeed's own fp16 mode, which its optimizer keeps: what checkpoints and event logs need of it.

Its rule is not that of `loss_scale.LossScaler`: the first overflow since the last growth costs a step and leaves the
scale as it is (`hysteresis` 2), later ones halve it, and it doubles after 1,000 good steps in a row.

Source: DeepSpeed 0.19.8, runtime/fp16/loss_scaler.py, `DynamicLossScaler`; runtime/precision_config.py.
"""

from typing import Any

import torch
from torch import Tensor

from paratune.errors import NotFiniteError

_FIELDS = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""What `DynamicLossScaler` changes from step to step."""
PREFIX = "deepspeed_loss_scale."


class EngineScale:
    """The loss scale of an engine; the same on every rank.

    Args:
        zero: The engine's optimizer, of stages 1 to 3.
    """

    def __init__(self, zero: Any) -> None:
        self._zero = zero
        self._scaler = zero.loss_scaler
        # It would raise a plain Exception, for which the other ranks wait.
        self._scaler.raise_error_at_min_scale = False
        self.last_scale = self.scale
        """What the loss of the last step was multiplied by."""

    @property
    def scale(self) -> float:
        """What the loss of the next step is multiplied by."""
        return float(self._scaler.cur_scale)

    def begin(self) -> None:
        """Remember the scale of the step that is about to be taken."""
        self.last_scale = self.scale

    def end(self) -> None:
        """Look at how the step went.

        Raises:
            NotFiniteError: There was an overflow at the smallest scale.
        """
        if self._zero.overflow and self.last_scale <= self._scaler.min_scale:
            raise NotFiniteError(
                f"precision: fp16: the gradients are not finite even with DeepSpeed's smallest loss scale of "
                f"{self._scaler.min_scale:g}: what overflows is the forward pass, or the weights have diverged. Use "
                "precision: bf16 with strategy.param_dtype: bf16, or leave strategy.param_dtype out, or a smaller "
                "train.learning_rate",
                code="train.fp16_overflow",
                key="precision",
            )

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint has to hold, by name."""
        return {
            f"{PREFIX}{name}": torch.tensor(float(getattr(self._scaler, name)), dtype=torch.float64) for name in _FIELDS
        }

    def load(self, name: str, value: Tensor) -> None:
        """Take over one value of `state`; others are not known here, and left."""
        field = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and field in _FIELDS:
            number = float(value)
            setattr(self._scaler, field, number if field == "cur_scale" else int(number))
