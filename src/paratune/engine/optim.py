"""The optimizer and its learning-rate schedule.

The schedule is a function of the step alone, so there is no scheduler state to save.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from paratune.config.sections import Train
from paratune.engine.lamb import Lamb


def schedule_factor(schedule: str, step: int, *, num_steps: int, num_warmup_steps: int) -> float:
    """Return what the peak learning rate is multiplied by at a step.

    Args:
        schedule: linear, cosine or constant.
        step: Steps already taken, from 0.
        num_steps: Steps of the whole run.
        num_warmup_steps: Steps in which the factor rises linearly from 0.

    Source: the definitions of transformers' get_linear_schedule_with_warmup, get_cosine_schedule_with_warmup and
        get_constant_schedule_with_warmup, so that settings carry over.
    """
    if step < num_warmup_steps:
        return step / max(1, num_warmup_steps)
    if schedule == "constant":
        return 1.0
    progress = (step - num_warmup_steps) / max(1, num_steps - num_warmup_steps)
    if schedule == "linear":
        return max(0.0, 1.0 - progress)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))


def warmup_steps(train: Train, num_steps: int) -> int:
    """Return the number of warm-up steps that `train` asks for; a ratio is rounded up, as the Trainer does."""
    if train.warmup_ratio is not None:
        return math.ceil(train.warmup_ratio * num_steps)
    return train.warmup_steps or 0


class OptimizerFactory:
    """Makes AdamW or LAMB for whatever parameters a strategy holds, and sets the learning rate of all that it made."""

    def __init__(self, train: Train, num_steps: int) -> None:
        self._train = train
        self._num_steps = num_steps
        self._num_warmup_steps = warmup_steps(train, num_steps)
        self._optimizers: list[Optimizer] = []

    def __call__(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
        """Return a fused AdamW, or LAMB, over the parameters that are trained.

        Biases and norms (one dimension) do not decay, and LAMB does not adapt their steps.
        """
        trained = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad]
        decayed = [parameter for name, parameter in trained if parameter.ndim > 1 and not name.endswith(".bias")]
        kept = [parameter for name, parameter in trained if parameter.ndim <= 1 or name.endswith(".bias")]
        groups: list[dict[str, Any]] = [
            {"params": decayed, "weight_decay": self._train.weight_decay},
            {"params": kept, "weight_decay": 0.0},
        ]
        if self._train.optimizer == "lamb":
            for group, adapts in zip(groups, (True, False), strict=True):
                group["adapts"] = adapts
        optimizer = self._make([group for group in groups if group["params"]])
        self._optimizers.append(optimizer)
        return optimizer

    def _make(self, groups: list[dict[str, Any]]) -> Optimizer:
        # A tensor would be needed for CUDA graphs; a float keeps the fused kernel's argument on the host.
        rate, eps = self._train.learning_rate, self._train.eps
        betas = (self._train.betas[0], self._train.betas[1])
        if self._train.optimizer == "lamb":
            return Lamb(groups, lr=rate, betas=betas, eps=eps)
        devices = {parameter.device.type for group in groups for parameter in group["params"]}
        return AdamW(groups, lr=rate, betas=betas, eps=eps, fused=devices <= {"cpu", "cuda"})

    def set_learning_rate(self, step: int) -> float:
        """Set the rate for the update after `step` updates, and return it."""
        factor = schedule_factor(
            self._train.schedule, step, num_steps=self._num_steps, num_warmup_steps=self._num_warmup_steps
        )
        rate = self._train.learning_rate * factor
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        return rate

    def clear_gradients(self) -> None:
        """Drop what a pass that was broken off has left in the gradients."""
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed dropout as a function of (seed, step, rank) alone.

    A run that is resumed then draws what an undisturbed one would have drawn, without any random state on disk.
    """
    # SplitMix64's mixing constants keep neighbouring steps and ranks far apart.
    value = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB) % 2**63
    # torch.manual_seed looks for every kind of accelerator that there is, and takes half a millisecond.
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(value)
