"""Runs the server in this process until a signal: what was accepted is answered, new requests are refused."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from paratune.base.stop_signals import handled_signals
from paratune.errors import LaunchError, os_error_as
from paratune.serving.app import Service
from paratune.serving.connections import LimitedConnection

_POLL_S = 0.02


class _Server(uvicorn.Server):
    """A server whose signals `run_server` handles."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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


def run_server(app: ASGIApp, service: Service, listener: socket.socket, grace_s: float) -> str:
    """Serve until a signal and return its name.

    Args:
        app: Result of `make_app`.
        listener: Result of `open_socket`.
        grace_s: Longest time for the accepted requests after the signal; a second signal ends it.
    """
    return asyncio.run(_serve(app, service, listener, grace_s))


async def _serve(app: ASGIApp, service: Service, listener: socket.socket, grace_s: float) -> str:
    config = uvicorn.Config(
        app,
        http=LimitedConnection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    received: list[str] = []
    stopping = asyncio.Event()

    def stop(number: signal.Signals) -> None:
        received.append(number.name)
        service.is_stopping = True
        stopping.set()

    for number in handled_signals():
        loop.add_signal_handler(number, stop, number)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    waiting = asyncio.create_task(stopping.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    deadline = loop.time() + grace_s
    while service.num_active and len(received) == 1 and loop.time() < deadline and not serving.done():
        await asyncio.sleep(_POLL_S)
    server.should_exit = True
    await serving
    waiting.cancel()
    return received[0] if received else "the end of the server"
