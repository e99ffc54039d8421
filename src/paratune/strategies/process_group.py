"""The process group: how processes find each other, and values combined over all of them."""

import errno
import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paratune.errors import LaunchError
from paratune.processes.launcher import Meeting, is_srun, srun_meeting
from paratune.processes.place import RENDEZVOUS_VARIABLE, Place
from paratune.strategies.agent_store import agent_store, store_of_this_start
from paratune.strategies.protocol import ReduceOp
from paratune.strategies.tcp_store import meeting_of_variables, open_store

TIMEOUT = timedelta(hours=24)
"""How long a collective may wait. Rank 0 writes checkpoints, checks hashes and saves the model while the others wait in
one, and a node may tokenize while the others wait to meet: minutes are too short for that. A process that died is
noticed by its closed connections and by the launcher, not by this."""

log = logging.getLogger(__name__)


def open_process_group(place: Place, device: torch.device) -> None:
    """Bring up gloo for CPU tensors, and NCCL beside it for those of a GPU.

    Raises:
        LaunchError: The processes did not find each other.
    """
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    arguments: dict[str, Any] = {"rank": place.rank, "world_size": place.world_size, "timeout": TIMEOUT}
    if place.world_size > 1:
        log.info("wait for all %d processes to join the process group", place.world_size)
    meeting: Meeting | None = None
    try:
        if place.world_size == 1:
            # No port has to be free, and no host name has to resolve, for a process that meets nobody.
            arguments["store"] = dist.HashStore()  # type: ignore[attr-defined]
        elif RENDEZVOUS_VARIABLE in os.environ:
            arguments["init_method"] = os.environ[RENDEZVOUS_VARIABLE]
        elif not is_srun() and (store := agent_store(TIMEOUT)) is not None:
            arguments["store"] = store_of_this_start(store, place.rank, place.world_size, TIMEOUT)
        else:
            meeting = srun_meeting() if is_srun() else meeting_of_variables()
            arguments["store"] = open_store(meeting, place.rank, TIMEOUT)
            if meeting.is_one_machine and Path("/sys/class/net/lo").exists():
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # gloo listens there alone
        dist.init_process_group(backend, **arguments)
    except (RuntimeError, ValueError, OSError) as error:
        if meeting is not None and getattr(error, "errno", None) == errno.EADDRINUSE:
            raise LaunchError(_port_taken(meeting), code="launch.port_taken") from error
        if place.world_size == 1:
            raise LaunchError(
                f"no process group of one process: {error}. gloo needs a network interface that is up, though nothing "
                "goes over it: ip link set lo up; or strategy.kind: single, which needs no network at all",
                code="launch.no_network",
            ) from error
        raise LaunchError(
            f"rank {place.rank} of {place.world_size} did not find the others: {error}",
            code="launch.rank_not_found",
            rank=place.rank,
            world_size=place.world_size,
        ) from error


def _port_taken(meeting: Meeting) -> str:
    return (
        f"the processes cannot join a process group at {meeting.host}:{meeting.port}: another program, perhaps "
        f"another run on this "
        "node, has that port; in the batch script: export MASTER_PORT=$((10000 + RANDOM % 20000)), or any other that "
        "is free"
    )


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
