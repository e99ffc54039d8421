"""The address on which rank 0 listens, and connections to it."""

import errno
import socket
import threading
from datetime import timedelta

import pytest

from paratune.processes.launcher import Rendezvous
from paratune.strategies import tcp_store
from paratune.strategies.tcp_store import listen, open_store, rendezvous_from_environment

TIMEOUT = timedelta(seconds=30)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def rendezvous(
    host: str = "127.0.0.1", *, is_one_machine: bool = True, name: str = "a", port: int | None = None
) -> Rendezvous:
    return Rendezvous(host, port or free_port(), name, is_one_machine)


def listens_on(port: int) -> set[str]:
    """Return the addresses of listening TCP sockets of a port, in hexadecimal, as proc(5) shows them (state 0A)."""
    addresses = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as file:
            rows = [line.split() for line in file.readlines()[1:]]
        addresses |= {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")}
    return addresses


def test_rank_0_listens_only_on_the_address_of_the_job():
    address_of_job = rendezvous()
    stores = {}

    def connect():
        stores[1] = open_store(address_of_job, 1, TIMEOUT)
        stores[1].set("from 1", "x")

    thread = threading.Thread(target=connect)
    thread.start()
    store = open_store(address_of_job, 0, TIMEOUT)
    assert store.get("from 1") == b"x"
    thread.join()
    assert listens_on(address_of_job.port) == {"0100007F"}  # 127.0.0.1


def test_a_job_on_the_port_of_another_job_reads_none_of_its_keys():
    address_of_job = rendezvous()
    store = open_store(address_of_job, 0, TIMEOUT)
    other = open_store(rendezvous(port=address_of_job.port, name="b"), 1, TIMEOUT)
    store.set("key", "x")
    assert store.check(["key"])
    assert not other.check(["key"])


def test_a_taken_port_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(OSError, match="use") as caught:
            open_store(rendezvous(port=server.getsockname()[1]), 0, TIMEOUT)
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
    monkeypatch.setattr(tcp_store.log, "warning", lambda text, *values, **_: warnings.append(values))
    warnings: list[tuple[str, str]] = []
    with listen(rendezvous("node1", is_one_machine=is_one_machine, port=port)) as server:
        assert server.getsockname()[0] == bound
    assert [values[0] for values in warnings] == (["node1"] if bound == "0.0.0.0" else [])


def test_an_explicit_loopback_address_is_used():
    with listen(rendezvous("localhost", is_one_machine=False)) as server:
        assert server.getsockname()[0] in ("127.0.0.1", "::1")


def test_the_rendezvous_is_read_from_the_environment(monkeypatch):
    for name, value in {"MASTER_ADDR": "node1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(ValueError, match="MASTER_PORT must be set"):
        rendezvous_from_environment()
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert rendezvous_from_environment() == Rendezvous("node1", 29500, "variables", is_one_machine=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert rendezvous_from_environment().is_one_machine
