"""What a client may keep waiting: each connection without a request in progress ends, others are served."""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from paratune.serving import server
from paratune.serving.server import LimitedConnection

HEADER = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
LIMIT_S = 0.3

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[..., Awaitable[Peer]]


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answer without the body of the request: /late after longer than `LIMIT_S`, /N with N bytes."""
    if scope["path"] == "/late":
        await asyncio.sleep(LIMIT_S + 0.1)
    size = int(scope["path"].removeprefix("/late")[1:] or 0)
    headers = [(b"content-length", str(size).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"a" * size})


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEADER_TIMEOUT_S", LIMIT_S)
    monkeypatch.setattr(server, "WRITE_TIMEOUT_S", LIMIT_S)


def serve_to(talk: Callable[[Connect, ServerState], Awaitable[None]]) -> None:
    """Run a server while `talk` connects to it, from addresses of its choice, also after others of 127.0.0.1."""

    async def run() -> None:
        config = uvicorn.Config(application, http=LimitedConnection, lifespan="off", log_config=None)
        state = ServerState()
        make: Callable[[], LimitedConnection] = lambda: LimitedConnection(config, state, {})  # noqa: E731
        server = await asyncio.get_running_loop().create_server(make, "", 0, family=socket.AF_INET)
        # The operating system takes little, so that an answer waits in the server until its client reads.
        server.sockets[0]._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # type: ignore[attr-defined]
        port = server.sockets[0].getsockname()[1]
        peers: list[Peer] = []

        async def connect(address: str = "127.0.0.1", num_others: int = 0) -> Peer:
            burst = [socket.socket() for _ in range(num_others + 1)]
            for number, client in enumerate(burst):
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.bind((address if number == num_others else "127.0.0.1", 0))
                client.connect(("127.0.0.1", port))
            for client in burst:
                peers.append(await asyncio.open_connection(sock=client))
            return peers[-1]

        try:
            async with asyncio.timeout(20):
                await talk(connect, state)
        finally:
            for _, writer in peers:
                writer.transport.abort()
            server.close()
            await asyncio.sleep(0)

    asyncio.run(run())


async def answer(peer: Peer, request: bytes = b"") -> bytes:
    """Send a request and return the header of its answer."""
    peer[1].write(request)
    return await asyncio.wait_for(peer[0].readuntil(b"\r\n\r\n"), 10)


async def is_closed(peer: Peer, *, sends: bytes = b"") -> bool:
    """Return whether the server closes a connection within 10 times its limit, while the client sends bytes."""
    for _ in range(40):
        try:
            if await asyncio.wait_for(peer[0].read(1000), LIMIT_S / 4) == b"":
                return True
        except TimeoutError:
            peer[1].write(sends)
        except OSError:
            return True
    return False


@pytest.mark.parametrize("parts", [(b"",), (HEADER,), (HEADER.replace(b"/ ", b"/late ") + b"\r\n", HEADER)])
@pytest.mark.parametrize("sends", [b"", b"a"])
def test_a_header_that_does_not_arrive_ends_the_connection_but_no_request(parts: tuple[bytes, ...], sends: bytes):
    async def talk(connect: Connect, state: ServerState) -> None:
        peer = await connect()
        for part in parts[:-1]:
            assert b"200 OK" in await answer(peer, part)
        peer[1].write(parts[-1])
        assert await is_closed(peer, sends=sends)

    serve_to(talk)


@pytest.mark.parametrize("sends", [b"", b"a"])
@pytest.mark.parametrize(
    "request_start",
    [
        HEADER + b"Content-Length: 1000\r\n\r\n",
        HEADER.replace(b"GET", b"POST") + b"Content-Length: 1000\r\n\r\nabc",
        HEADER.replace(b"GET", b"HEAD") + b"Content-Length: 1000\r\n\r\n",
        HEADER + b"Content-Length: 1000\r\nExpect: 100-continue\r\n\r\n",
        HEADER + b"Transfer-Encoding: chunked\r\n\r\n1000\r\nabc",
        HEADER + b"Transfer-Encoding: chunked\r\n\r\n",
        HEADER.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Content-Length: 1000\r\nConnection: keep-alive\r\n\r\n",
    ],
)
def test_a_body_that_is_incomplete_after_the_answer_ends_the_connection(request_start: bytes, sends: bytes):
    async def talk(connect: Connect, state: ServerState) -> None:
        peer = await connect()
        assert b"200 OK" in await answer(peer, request_start)
        assert await is_closed(peer, sends=sends)

    serve_to(talk)


def test_a_body_that_is_complete_soon_after_the_answer_keeps_the_connection():
    async def talk(connect: Connect, state: ServerState) -> None:
        peer = await connect()
        await answer(peer, HEADER + b"Content-Length: 4\r\n\r\n")
        await asyncio.sleep(LIMIT_S / 2)
        peer[1].write(b"rest")
        for _ in range(3):  # each answer begins the time anew
            assert b"200 OK" in await answer(peer, HEADER + b"\r\n")
            await asyncio.sleep(LIMIT_S / 2)
        await answer(peer, 2 * (HEADER + b"\r\n"))  # pipelined
        await answer(peer)

    serve_to(talk)


@pytest.mark.parametrize(
    "requests",
    [
        HEADER.replace(b"/ ", b"/3000000 ") + b"\r\n",
        HEADER.replace(b"/ ", b"/60000 ") + b"Connection: close\r\n\r\n",  # less than asyncio's usual limit of 64 KiB
        HEADER.replace(b"/ ", b"/60000 ") + b"\r\n",
        100 * (HEADER.replace(b"/ ", b"/2000 ") + b"\r\n"),
    ],
)
def test_answers_that_are_not_read_end_the_connection(requests: bytes):
    async def talk(connect: Connect, state: ServerState) -> None:
        peer = await connect()
        peer[1].transport.pause_reading()  # type: ignore[attr-defined]
        peer[1].write(requests)
        await asyncio.sleep(LIMIT_S / 2)
        assert len(state.connections) == 1
        for _ in range(100):
            await asyncio.sleep(LIMIT_S / 4)
            if not state.connections:
                return
        raise AssertionError("the connection is open")

    serve_to(talk)


def test_an_answer_that_is_read_slowly_arrives(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "WRITE_TIMEOUT_S", 5.0)  # above the time of this client; the connection ends before

    async def talk(connect: Connect, state: ServerState) -> None:
        peer = await connect()
        header = await answer(peer, HEADER.replace(b"/ ", b"/1000000 ") + b"\r\n")
        left = int(re.search(rb"content-length: (\d+)", header)[1])  # type: ignore[index]
        while left:
            left -= len(await peer[0].read(1 << 16))
            await asyncio.sleep(0.01)

    serve_to(talk)


@pytest.mark.parametrize(("limit", "others"), [("MAX_CONNECTIONS", "127.0.0.2"), ("MAX_OF_CLIENT", "127.0.0.1")])
def test_further_connections_are_closed(limit: str, others: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, limit, 2)

    async def talk(connect: Connect, state: ServerState) -> None:
        waiting = [await connect(others)]
        served = await connect()
        assert b"200 OK" in await answer(served, HEADER + b"Connection: close\r\n\r\n")
        await is_closed(served)
        waiting = [await connect(others) for _ in range(2)]
        assert await is_closed(await connect())
        assert len(waiting) == 2

    serve_to(talk)


def test_clients_of_other_addresses_are_served_while_one_has_its_share(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 4)
    monkeypatch.setattr(server, "MAX_OF_CLIENT", 2)
    monkeypatch.setattr(server, "HEADER_TIMEOUT_S", 60)

    async def talk(connect: Connect, state: ServerState) -> None:
        other = await connect("127.0.0.2", num_others=20)  # all in one turn of the event loop
        assert b"200 OK" in await answer(other, HEADER + b"\r\n")
        assert len(state.connections) == 3
        silent = next(one for one in state.connections if one.client[0] == "127.0.0.1")  # type: ignore[union-attr,index]
        silent.transport.abort()  # type: ignore[union-attr]
        await asyncio.sleep(0.1)
        assert b"200 OK" in await answer(await connect(), HEADER + b"\r\n")

    serve_to(talk)
