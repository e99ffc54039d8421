"""Limits of connections: their number, in all and of one address, and the time that a client may keep one waiting.

uvicorn has no such limits: its `timeout_keep_alive` begins after an answer and ends with the first byte that follows,
also where this byte belongs to the old request; its `limit_concurrency` counts a connection when its header has
arrived; it waits without end for a client that does not read.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

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
