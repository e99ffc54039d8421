"""Connections that send no header are closed, and requests in progress are not."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from paratune.serving import connections
from paratune.serving.connections import LimitedConnection

HEADER = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


async def answer_late(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(0.3)
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def received(*parts: bytes, connections_before: int = 0) -> bytes:
    """Return all that a client receives until its connection is closed; it waits for an answer after each part."""

    async def talk() -> bytes:
        config = uvicorn.Config(answer_late, http=LimitedConnection, lifespan="off", log_config=None)
        state = ServerState()
        make: Callable[[], LimitedConnection] = lambda: LimitedConnection(config, state, {})  # noqa: E731
        server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(connections_before)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        found = b""
        try:
            for number, part in enumerate(parts):
                writer.write(part)
                if number < len(parts) - 1:
                    found += await reader.readuntil(b"\r\n\r\n")
            return found + await asyncio.wait_for(reader.read(), 10)
        except ConnectionResetError:
            return found
        finally:
            for _, one in [*others, (reader, writer)]:
                one.close()
            server.close()

    return asyncio.run(talk())


@pytest.mark.parametrize("parts", [(b"",), (HEADER,), (HEADER + b"\r\n", HEADER)])
def test_a_header_that_does_not_arrive_ends_the_connection_but_no_request(
    parts: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_S", 0.2)  # below the time of an answer
    assert received(*parts).count(b"204 No Content") == len(parts) - 1


def test_further_connections_are_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    assert received(HEADER + b"Connection: close\r\n\r\n", connections_before=2) == b""
    assert b"204 No Content" in received(HEADER + b"Connection: close\r\n\r\n", connections_before=1)
