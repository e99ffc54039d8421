"""Runs the server in this process until a signal: what was accepted is answered, new connections are refused."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from paratune.base.stop_signals import handled_signals
from paratune.errors import LaunchError, os_error_as
from paratune.serving.connections import LimitedConnection


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
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
        except OSError:
            listener.close()
            raise
    return listener


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
