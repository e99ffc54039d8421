"""Opens the store of torchrun's agent, which still contains the entries of earlier starts of the processes.

torchrun keeps one store for all restarts. A process that reads the address of an earlier process from it waits for a
process that has ended (https://github.com/pytorch/pytorch/issues/135712 and /167288). No environment variable
identifies a start on all nodes: TORCHELASTIC_RESTART_COUNT counts on each agent alone. So rank 0 chooses a random name
for this start and sends it to the ranks that are running now.
"""

import os
import time
import uuid
from collections.abc import Mapping
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

POLL_S = 0.02


def agent_store(timeout: timedelta, environ: Mapping[str, str] = os.environ) -> TCPStore | None:
    """Return the store of torchrun's agent; None if the processes were not started with one.

    `timeout` limits a read.
    """
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    return TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)


def current_start_store(store: Store, rank: int, world_size: int, timeout: timedelta) -> Store:
    """Return a part of a store that contains only entries of this start of the processes. Collective.

    Each other rank writes a random request, which only the rank 0 of this start can answer; the answer repeats the
    request and adds the name of this start. Rank 0 also answers requests of earlier starts, which no process reads.

    Raises:
        TimeoutError: The other ranks did not answer in time.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    name = _answer(store, world_size, deadline) if rank == 0 else _ask(store, rank, deadline)
    return PrefixStore(f"paratune/{name}", store)


def _answer(store: Store, world_size: int, deadline: float) -> str:
    name = uuid.uuid4().hex
    waiting = set(range(1, world_size))
    answered: dict[int, str] = {}
    while waiting:
        for rank in sorted(waiting):
            request = _read(store, f"paratune/request/{rank}")
            if request is not None and answered.get(rank) != request:
                store.set(f"paratune/answer/{rank}", f"{request} {name}")
                answered[rank] = request
            if _read(store, f"paratune/received/{rank}") == name:
                waiting.remove(rank)
        _pause(deadline, f"rank {', '.join(map(str, sorted(waiting)))}")
    return name


def _ask(store: Store, rank: int, deadline: float) -> str:
    request = uuid.uuid4().hex
    store.set(f"paratune/request/{rank}", request)
    while True:
        answered, _, name = (_read(store, f"paratune/answer/{rank}") or "").partition(" ")
        if answered == request:
            store.set(f"paratune/received/{rank}", name)
            return name
        _pause(deadline, "rank 0")


def _read(store: Store, key: str) -> str | None:
    return bytes(store.get(key)).decode() if store.check([key]) else None


def _pause(deadline: float, missing: str) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"{missing} did not answer")
    time.sleep(POLL_S)
