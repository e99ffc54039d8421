"""Counts and writes the steps of a Trainer as `step` events, without waiting for the device inside a step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paratune.engine.memory import peak_memory
from paratune.engine.phases import PhaseClock
from paratune.engine.recorder import time_values
from paratune.records import EventLog
from paratune.strategies.process_group import reduce_over_ranks


@dataclass(frozen=True)
class TrainerPlace:
    """The place of this process among those of the Trainer."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device


@dataclass
class BatchCounts:
    """Counts over the micro-batches of a step; None where a batch does not show it."""

    num_samples: int | None = 0
    num_tokens: Tensor | int | None = 0
    """Tensor on the device of the batches."""
    num_padded_tokens: int | None = 0

    def add(self, batch: Any) -> None:
        """Add a batch of the data loader.

        Samples are rows of the first tensor; tokens are the sum of `attention_mask`; padded tokens are its size.
        """
        values = batch if isinstance(batch, Mapping) else {}
        rows = next((len(value) for value in values.values() if isinstance(value, Tensor) and value.ndim), None)
        mask, inputs = (values.get(name) for name in ("attention_mask", "input_ids"))
        padded = inputs.numel() if isinstance(inputs, Tensor) else None
        # The sum of a mask for pairs of tokens, (B, S, S), is not a number of tokens.
        tokens = mask.sum() if isinstance(mask, Tensor) and mask.numel() == padded else None
        self.num_samples = _sum(self.num_samples, rows)
        self.num_tokens = _sum(self.num_tokens, tokens)
        self.num_padded_tokens = _sum(self.num_padded_tokens, padded)


@dataclass
class TrainerStep:
    """A step that is in progress, or has ended and is not written yet."""

    step: int = 0
    epoch: float = 0.0
    learning_rate: float | None = None
    loss: Tensor | None = None
    """Of this rank, summed over its micro-batches; scaled by `loss_scale`."""
    counts: BatchCounts = field(default_factory=BatchCounts)
    loss_scale: float | None = None
    skipped: bool = False
    grad_norm: float | None = None
    """Set by the Trainer's log."""


class StepLog:
    """Collects steps and writes `log_every` at a time; losses and counts stay on the device until then."""

    def __init__(
        self, events: EventLog, place: TrainerPlace, clock: PhaseClock, *, warmup_steps: int, log_every: int
    ) -> None:
        self._events, self._place, self._clock = events, place, clock
        self._warmup_left, self._log_every = warmup_steps, log_every
        self._steps: list[TrainerStep] = []
        self.num_steps = 0

    def add(self, step: TrainerStep) -> None:
        """End the step of the clock, after writing earlier steps if there are `log_every`. Collective.

        The newest step stays in memory, because the Trainer logs its gradient norm after the step.
        """
        if len(self._steps) >= self._log_every:
            self.write()
        self._clock.end_step()
        self._steps.append(step)
        self.num_steps += 1

    def set_grad_norm(self, grad_norm: float) -> None:
        """Set the gradient norm of the newest step."""
        if self._steps:
            self._steps[-1].grad_norm = grad_norm

    def write(self) -> None:
        """Write the collected steps. Collective."""
        steps, self._steps = self._steps, []
        if not steps:
            return
        device = self._place.device
        unknown = torch.tensor(float("nan"), dtype=torch.float64, device=device)
        # One reduction and two copies from the device for all steps.
        own = [unknown if step.loss is None else step.loss.double() / (step.loss_scale or 1.0) for step in steps]
        losses = (reduce_over_ranks(torch.stack(own).cpu(), "sum") / self._place.world_size).tolist()
        counted = [step.counts.num_tokens for step in steps]
        tokens = torch.stack([torch.as_tensor(-1 if count is None else count, device=device) for count in counted])
        memory_bytes = peak_memory(device)
        for step, times, loss, num_tokens in zip(steps, self._clock.take(), losses, tokens.tolist(), strict=True):
            scaled = {} if step.loss_scale is None else {"loss_scale": step.loss_scale, "skipped": step.skipped}
            self._events.add(
                "step",
                step=step.step,
                epoch=round(step.epoch, 6),
                loss=loss,
                grad_norm=step.grad_norm,
                learning_rate=step.learning_rate,
                data_rank=self._place.rank,
                num_samples=step.counts.num_samples,
                num_tokens=None if num_tokens < 0 else int(num_tokens),
                num_padded_tokens=step.counts.num_padded_tokens,
                **time_values(times),
                memory_bytes=memory_bytes,
                warmup=self._warmup_left > 0,
                **scaled,
            )
            self._warmup_left = max(0, self._warmup_left - 1)
        self._events.flush()


def _sum(total: Any, value: Any) -> Any:
    return None if total is None or value is None else total + value
