"""Strategies of a user's own, right and wrong, named in configurations as outside:Class."""

import os
import time
from collections.abc import Sequence

from torch import Tensor

from paratune.batch import Batch
from paratune.config.traits import TRAITS
from paratune.strategies.ddp import DDPStrategy
from paratune.strategies.fsdp import Zero3Strategy
from paratune.strategies.protocol import Phases


class Refuses:
    """Takes any option and refuses it in its own way."""

    traits = TRAITS["single"]

    def __init__(self, **options: object) -> None:
        raise KeyError("speed")


class Slow(DDPStrategy):
    """DDP that leaves time between steps for what tests do to it."""

    def optimizer_step(self, max_grad_norm: float | None) -> Tensor:
        time.sleep(0.05)
        return super().optimizer_step(max_grad_norm)


def __getattr__(name: str) -> type[DDPStrategy]:
    """Give `FailsOnRank0`, which rank 0 cannot have: it fails while the others go on to meet it."""
    if name != "FailsOnRank0":
        raise AttributeError(name)
    if os.environ["RANK"] == "0":
        raise RuntimeError("rank 0 has no such card")
    return DDPStrategy


class _Damaged:
    """Raises on rank 1 in the third step, as a damaged row of its share would."""

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


class DamagedZero3(Zero3Strategy):
    """ZeRO-3 with a damaged row."""

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor:
        self.__dict__.setdefault("_damaged", _Damaged()).look(self.layout.rank)
        return super().forward_backward(micro_batches, phases)
