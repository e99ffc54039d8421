"""An HTTP client for one archive, with a request limit, retries and a deadline, that never follows redirects.

It connects only to the host in the settings: URLs of captures are parts of paths, and callers handle redirects. Proxies
in the environment are not used. A file limits the requests per minute of all processes of this machine: Arquivo.pt
permanently blocks addresses that exceed its limit, so that no minute may ever have more requests.
"""

import http.client
import io
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from filelock import FileLock

from paratune import __version__
from paratune.base.atomic import replace_file
from paratune.base.text import plain
from paratune.corpus.settings import LONGEST_HOLD_S, Network
from paratune.errors import CheckpointError, DataError, coded, os_error_as

WINDOW_S = 60.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RateLimit:
    """Assigns evenly spaced times for requests to all processes that use the same file."""

    def __init__(self, path: Path, per_minute: int) -> None:
        """Store the parameters.

        Args:
            path: The file, in an existing folder; all processes must use the same limit.
            per_minute: Maximum number of requests in any 60 seconds, at least 2.
        """
        self.path, self._lock = path, FileLock(path.with_name(f"{path.name}.lock"))
        # With this spacing a closed interval of 60 seconds has at most `per_minute` requests.
        self._spacing_s = WINDOW_S / (per_minute - 1)
        self._boot_id = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
        """Id of the boot, to which the monotonic clock belongs; empty if unknown."""

    def wait(self, sleep: Callable[[float], object] | None = None) -> None:
        """Wait until a request may be sent; `sleep` replaces `time.sleep` and may raise to stop waiting."""
        is_held = True
        while is_held:
            with self._lock:
                next_s, held_s = self._read()
                moment = max(time.monotonic(), next_s, held_s)
                # Saved before use: a process that is killed here loses its turn, and the limit is not exceeded.
                self._save(moment + self._spacing_s, held_s)
            while (left := moment - time.monotonic()) > 0:
                (sleep or time.sleep)(left)
            # The archive may have asked to wait since this time was assigned.
            is_held = self._read()[1] > moment

    def hold(self, seconds: float) -> None:
        """Stop all requests for some seconds, at most `LONGEST_HOLD_S`, as the archive asked for (Retry-After)."""
        with self._lock:
            next_s, held_s = self._read()
            self._save(next_s, max(time.monotonic() + min(seconds, LONGEST_HOLD_S), held_s))

    def held_s(self) -> float:
        """Return the seconds for which no request may be sent."""
        return max(0.0, self._read()[1] - time.monotonic())

    def _read(self) -> tuple[float, float]:
        """Return the earliest time of the next request, and the time until which the archive asked to wait.

        Times are of the monotonic clock. If the file is damaged, the next request must wait for a whole window.

        A file with a time that is NaN, infinite or too far ahead counts as damaged; the next request replaces it.
        """
        try:
            values: Any = json.loads(self.path.read_bytes())
            if values["boot"] == self._boot_id:
                next_s, held_s = float(values["next_s"]), float(values["held_s"])
                # A hold, and the requests after it. Comparisons with NaN are false.
                latest_s = time.monotonic() + 2 * LONGEST_HOLD_S
                if next_s <= latest_s and held_s <= latest_s:
                    return next_s, held_s
        except FileNotFoundError:
            return 0.0, 0.0
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            pass  # truncated by a power cut, or of another program
        return time.monotonic() + WINDOW_S, 0.0

    def _save(self, next_s: float, held_s: float) -> None:
        with replace_file(self.path, is_durable=False) as temporary:  # its times are invalid after a reboot
            temporary.write_text(json.dumps({"boot": self._boot_id, "next_s": next_s, "held_s": held_s}))


