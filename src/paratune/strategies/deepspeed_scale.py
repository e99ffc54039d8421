"""Access to the loss scale of DeepSpeed's own fp16 mode, for checkpoints and event logs.

Its rule differs from `loss_scale.LossScaler`: the first overflow after the last growth skips a step and keeps the scale
(`hysteresis` 2), later overflows halve it, and it doubles after 1,000 good steps in a row.

Source: DeepSpeed 0.19.8, runtime/fp16/loss_scaler.py, `DynamicLossScaler`; runtime/precision_config.py.
"""

from typing import Any

import torch
from torch import Tensor

from paratune.errors import NotFiniteError

_FIELDS = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""The attributes of `DynamicLossScaler` that change from step to step."""
PREFIX = "deepspeed_loss_scale."


class EngineScale:
    """The loss scale of an engine, from its optimizer of stages 1 to 3; the same on every rank."""

    def __init__(self, zero: Any) -> None:
        self._zero = zero
        self._scaler = zero.loss_scaler
        # Otherwise it raises a plain Exception on this rank while the other ranks wait; `end` raises on all.
        self._scaler.raise_error_at_min_scale = False
        self.last_scale = self.scale
        """The factor by which the loss of the last step was multiplied."""

    @property
    def scale(self) -> float:
        """The factor by which the loss of the next step is multiplied."""
        return float(self._scaler.cur_scale)

    def begin(self) -> None:
        """Store the scale before a step."""
        self.last_scale = self.scale

    def end(self) -> None:
        """Check the overflow flag after a step.

        Raises:
            NotFiniteError: The gradients overflowed at the smallest scale.
        """
        if self._zero.overflow and self.last_scale <= self._scaler.min_scale:
            raise NotFiniteError(
                f"precision: fp16: the gradients are not finite even with DeepSpeed's smallest loss scale of "
                f"{self._scaler.min_scale:g}: the forward pass overflows, or the weights have diverged. Use "
                "precision: bf16 with strategy.param_dtype: bf16, or leave strategy.param_dtype out, or a smaller "
                "train.learning_rate",
                code="train.fp16_overflow",
                key="precision",
            )

    def state(self) -> dict[str, Tensor]:
        """Return the values for a checkpoint by name."""
        return {
            f"{PREFIX}{name}": torch.tensor(float(getattr(self._scaler, name)), dtype=torch.float64) for name in _FIELDS
        }

    def load(self, name: str, value: Tensor) -> None:
        """Load a value of `state`; names of other strategies are ignored."""
        field = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and field in _FIELDS:
            number = float(value)
            setattr(self._scaler, field, number if field == "cur_scale" else int(number))
