"""What is true of a strategy before it runs: plain data that plans, checks, launchers and reports read, no torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Traits:
    """The one fact of the strategy protocol."""

    kind: str
    """Name in the configuration."""
    shards: tuple[str, ...]
    """What each rank holds only a part of: any of weights, gradients, optimizer."""
    states_on: str
    """Where the optimizer states live: device or cpu."""
    phases: Mapping[str, str]
    """What each measured phase contains, in words, for get_batch, forward, backward, optimizer."""
    min_world_size: int
    """Fewest processes with which the strategy means anything."""
    max_world_size: int | None
    """Most processes; None for no limit."""
    ranks_per_replica: int
    """Processes that work on the same samples, such as the stages of a pipeline."""
    excludes: Mapping[str, str]
    """Settings that it cannot be combined with ("precision=fp16"), each with the reason."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


TRAITS: dict[str, Traits] = {
    "single": Traits(
        kind="single",
        shards=(),
        states_on="device",
        phases={
            "get_batch": "reading tokens, padding, copy to the device",
            "forward": "forward pass and loss",
            "backward": "backward pass",
            "optimizer": "gradient norm, clipping, AdamW update",
        },
        min_world_size=1,
        max_world_size=1,
        ranks_per_replica=1,
        excludes={},
    ),
    "ddp": Traits(
        kind="ddp",
        shards=(),
        states_on="device",
        phases={
            "get_batch": "reading tokens, padding, copy to the device",
            "forward": "forward pass and loss",
            "backward": "backward pass and the all-reduce of gradients, overlapped",
            "optimizer": "gradient norm, clipping, AdamW update of the whole model on each rank",
        },
        min_world_size=1,
        max_world_size=None,
        ranks_per_replica=1,
        excludes={},
    ),
}
"""Traits by kind, of the strategies in this package; an outside one carries its own as the class attribute `traits`."""
