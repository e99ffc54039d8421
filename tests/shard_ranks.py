"""The work of each rank in the tests of kills: it saves a sharded checkpoint, and one rank kills itself at a write."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paratune import checkpoint
from paratune.base import atomic
from paratune.base.piece import Piece
from paratune.processes.place import RENDEZVOUS_VARIABLE, Place
from paratune.strategies.process_group import open_process_group, reduce_over_ranks
from paratune.strategies.protocol import gather_texts

WORLD_SIZE = 2
WRITES: list[tuple[Any, str]] = [
    *((checkpoint, name) for name in ("save_file", "sync", "file_sha256", "write_json")),
    *((atomic, name) for name in ("sync", "use_umask")),
    *((Path, name) for name in ("mkdir", "rename", "replace")),
]
"""The operations of a save on the disk; a rank is killed before and after each call."""


def tensors(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {f"model/{n}": torch.randn(4, 3, generator=generator) for n in range(3)}


def pieces(step: int, rank: int) -> Iterator[tuple[str, Piece, Tensor]]:
    for key, tensor in tensors(step).items():
        place = Piece((4, 3), 6 * rank, 6 * rank + 6)
        yield key, place, tensor.flatten()[place.begin : place.end]


def gather(value: Any) -> list[Any]:
    return [json.loads(text) for text in gather_texts(reduce_over_ranks, json.dumps(value))]


def save(rank: int, folder: str, step: int, killed_rank: int, moment: int) -> None:
    """Save; exit code 3 if the other rank is lost, 0 if the checkpoint is complete.

    Args:
        moment: 2 n - 2 kills `killed_rank` before its n-th operation, 2 n - 1 after it.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ[RENDEZVOUS_VARIABLE] = f"{folder}/rendezvous.{step}.{killed_rank}.{moment}"
    torch.set_num_threads(1)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - the traceback of the rank that stays
    open_process_group(Place(rank, rank, WORLD_SIZE), torch.device("cpu"))
    if rank == killed_rank:
        _kill_at(moment)
    checkpoint.SHARD_BYTES = 30  # two files of each rank
    target = checkpoint.step_folder(Path(folder) / "checkpoints", step)
    try:
        checkpoint.save_sharded(target, pieces(step, rank), {"step": step}, step=step, rank=rank, gather=gather)
    except RuntimeError:
        os._exit(3)
    os._exit(0)


def _kill_at(moment: int) -> None:
    count = 0

    def count_moment() -> None:
        nonlocal count
        if count == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    def wrap(original: Any) -> Any:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            count_moment()
            result = original(*arguments, **named)
            count_moment()
            return result

        return wrapped

    for owner, name in WRITES:
        setattr(owner, name, wrap(getattr(owner, name)))
