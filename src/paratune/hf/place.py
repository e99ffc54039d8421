"""The place of this process in a Trainer run."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TrainerPlace:
    """The place of this process among those of the Trainer."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    """Device of the model."""
