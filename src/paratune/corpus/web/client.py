"""An HTTP client for one archive, with a request limit, retries and a deadline, that never follows redirects.

It connects only to the host in the settings: URLs of captures are parts of paths, and callers handle redirects. Proxies
in the environment are not used.
"""

import http.client
import io
import logging
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from paratune import __version__
from paratune.base.text import plain
from paratune.corpus.rate import LONGEST_HOLD_S, RateLimit
from paratune.corpus.web.settings import Network
from paratune.errors import CheckpointError, DataError, coded, os_error_as

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 16
RETRY_STATUSES = (429, 500, 502, 503, 504)
LONGEST_WAIT_S = 300.0
"""Longest wait between two attempts, if the archive sends no Retry-After."""
LOGGED_WAIT_S = 5.0
"""Shortest wait that is logged: an hour of Retry-After without output looks like a hang."""
MEMENTO = "Memento-Datetime"
"""Header of a capture (RFC 7089): the status of such a response is that of the page, not of the archive."""


class Unavailable(DataError):
    """The archive did not respond after all attempts."""

    def __init__(self, detail: str, *, is_out: bool = True) -> None:
        """Store the detail; `is_out` is True if all requests to the archive fail, not only this one."""
        super().__init__(detail, code="corpus.server")
        self.is_out = is_out


class TooLarge(DataError):
    """A response has more bytes than allowed."""