log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 16
RETRY_STATUSES = (429, 500, 502, 503, 504)
CONNECT_S = 15.0
"""Longest time from the slot of a request, in the limit, to its departure."""
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
    """Sends requests to one archive, each over its own connection; threads may share it. Use as a context manager."""

    def __init__(self, endpoint: str, network: Network, limit: RateLimit) -> None:
        """Store the parameters; `request` connects."""
        parts = urlsplit(endpoint)
        self.origin = f"{parts.scheme}://{parts.netloc}"
        """Scheme, host and port of all requests."""
        self._host, self._port, self._is_tls = parts.hostname or "", parts.port, parts.scheme == "https"
        self._network, self._limit = network, limit
        self._agent = f"paratune/{__version__} (+{network.contact})"
        self._stopped = threading.Event()
        self._lock, self._logged_until_s = threading.Lock(), 0.0

    def __exit__(self, *_: object) -> None:
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
        file = io.BytesIO() if into is None else into
        for number in range(1, self._network.tries + 1):
            self._refuse_long_hold()
            self._limit.wait(self._sleep)
            file.seek(0)
            file.truncate()
            try:
                status, received = self._once(target, headers or {}, file, max_bytes)
            except (OSError, http.client.HTTPException) as error:
                is_out = isinstance(error, _NoConnection)
                problem = f"{'no connection' if is_out else type(error).__name__}: {error}"
            else:
                if status not in RETRY_STATUSES or MEMENTO in received:
                    return ArchiveResponse(status, received, file.getvalue() if isinstance(file, io.BytesIO) else b"")
                problem, is_out = f"HTTP {status}", status == 429
                asked_s = retry_after_s(received.get("Retry-After"))
                if asked_s is not None or status == 429:
                    self._limit.hold(wait_s if asked_s is None else asked_s)
                self._refuse_long_hold()
            if number < self._network.tries:
                left_s = max(wait_s, self._limit.held_s())
                with self._lock:
                    is_logged = left_s >= LOGGED_WAIT_S and time.monotonic() >= self._logged_until_s
                    if is_logged:  # once for all threads
                        self._logged_until_s = time.monotonic() + left_s
                if is_logged:
                    extra = coded("corpus.server_retry", origin=self.origin)
                    log.warning("%s: %s; retrying in %.0f s", self.origin, plain(problem), left_s, extra=extra)
                self._sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        tries = f"{self._network.tries} tries" if self._network.tries > 1 else "one try"
        raise Unavailable(f"{self.origin}: {problem} after {tries}", is_out=is_out)

    def _refuse_long_hold(self) -> None:
        if (left := self._limit.held_s()) > self._network.max_hold_s:
            when = f"the archive asked to wait for {left:.0f} s, recorded in {self._limit.path}"
            raise Unavailable(f"{self.origin}: {when}; repeat the command after that")

    def _sleep(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise Unavailable(f"{self.origin}: the command is ending", is_out=True)

    def _once(
        self, target: str, headers: Mapping[str, str], file: BinaryIO, max_bytes: int
    ) -> tuple[int, http.client.HTTPMessage]:
        timeout_s, deadline_s = self._network.timeout_s, self._network.deadline_s
        connect = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = connect(self._host, self._port, timeout=min(timeout_s, CONNECT_S))
        start_s = time.monotonic()
        try:
            connection.connect()
            if time.monotonic() - start_s > CONNECT_S:  # several addresses, or an encryption in many steps
                raise TimeoutError(f"connecting takes longer than {CONNECT_S:g} s")
        except OSError as error:
            connection.close()
            raise _NoConnection(str(error)) from error
        sock, is_late = connection.sock, threading.Event()
        sock.settimeout(timeout_s)

        def end_late() -> None:
            is_late.set()
            with suppress(OSError):
                # That of an SSLSocket also ends its encryption, and the thread that is reading fails in any way.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

        # The timeout of a socket is for each read: an archive that sends a byte a minute never exceeds it.
        deadline = threading.Timer(deadline_s, end_late)
        deadline.daemon = True
        deadline.start()
        try:
            with closing(connection):
                sent = {"User-Agent": self._agent, "Accept-Encoding": "identity", "Connection": "close", **headers}
                connection.request("GET", target, headers=sent)
                with closing(connection.getresponse()) as response:
                    _read(response, file, max_bytes)
            if is_late.is_set():  # without a length, the end of the connection is the end of the body
                raise TimeoutError
        except (OSError, http.client.HTTPException) as error:
            if is_late.is_set():
                raise TimeoutError(f"the response takes longer than {deadline_s:g} s") from error
            if isinstance(error, TimeoutError):
                raise TimeoutError(f"no data for {timeout_s:g} s") from error
            raise
        finally:
            deadline.cancel()
        return response.status, response.headers


def archive_client(endpoint: str, network: Network) -> Client:
    """Return a client for a service of an archive, which shares the limit of its host.

    Raises:
        CheckpointError: The folder of the limits cannot be made.
    """
    # All corpora share it, since archives count requests per IP address.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(network.limit_folder) if network.limit_folder is not None else cache / "paratune" / "limits"
    failure, remedy = f"{folder} cannot be made", "name network.limit_folder"
    with os_error_as(CheckpointError, failure, remedy, code="output.not_writable", folder=folder):
        folder.mkdir(parents=True, exist_ok=True)
    # Without the port: arquivo.pt and arquivo.pt:443 are the same archive, and so are services on other ports.
    host = re.sub(r"[^a-z0-9.-]", "_", (urlsplit(endpoint).hostname or "").rstrip("."))
    return Client(endpoint, network, RateLimit(folder / host, network.requests_per_minute))


class _NoConnection(OSError):
    """The archive cannot be reached."""


def _read(response: http.client.HTTPResponse, file: BinaryIO, max_bytes: int) -> None:
    """Write the body to a file.

    Raises:
        TooLarge: It has more bytes.
        ConnectionError: It is truncated.
    """
    expected, num_bytes = response.length, 0
    if expected is not None and expected > max_bytes:
        raise TooLarge(f"{expected} bytes; allowed: {max_bytes}", code="corpus.server")
    while chunk := response.read1(CHUNK_BYTES):
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise TooLarge(f"more than {max_bytes} bytes", code="corpus.server")
        file.write(chunk)
    if expected is not None and num_bytes < expected:
        raise ConnectionError(f"truncated after {num_bytes} of {expected} bytes")


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
