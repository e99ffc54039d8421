"""Opens the process group of a run, and reduces values over all ranks."""

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
from paratune.processes.launcher import Rendezvous, is_srun, srun_rendezvous
from paratune.processes.place import RENDEZVOUS_VARIABLE, Place
from paratune.strategies.agent_store import agent_store, current_start_store
from paratune.strategies.protocol import ReduceOp
from paratune.strategies.tcp_store import open_store, rendezvous_from_environment

TIMEOUT = timedelta(hours=24)
"""How long a collective may wait. Minutes are too short: the other ranks wait in a collective while rank 0 writes
checkpoints, checks hashes and saves the model, or while a node tokenizes. A process that has ended is detected by its
closed connections and by the launcher, not by this limit."""

log = logging.getLogger(__name__)


def open_process_group(place: Place, device: torch.device) -> None:
    """Open a process group with gloo for CPU tensors and, on a GPU, NCCL for its tensors.

    Raises:
        LaunchError: The processes cannot connect.
    """
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    arguments: dict[str, Any] = {"rank": place.rank, "world_size": place.world_size, "timeout": TIMEOUT}
    if device.type == "cuda":
        # NCCL connects now, and not in the first collective, where a hang looks like work.
        arguments["device_id"] = device
    if place.world_size > 1:
        log.info("wait for all %d processes to join the process group", place.world_size)
    rendezvous: Rendezvous | None = None
    try:
        if place.world_size == 1:
            # A single process needs neither a free port nor a host name that resolves.
            arguments["store"] = dist.HashStore()  # type: ignore[attr-defined]
        elif RENDEZVOUS_VARIABLE in os.environ:
            # Not as file://...: torch keeps the %20 of a space in the URL, and waits in a folder that does not exist.
            arguments["store"] = dist.FileStore(os.environ[RENDEZVOUS_VARIABLE], place.world_size)  # type: ignore[attr-defined]
            arguments["store"].set_timeout(TIMEOUT)
        elif not is_srun() and (store := agent_store(TIMEOUT)) is not None:
            arguments["store"] = current_start_store(store, place.rank, place.world_size, TIMEOUT)
        else:
            rendezvous = srun_rendezvous() if is_srun() else rendezvous_from_environment()
            arguments["store"] = open_store(rendezvous, place.rank, TIMEOUT)
            if rendezvous.is_one_machine and Path("/sys/class/net/lo").exists():
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # gloo then listens on loopback only
        dist.init_process_group(backend, **arguments)
    except (RuntimeError, ValueError, OSError) as error:
        if rendezvous is not None and getattr(error, "errno", None) == errno.EADDRINUSE:
            raise LaunchError(_port_taken(rendezvous), code="launch.not_started") from error
        if place.world_size == 1:
            raise LaunchError(
                f"no process group can be opened: {error}. gloo needs a network interface that is up, even for one "
                "process: ip link set lo up; or strategy.kind: single, which needs no network",
                code="launch.not_started",
            ) from error
        raise LaunchError(
            f"rank {place.rank} of {place.world_size} cannot connect to the other ranks: {error}",
            code="launch.rank_not_found",
            rank=place.rank,
            world_size=place.world_size,
        ) from error


def _port_taken(rendezvous: Rendezvous) -> str:
    return (
        f"the processes cannot join a process group at {rendezvous.host}:{rendezvous.port}: another program, perhaps "
        "another run on this node, uses that port; in the batch script: export MASTER_PORT=$((10000 + RANDOM % "
        "20000)), or any free port"
    )


def close_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def reduce_over_ranks(value: Tensor, op: ReduceOp) -> Tensor:
    """Combine a CPU tensor over all ranks, as `Strategy.reduce`; without a process group return it unchanged.

    A group that has only NCCL, such as the Trainer's, combines it on the GPU.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return value
    if dist.get_backend() == "nccl":
        value = value.cuda()
    if op == "concat":
        return _concat(value).cpu()
    reduced = value.clone()
    dist.all_reduce(reduced, op={"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}[op])
    return reduced.cpu()


def _concat(value: Tensor) -> Tensor:
    """Concatenate the tensors of all ranks, whose first dimensions may differ: they are gathered padded."""
    lengths = [torch.zeros(1, dtype=torch.int64, device=value.device) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor([len(value)], device=value.device))
    longest = max(int(length) for length in lengths)
    padded = value.new_zeros((longest, *value.shape[1:]))
    padded[: len(value)] = value
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(length)] for part, length in zip(parts, lengths, strict=True)])
