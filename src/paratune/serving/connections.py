"""Limits of connections: their number, and the time in which the header of a request arrives.

uvicorn limits neither: its `timeout_keep_alive` begins after an answer and ends with the first byte of the next
request, and its `limit_concurrency` counts a connection when its header has arrived.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 512
"""Most open connections; a further one is closed at once."""
HEADER_TIMEOUT_S = 10.0
"""Longest time until the header of a request has arrived, from the start of the connection or the last answer."""


class LimitedConnection(H11Protocol):
    """One connection."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._wait_for_header()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_header()

    def _wait_for_header(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(HEADER_TIMEOUT_S, self._close_without_header)

    def _close_without_header(self) -> None:
        if self.conn.their_state is h11.IDLE:
            self.transport.close()
