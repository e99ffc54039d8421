"""Where rank 0 listens, and that others meet there."""

import errno
import socket
import threading
from datetime import timedelta

import pytest

from paratune.processes.launcher import Meeting
from paratune.strategies import tcp_store
from paratune.strategies.tcp_store import listen, meeting_of_variables, open_store

TIMEOUT = timedelta(seconds=30)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def meeting(
    host: str = "127.0.0.1", *, is_one_machine: bool = True, name: str = "a", port: int | None = None
) -> Meeting:
    return Meeting(host, port or free_port(), name, is_one_machine)


def listens_on(port: int) -> set[str]:
    """Return the addresses of listening TCP sockets of a port, in hexadecimal, as proc(5) shows them (state 0A)."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as file:
            rows = [line.split() for line in file.readlines()[1:]]
        found |= {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")}
    return found


def test_ranks_meet_on_the_address_of_the_job_alone():
    where = meeting()
    stores = {}

    def connect():
        stores[1] = open_store(where, 1, TIMEOUT)
        stores[1].set("from 1", "x")

    thread = threading.Thread(target=connect)
    thread.start()
    store = open_store(where, 0, TIMEOUT)
    assert store.get("from 1") == b"x"
    thread.join()
    assert listens_on(where.port) == {"0100007F"}  # 127.0.0.1; PyTorch's own listens on 0 addresses, that is all


def test_a_job_that_comes_to_the_port_of_another_one_reads_nothing_of_it():
    where = meeting()
    store = open_store(where, 0, TIMEOUT)
    other = open_store(meeting(port=where.port, name="b"), 1, TIMEOUT)
    store.set("key", "x")
    assert store.check(["key"])
    assert not other.check(["key"])


def test_a_taken_port_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(OSError, match="use") as caught:
            open_store(meeting(port=server.getsockname()[1]), 0, TIMEOUT)
        assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize(
    ("is_one_machine", "addresses", "bound"),
    [
        (True, ["127.0.1.1"], "127.0.1.1"),
        # Others do not know the machine as its own loopback address.
        (False, ["127.0.1.1"], "0.0.0.0"),
        (False, ["127.0.1.1", "127.0.0.9"], "0.0.0.0"),
        # An address that is not of this machine (RFC 5737: for documentation).
        (False, ["192.0.2.1"], "0.0.0.0"),
    ],
)
def test_where_rank_0_listens(monkeypatch, caplog, is_one_machine, addresses, bound):
    port = free_port()
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]
    monkeypatch.setattr(tcp_store.socket, "getaddrinfo", lambda *_, **__: answers)
    monkeypatch.setattr(tcp_store.log, "warning", lambda text, *values, **_: said.append(values))
    said: list[tuple[str, str]] = []
    with listen(meeting("node1", is_one_machine=is_one_machine, port=port)) as server:
        assert server.getsockname()[0] == bound
    assert [values[0] for values in said] == (["node1"] if bound == "0.0.0.0" else [])


def test_a_loopback_address_that_was_named_as_such_is_taken():
    with listen(meeting("localhost", is_one_machine=False)) as server:
        assert server.getsockname()[0] in ("127.0.0.1", "::1")


def test_variables(monkeypatch):
    for name, value in {"MASTER_ADDR": "node1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(ValueError, match="MASTER_PORT must be set"):
        meeting_of_variables()
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert meeting_of_variables() == Meeting("node1", 29500, "variables", is_one_machine=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert meeting_of_variables().is_one_machine
