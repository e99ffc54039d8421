"""Who may send requests: the token, the Host header, the rate of a client, and other limits with their HTTP status."""

import hmac
import ipaddress
import math
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from paratune.errors import ConfigError, DataError, os_error_as

DEFAULT_STATUS = 422
STATUS = {
    "serve.path": 404,
    "serve.method": 405,
    "serve.token": 401,
    "serve.host": 403,
    "serve.body_timeout": 408,
    "serve.body_too_large": 413,
    "serve.content_type": 415,
    "serve.rate": 429,
    "serve.queue_full": 429,
    "serve.client_gone": 499,
    "serve.failed": 500,
}
"""HTTP status by the code of an error; other errors of a request are `DEFAULT_STATUS`."""
TOKEN_VARIABLE = "PARATUNE_SERVE_TOKEN"
_MIN_TOKEN = 16
_MAX_CLIENTS = 10_000
_HOST = re.compile(r"(?:\[([0-9A-Fa-f]*:[0-9A-Fa-f:.]*)\]|([^\[\]:]+))(?::[0-9]*)?")
"""An IPv6 address in brackets, or a name; and a port."""
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class ServingLimits:
    """Limits of requests and of batches."""

    max_wait_s: float = 0.005
    """Longest time that a row waits for others to fill its batch, while the model is idle."""
    max_tokens: int = 2048
    """Most tokens of a batch; a longer row is computed alone."""
    max_rows: int = 64
    """Most rows of a request."""
    max_chars: int = 20_000
    """Most characters of a text."""
    max_body_bytes: int = 1 << 20
    max_queue: int = 256
    """Most rows in the queue."""
    rate_per_s: float = 50.0
    """Requests per second of a client, with a burst of twice as many."""
    body_timeout_s: float = 30.0
    """Longest time in which a client sends its body."""


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(file: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the token of the file, else of `PARATUNE_SERVE_TOKEN`; None where neither is given.

    Raises:
        ConfigError: The file cannot be read, or the token is shorter than 16 characters or has a space.
    """
    if file is None:
        token, where = environment.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE
        if not token:
            return None
    else:
        where = f"--token-file {file}"
        with os_error_as(
            ConfigError, f"{where} cannot be read", "name a readable file", code="serve.token_unusable", path=file
        ):
            token = file.read_text(encoding="utf-8", errors="replace").strip()
    if len(token) < _MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        message = f"the token of {where} must have at least {_MIN_TOKEN} printable ASCII characters without a space"
        raise ConfigError(message, code="serve.token_unusable", path=file)
    return token


def require_token(host: str, token: str | None) -> None:
    """Raise a ConfigError for a server that other machines can reach and that has no token."""
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines; give a token with --token-file or {TOKEN_VARIABLE}, "
            "or listen on 127.0.0.1",
            code="serve.token_unusable",
            host=host,
        )


def check_token(token: str | None, header: str | None) -> None:
    """Raise a DataError unless the Authorization header has the token; the time does not depend on its content."""
    if token is None:
        return
    given = (header or "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), token.encode()):
        raise DataError("the request needs the header Authorization: Bearer TOKEN", code="serve.token")


def check_host(listens_on: str, header: str | None) -> None:
    """Raise a DataError for a Host header that is no name of this machine, while only this machine is served.

    A web page may let its own name point to 127.0.0.1 (DNS rebinding); a browser then sends the name of the page.
    """
    if not is_loopback(listens_on):
        return
    match = _HOST.fullmatch(header or "")
    if match is None or (match[1] or match[2]).lower() not in (*_LOOPBACK_NAMES, listens_on.lower()):
        raise DataError(f"the Host header must be one of {', '.join(_LOOPBACK_NAMES)}", code="serve.host")


def client_name(address: str) -> str:
    """Return the name under which a client is counted: its IPv4 address, or the first half of its IPv6 address.

    A network of IPv6 gives a machine all addresses with the same first half.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address) or parsed.is_loopback:
        return address
    if parsed.ipv4_mapped is not None:  # of a server that listens on :: for both
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed.packed[:8] + bytes(8), 64)))


class ClientRateLimit:
    """Requests per second of each client, by a token bucket with a burst of two seconds."""

    def __init__(self, rate_per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate_per_s
        self._burst = max(1.0, 2 * rate_per_s)
        self._clock = clock
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, client: str) -> None:
        """Count a request.

        Raises:
            DataError: The client has sent too many; `retry_after_s` is a fact.
        """
        now = self._clock()
        left, last = self._clients.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - last) * self._rate)
        self._clients[client] = (left - 1 if left >= 1 else left, now)
        if len(self._clients) > _MAX_CLIENTS:
            self._clients.popitem(last=False)  # the one that was silent for longest
        if left < 1:
            message = f"more than {self._rate:g} requests per second; try again later"
            raise DataError(message, code="serve.rate", retry_after_s=math.ceil((1 - left) / self._rate))
