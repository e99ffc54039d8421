"""The process group: which process this is, how processes find each other, and values combined over all of them."""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paratune.errors import LaunchError
from paratune.strategies.protocol import ReduceOp

RENDEZVOUS_VARIABLE = "PARATUNE_RENDEZVOUS"
"""Set by `paratune train --nproc`: an init_method of its own; torchrun's variables are used otherwise."""
TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class Place:
    """Which of how many processes this is, as torchrun and `paratune train --nproc` tell it."""

    rank: int
    local_rank: int
    world_size: int


def place_from_environment() -> Place:
    """Read RANK, LOCAL_RANK and WORLD_SIZE; a process that was not launched is the only one.

    Raises:
        LaunchError: Only some of them are set, or they contradict each other.
    """
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    given = {name: os.environ[name] for name in names if name in os.environ}
    if not given:
        return Place(0, 0, 1)
    missing = [name for name in names if name not in given]
    if missing:
        found = ", ".join(f"{name}={value}" for name, value in given.items())
        raise LaunchError(
            f"environment: {found} without {', '.join(missing)}; start with torchrun or paratune train --nproc N, "
            f"or unset {', '.join(given)} to run one process"
        )
    try:
        place = Place(*(int(given[name]) for name in names))
    except ValueError as error:
        raise LaunchError(f"environment: {given} holds a value that is not a whole number") from error
    if not 0 <= place.rank < place.world_size:
        raise LaunchError(f"environment: RANK={place.rank} is not below WORLD_SIZE={place.world_size}")
    return place


def open_process_group(place: Place, device: torch.device) -> None:
    """Bring up gloo for CPU tensors, and NCCL beside it for those of a GPU.

    Raises:
        LaunchError: The processes did not find each other.
    """
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    method = os.environ.get(RENDEZVOUS_VARIABLE)
    arguments: dict[str, Any] = {"rank": place.rank, "world_size": place.world_size, "timeout": TIMEOUT}
    if place.world_size == 1:
        arguments["store"] = dist.HashStore()
    else:
        arguments["init_method"] = method or "env://"
    try:
        dist.init_process_group(backend, **arguments)
    except (RuntimeError, ValueError) as error:
        raise LaunchError(f"rank {place.rank} of {place.world_size} did not find the others: {error}") from error


def close_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def reduce_over_ranks(value: Tensor, op: ReduceOp) -> Tensor:
    """Combine a CPU tensor over all ranks, as `Strategy.reduce` says; without a process group it is returned as is."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return value
    if op == "concat":
        return _concat(value)
    reduced = value.clone()
    dist.all_reduce(reduced, op={"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}[op])
    return reduced


def _concat(value: Tensor) -> Tensor:
    """Gather tensors whose first dimensions differ: all are padded to the longest for the way."""
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor([len(value)]))
    longest = max(int(length) for length in lengths)
    padded = value.new_zeros((longest, *value.shape[1:]))
    padded[: len(value)] = value
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(length)] for part, length in zip(parts, lengths, strict=True)])
