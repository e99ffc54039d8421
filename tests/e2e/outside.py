"""Strategies of a user, correct and wrong ones, named in configurations as outside:Class."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paratune.batch import Batch
from paratune.config.traits import TRAITS
from paratune.strategies.ddp import DDPStrategy
from paratune.strategies.fsdp import ZERO3, FSDPStrategy
from paratune.strategies.protocol import MakeOptimizer, Phases
from paratune.strategies.single import SingleStrategy

BRAKE = Path("brake")


class Refuses:
    """Accepts any option and raises its own error."""

    traits = TRAITS["single"]

    def __init__(self, **options: object) -> None:
        raise KeyError("speed")


class Slow(DDPStrategy):
    """DDP with pauses between steps, so that tests can interrupt it.

    Each step takes 50 ms more; while the file `brake` is in the working directory, steps from the fourth take 1 s more.
    """

    _steps = 0

    def optimizer_step(self, max_grad_norm: float | None) -> Tensor:
        time.sleep(0.05)
        self._steps += 1
        until = time.monotonic() + 1
        while self._steps > 3 and BRAKE.exists() and time.monotonic() < until:
            time.sleep(0.01)
        return super().optimizer_step(max_grad_norm)


class SlowStart(DDPStrategy):
    """DDP that takes 8 s to make: a signal that is repeated every 5 s comes before the first step."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        time.sleep(8)
        super().__init__(*arguments, **named)


class Longer(DDPStrategy):
    """DDP whose gradients are 5% too large."""

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor:
        loss = super().forward_backward(micro_batches, phases)
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                parameter.grad *= 1.05
        return loss


class DiesOnce(DDPStrategy):
    """DDP whose rank 1 is killed in the seventh step, but not after a restart by torchrun."""

    _steps = 0

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor:
        self._steps += 1
        if self._steps == 7 and self.layout.rank == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward_backward(micro_batches, phases)


def __getattr__(name: str) -> type[DDPStrategy]:
    """Return `FailsOnRank0`, which raises on rank 0 while the other ranks wait for it."""
    if name != "FailsOnRank0":
        raise AttributeError(name)
    if os.environ["RANK"] == "0":
        raise RuntimeError("rank 0 has no such card")
    return DDPStrategy


class _Damaged:
    """Raises on rank 1 in the third step, as for a damaged row."""

    steps = 0

    def look(self, rank: int) -> None:
        self.steps += 1
        if self.steps == 3 and rank == 1:
            raise ArithmeticError("row 17 is damaged")


class DamagedDDP(DDPStrategy):
    """DDP with a damaged row."""

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor:
        self.__dict__.setdefault("_damaged", _Damaged()).look(self.layout.rank)
        return super().forward_backward(micro_batches, phases)


class DamagedZero3(FSDPStrategy):
    """ZeRO-3 with a damaged row."""

    traits = ZERO3.traits

    def __init__(self, **arguments: Any) -> None:
        super().__init__(ZERO3, **arguments)

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor:
        self.__dict__.setdefault("_damaged", _Damaged()).look(self.layout.rank)
        return super().forward_backward(micro_batches, phases)


class _Full:
    """Simulates out of memory for more than `most` rows on the last rank, from its forward pass number `first`."""

    def __init__(self, most: int, first: int) -> None:
        self._most, self._first, self._count = most, first, 0

    def __call__(self, model: nn.Module, arguments: tuple[Any, ...]) -> None:
        # Passes of evaluations are not counted.
        self._count += torch.is_grad_enabled()
        if self._count >= self._first and len(arguments[0].index) > self._most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity")


class FullAlone(SingleStrategy):
    """One process with too little memory."""

    def __init__(self, *, most: int, first: int = 1, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._full = _Full(most, first)

    def prepare(self, model: nn.Module, blocks: Sequence[nn.Module], make_optimizer: MakeOptimizer) -> None:
        model.register_forward_pre_hook(self._full)
        super().prepare(model, blocks, make_optimizer)


class FullDDP(DDPStrategy):
    """DDP whose last rank has too little memory."""

    def __init__(self, *, most: int, first: int = 1, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._full = _Full(most, first)

    def prepare(self, model: nn.Module, blocks: Sequence[nn.Module], make_optimizer: MakeOptimizer) -> None:
        if self.layout.rank == self.layout.world_size - 1:
            model.register_forward_pre_hook(self._full)
        super().prepare(model, blocks, make_optimizer)


class Averages(DDPStrategy):
    """DDP that averages gradients over ranks instead of summing them."""

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor:
        loss = super().forward_backward(micro_batches, phases)
        for parameter in self._model.parameters():
            parameter.grad /= self.layout.world_size
        return loss


class FullZero3(FSDPStrategy):
    """ZeRO-3 whose last rank has too little memory."""

    traits = ZERO3.traits

    def __init__(self, *, most: int, first: int = 1, **arguments: Any) -> None:
        super().__init__(ZERO3, **arguments)
        self._full = _Full(most, first)

    def prepare(self, model: nn.Module, blocks: Sequence[nn.Module], make_optimizer: MakeOptimizer) -> None:
        if self.layout.rank == self.layout.world_size - 1:
            model.register_forward_pre_hook(self._full)
        super().prepare(model, blocks, make_optimizer)
