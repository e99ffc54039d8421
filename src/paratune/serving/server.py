"""Runs the server in this process until a signal: what was accepted is answered, new connections are refused.

Connections are limited: their number, in all and of one address, and the time that a client may keep one waiting.
uvicorn has no such limits: its `timeout_keep_alive` begins after an answer and ends with the first byte that follows,
also where this byte belongs to the old request; its `limit_concurrency` counts a connection when its header has
arrived; it waits without end for a client that does not read.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from paratune.base.stop_signals import handled_signals
from paratune.errors import LaunchError, os_error_as
from paratune.serving.access import client_name

MAX_CONNECTIONS = 512
"""Most open connections; a further one is closed at once."""
MAX_OF_CLIENT = 128
"""Most open connections of one client."""
HEADER_TIMEOUT_S = 10.0
"""Longest time until the header of a request has arrived, from the start of the connection or the last answer. The rest
of the body of an answered request has to arrive in this time, too."""
WRITE_TIMEOUT_S = 30.0
"""Longest time in which the operating system takes no more of an answer, because the client does not read."""


class LimitedConnection(H11Protocol):
    """One connection."""

    _waiting: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None
    _name: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._name = client_name(self.client[0]) if self.client else None
        # Whatever waits to be written pauses writing, so that its deadline also holds for a connection that is closing.
        transport.set_write_buffer_limits(high=0)
        num_same = sum(getattr(connection, "_name", None) == self._name for connection in self.connections)
        if len(self.connections) > MAX_CONNECTIONS or num_same > MAX_OF_CLIENT:
            self.connections.discard(self)  # otherwise it counts until the event loop has closed it
            transport.abort()
            return
        self._wait_for_header()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._waiting, self._writing):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_header()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(WRITE_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()

    def _wait_for_header(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = self.loop.call_later(HEADER_TIMEOUT_S, self._close_without_request)

    def _close_without_request(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class _Server(uvicorn.Server):
    """A server that a signal of the project stops, and that returns after it."""

    received = ""
    """Name of the first signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in handled_signals():
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(sig).name
        self.force_exit = self.should_exit  # a second signal ends the wait
        self.should_exit = True


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 is any free one.

    Raises:
        LaunchError: The port is in use, or the address is not one of this machine.
    """
    failure, remedy = f"cannot listen on {host} port {port}", "choose another --port or --host"
    with os_error_as(LaunchError, failure, remedy, code="serve.port", host=host, port=port):
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=128, dualstack_ipv6=both)


def run_server(app: ASGIApp, listener: socket.socket, grace_s: int = 30) -> str:
    """Serve until a signal and return its name.

    Args:
        app: Result of `make_app`.
        listener: Result of `open_socket`.
        grace_s: Longest time in seconds for the accepted requests after the signal; a second signal ends it.
    """
    server = _Server(
        uvicorn.Config(
            app,
            http=LimitedConnection,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=grace_s,
        )
    )
    asyncio.run(server.serve(sockets=[listener]))
    return server.received or "the end of the server"