@dataclass(frozen=True)
class ArchiveResponse:
    """A response of an archive."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes
    """Decoded from the transfer encoding, not from the content encoding. Empty if it was written to a file."""


class Client(AbstractContextManager["Client"]):
    """Sends requests to one archive. Threads may share it; each has its own connection. Use as a context manager."""

    def __init__(self, endpoint: str, network: Network, limit: RateLimit) -> None:
        """Store the parameters; `request` connects."""
        parts = urlsplit(endpoint)
        self.origin = f"{parts.scheme}://{parts.netloc}"
        """Scheme, host and port of all requests."""
        self._host, self._port, self._is_tls = parts.hostname or "", parts.port, parts.scheme == "https"
        self._network, self._limit = network, limit
        self._agent = f"paratune/{__version__} (+{network.contact})"
        self._mine = threading.local()
        self._connections: list[http.client.HTTPConnection] = []
        self._stopped = threading.Event()

    def __exit__(self, *_: object) -> None:
        self.stop()
        for connection in self._connections:
            connection.close()

    def stop(self) -> None:
        """End all waits; waiting threads raise `Unavailable`."""
        self._stopped.set()

    def request(
        self, target: str, *, max_bytes: int, headers: Mapping[str, str] | None = None, into: BinaryIO | None = None
    ) -> ArchiveResponse:
        """Send a request and return the response with any status that is not retried.

        Args:
            into: An empty file for the body, instead of memory.

        Raises:
            Unavailable: All attempts failed.
            TooLarge: The body has more bytes.
        """
        wait_s, problem, is_out = self._network.first_wait_s, "", False
        number = 0
        while number < self._network.tries:
            self._refuse_long_hold()
            self._limit.wait(self._sleep)
            body = _Body(into, max_bytes)
            try:
                status, received = self._once(target, headers or {}, body)
            except _Stale:
                continue  # the next connection is new, so this ends
            except (OSError, http.client.HTTPException) as error:
                is_out = isinstance(error, _NoConnection)
                problem = f"{'no connection' if is_out else type(error).__name__}: {error}"
            else:
                if status not in RETRY_STATUSES or MEMENTO in received:
                    return ArchiveResponse(status, received, body.content())
                problem, is_out = f"HTTP {status}", status == 429
                self._hold(status, received, wait_s)
            number += 1
            if number < self._network.tries:
                self._log_wait(problem, max(wait_s, self._limit.held_s()))
                self._sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        tries = f"{self._network.tries} tries" if self._network.tries > 1 else "one try"
        raise Unavailable(f"{self.origin}: {problem} after {tries}", is_out=is_out)

    def _log_wait(self, problem: str, wait_s: float) -> None:
        """Log a wait, once for all threads and processes of a command."""
        if wait_s >= LOGGED_WAIT_S and self._limit.should_log_wait(wait_s):
            log.warning(
                "%s: %s; retrying in %.0f s",
                self.origin,
                plain(problem),
                wait_s,
                extra=coded("corpus.server_retry", origin=self.origin),
            )

    def _hold(self, status: int, headers: http.client.HTTPMessage, wait_s: float) -> None:
        """Stop all requests for the time in Retry-After."""
        asked_s = retry_after_s(headers.get("Retry-After"))
        if asked_s is not None or status == 429:
            self._limit.hold(wait_s if asked_s is None else asked_s)
        self._refuse_long_hold()

    def _refuse_long_hold(self) -> None:
        if (left := self._limit.held_s()) > self._network.max_hold_s:
            when = f"the archive asked to wait for {left:.0f} s, recorded in {self._limit.path}"
            raise Unavailable(f"{self.origin}: {when}; repeat the command after that")

    def _sleep(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise Unavailable(f"{self.origin}: the command is ending", is_out=True)

    def _once(self, target: str, headers: Mapping[str, str], body: "_Body") -> tuple[int, http.client.HTTPMessage]:
        until = time.monotonic() + self._network.deadline_s
        connection, is_new = self._connection()

        def timed_response(sock: Any, **more: Any) -> http.client.HTTPResponse:
            # HTTPResponse uses its socket only to open this file. The deadline is for all of it, including headers.
            file = io.BufferedReader(_Timed(sock, until, self._network))
            return http.client.HTTPResponse(cast(Any, SimpleNamespace(makefile=lambda _: file)), **more)

        connection.response_class = cast(Any, timed_response)
        sent = {"User-Agent": self._agent, "Accept-Encoding": "identity", **headers}
        try:
            try:
                connection.request("GET", target, headers=sent)
                response = connection.getresponse()
            except ConnectionError as error:
                raise error if is_new else _Stale from None
            with closing(response):
                _read(response, body)
        except BaseException:
            connection.close()
            raise
        return response.status, response.headers

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        """Return the open connection of this thread, and whether it is new.

        Raises:
            _NoConnection: The connection cannot be opened.
        """
        connection: http.client.HTTPConnection | None = getattr(self._mine, "connection", None)
        if connection is None:
            make: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
            more: dict[str, Any] = {}
            if self._is_tls:
                make, more = http.client.HTTPSConnection, {"context": ssl.create_default_context()}
            connection = make(self._host, self._port, timeout=self._network.timeout_s, **more)
            self._mine.connection = connection
            self._connections.append(connection)
        is_new = connection.sock is None
        if is_new:
            try:
                connection.connect()
            except OSError as error:
                raise _NoConnection(str(error)) from error
        return connection, is_new


def archive_client(endpoint: str, network: Network) -> Client:
    """Return a client for a service of an archive, which shares the limit of its host.

    Raises:
        CheckpointError: The folder of the limits cannot be made.
    """
    folder = limit_folder(network)
    failure, remedy = f"{folder} cannot be made", "name network.limit_folder"
    with os_error_as(CheckpointError, failure, remedy, code="corpus.not_writable", folder=folder):
        folder.mkdir(parents=True, exist_ok=True)
    # Without the port: arquivo.pt and arquivo.pt:443 are the same archive, and so are services on other ports.
    host = re.sub(r"[^a-z0-9.-]", "_", (urlsplit(endpoint).hostname or "").rstrip("."))
    return Client(endpoint, network, RateLimit(folder / host, network.requests_per_minute))


def limit_folder(network: Network) -> Path:
    """Return the folder of the limits, shared by all corpora, since archives count requests per IP address."""
    if network.limit_folder is not None:
        return Path(network.limit_folder)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "paratune" / "limits"


class _NoConnection(OSError):
    """The archive cannot be reached."""


class _Stale(Exception):
    """The archive closed a connection that was open from an earlier request."""


class _Body:
    """Stores the bytes of a body, and raises when there are too many."""

    def __init__(self, into: BinaryIO | None, max_bytes: int) -> None:
        self._file = into if into is not None else io.BytesIO()
        self._is_kept = into is None
        self._max, self.num_bytes = max_bytes, 0
        self._file.seek(0)
        self._file.truncate()

    def expect(self, num_bytes: int) -> None:
        if num_bytes > self._max:
            raise TooLarge(f"{num_bytes} bytes; allowed: {self._max}", code="corpus.answer_too_large")

    def add(self, chunk: bytes) -> None:
        self.num_bytes += len(chunk)
        if self.num_bytes > self._max:
            raise TooLarge(f"more than {self._max} bytes", code="corpus.answer_too_large")
        self._file.write(chunk)

    def content(self) -> bytes:
        return cast(io.BytesIO, self._file).getvalue() if self._is_kept else b""


def _read(response: http.client.HTTPResponse, body: _Body) -> None:
    expected = response.length
    if expected is not None:
        body.expect(expected)
    while chunk := response.read1(CHUNK_BYTES):
        body.add(chunk)
    if expected is not None and body.num_bytes < expected:
        raise ConnectionError(f"truncated after {body.num_bytes} of {expected} bytes")


class _Timed(io.RawIOBase):
    """Reads from a socket until a deadline."""

    def __init__(self, sock: Any, until: float, network: Network) -> None:
        # The file keeps the socket open until the file is closed, also after the connection is closed.
        self._sock, self._file = sock, sock.makefile("rb", buffering=0)
        self._until, self._network = until, network

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"the response takes longer than {self._network.deadline_s:g} s")
        self._sock.settimeout(min(left, self._network.timeout_s))
        try:
            return int(self._file.readinto(buffer) or 0)
        except TimeoutError:
            if time.monotonic() >= self._until:
                raise TimeoutError(f"the response takes longer than {self._network.deadline_s:g} s") from None
            raise TimeoutError(f"no data for {self._network.timeout_s:g} s") from None

    def close(self) -> None:
        self._file.close()
        super().close()


def retry_after_s(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header, number or date, from 0 to LONGEST_HOLD_S; None if it is invalid."""
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return min(float(value), LONGEST_HOLD_S)
    try:
        moment = parsedate_to_datetime(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = (moment - datetime.now(UTC)).total_seconds()
    except (ValueError, OverflowError):  # OverflowError: year or time zone with many digits
        return None
    return min(max(0.0, seconds), LONGEST_HOLD_S)
