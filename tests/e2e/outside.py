"""Strategies of a user's own, right and wrong, named in configurations as outside:Class."""

import os
import time

from torch import Tensor

from paratune.config.traits import TRAITS
from paratune.strategies.ddp import DDPStrategy


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
