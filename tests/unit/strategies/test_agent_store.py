"""The store that torchrun keeps over restarts: each start of the processes has a part of its own."""

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist
from patience import PATIENCE_S

from paratune.strategies.agent_store import agent_store, current_start_store

TIMEOUT = timedelta(seconds=PATIENCE_S)


@pytest.fixture
def server() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=TIMEOUT, wait_for_workers=False)


def environ(server: dist.TCPStore) -> dict[str, str]:
    return {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port)}


def start_ranks(
    server: dist.TCPStore, ranks: list[int], world_size: int, timeout: timedelta = TIMEOUT
) -> dict[int, object]:
    """Start ranks, each in a thread with its own connection; return the store or the error of each rank."""
    results: dict[int, object] = {}

    def run_rank(rank: int) -> None:
        store = agent_store(TIMEOUT, environ(server))
        assert store is not None
        try:
            results[rank] = current_start_store(store, rank, world_size, timeout)
        except TimeoutError as error:
            results[rank] = error

    threads = [threading.Thread(target=run_rank, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return results


def test_other_launchers_have_no_agent_store():
    assert agent_store(TIMEOUT, {}) is None
    assert agent_store(TIMEOUT, {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_ADDR": "x"}) is None


def test_entries_of_earlier_starts_are_not_visible(server: dist.TCPStore):
    for start in range(3):
        stores = start_ranks(server, [2, 0, 1], 3)
        assert not stores[2].check(["address"])
        stores[0].set("address", f"of start {start}")
        assert [bytes(stores[rank].get("address")).decode() for rank in range(3)] == [f"of start {start}"] * 3


def test_an_incomplete_start_is_not_confused_with_the_next(server: dist.TCPStore):
    """Rank 1 started and was killed before rank 0 started; then rank 0 started, and rank 2 never did."""
    errors = start_ranks(server, [1], 3, timedelta(seconds=0.2))
    assert isinstance(errors[1], TimeoutError)
    assert "rank 0" in str(errors[1])
    errors = start_ranks(server, [0, 1], 3, timedelta(seconds=2))
    assert isinstance(errors[0], TimeoutError)
    assert "rank 2" in str(errors[0])
    stores = start_ranks(server, [0, 1, 2], 3)
    stores[1].set("met", "yes")
    assert bytes(stores[0].get("met")) == bytes(stores[2].get("met")) == b"yes"


def test_fewer_ranks_can_start_after_a_rank_is_lost(server: dist.TCPStore):
    start_ranks(server, [0, 1, 2], 3)
    stores = start_ranks(server, [0, 1], 2)
    stores[0].set("met", "by two")
    assert bytes(stores[1].get("met")) == b"by two"
