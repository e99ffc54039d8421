"""Meeting in the store of torchrun's agent, in which what an earlier start of the processes wrote is still there.

torchrun keeps one store for all its restarts, and processes that read the addresses of those before them there wait for
the dead (https://github.com/pytorch/pytorch/issues/135712 and /167288). Nothing in the environment tells one start from
the next on all nodes: TORCHELASTIC_RESTART_COUNT is each agent's own. So rank 0 draws a name for this start, and tells
it to whoever can be answered now.
"""

import os
import time
import uuid
from collections.abc import Mapping
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

POLL_S = 0.02


def agent_store(timeout: timedelta, environ: Mapping[str, str] = os.environ) -> TCPStore | None:
    """Return the store of torchrun's agent; None where processes meet in another one.

    Args:
        timeout: How long the store waits for what it is asked for.
        environ: Variables of this process.
    """
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    return TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)


def store_of_this_start(store: Store, rank: int, world_size: int, timeout: timedelta) -> Store:
    """Return a part of a store in which nothing but this start of the processes has written. Collective.

    A rank calls with a word that nobody has used, which only a rank 0 that is there now can answer; it answers with the
    name of this start. What earlier starts have left is answered too, and heard by nobody.

    Raises:
        TimeoutError: The others did not come.
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
            call = _read(store, f"paratune/call/{rank}")
            if call is not None and answered.get(rank) != call:
                store.set(f"paratune/answer/{rank}", f"{call} {name}")
                answered[rank] = call
            if _read(store, f"paratune/heard/{rank}") == name:
                waiting.remove(rank)
        _pause(deadline, f"rank {', '.join(map(str, sorted(waiting)))}")
    return name


def _ask(store: Store, rank: int, deadline: float) -> str:
    call = uuid.uuid4().hex
    store.set(f"paratune/call/{rank}", call)
    while True:
        word, _, name = (_read(store, f"paratune/answer/{rank}") or "").partition(" ")
        if word == call:
            store.set(f"paratune/heard/{rank}", name)
            return name
        _pause(deadline, "rank 0")


def _read(store: Store, key: str) -> str | None:
    return bytes(store.get(key)).decode() if store.check([key]) else None


def _pause(deadline: float, who: str) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"{who} did not come")
    time.sleep(POLL_S)
