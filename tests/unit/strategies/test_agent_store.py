"""The store that torchrun keeps over restarts: each start of the processes has a part of its own."""

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist
from patience import PATIENCE_S

from paratune.strategies.agent_store import agent_store, store_of_this_start

TIMEOUT = timedelta(seconds=PATIENCE_S)


@pytest.fixture
def server() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=TIMEOUT, wait_for_workers=False)


def environ(server: dist.TCPStore) -> dict[str, str]:
    return {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port)}


def meet(server: dist.TCPStore, ranks: list[int], world_size: int, timeout: timedelta = TIMEOUT) -> dict[int, object]:
    """Let ranks meet, each in a thread with a connection of its own; return the store of each, or its error."""
    found: dict[int, object] = {}

    def one(rank: int) -> None:
        store = agent_store(TIMEOUT, environ(server))
        assert store is not None
        try:
            found[rank] = store_of_this_start(store, rank, world_size, timeout)
        except TimeoutError as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return found


def test_other_launchers_have_no_such_store():
    assert agent_store(TIMEOUT, {}) is None
    assert agent_store(TIMEOUT, {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_ADDR": "x"}) is None


def test_what_an_earlier_start_wrote_is_not_seen(server: dist.TCPStore):
    for start in range(3):
        stores = meet(server, [2, 0, 1], 3)
        assert not stores[2].check(["address"])
        stores[0].set("address", f"of start {start}")
        assert [bytes(stores[rank].get("address")).decode() for rank in range(3)] == [f"of start {start}"] * 3


def test_a_start_of_which_a_rank_never_came_is_not_taken_for_the_next(server: dist.TCPStore):
    """Rank 1 came, and was killed before rank 0 was there; then rank 0 came, and rank 2 never did."""
    gone = meet(server, [1], 3, timedelta(seconds=0.2))
    assert "rank 0 did not come" in str(gone[1])
    gone = meet(server, [0, 1], 3, timedelta(seconds=2))
    assert str(gone[0]) == "rank 2 did not come"
    stores = meet(server, [0, 1, 2], 3)
    stores[1].set("met", "yes")
    assert bytes(stores[0].get("met")) == bytes(stores[2].get("met")) == b"yes"


def test_fewer_ranks_meet_after_one_is_lost(server: dist.TCPStore):
    meet(server, [0, 1, 2], 3)
    stores = meet(server, [0, 1], 2)
    stores[0].set("met", "by two")
    assert bytes(stores[1].get("met")) == b"by two"
