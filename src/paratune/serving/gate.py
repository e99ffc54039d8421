"""What every request passes first: state of the server, Host header, rate, token; then its line in the access log."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paratune.errors import ParatuneError
from paratune.serving.access import ClientRateLimit, check_host, check_token, client_name
from paratune.serving.settings import DEFAULT_STATUS, STATUS

log = logging.getLogger(__name__)

OPEN_PATHS = ("/", "/health")
"""Paths that need no token and have no rate: the page, which asks for the token, and the state for a supervisor."""


def error_response(error: ParatuneError) -> Response:
    """Return an error as JSON, in the layout of `--json`, with the HTTP status of its code."""
    status = STATUS.get(error.code, DEFAULT_STATUS)
    headers = {}
    if status in (429, 503):
        headers["Retry-After"] = str(error.facts.get("retry_after_s", 1))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    # Facts may be paths or numbers of numpy.
    content = json.dumps({"errors": [fault.as_dict() for fault in error.faults]}, default=str)
    return Response(content, status, headers, media_type="application/json")


@dataclass(eq=False, repr=False)  # no repr: it would have the token
class Gate:
    """Checks requests and writes the access log around another ASGI application."""

    app: ASGIApp
    paths: frozenset[str]
    """Paths that log lines name; others are "other"."""
    listens_on: str
    token: str | None
    rate: ClientRateLimit
    write_line: Callable[[str], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        state: dict[str, Any] = scope.setdefault("state", {})
        status = 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        client = scope["client"][0] if scope.get("client") else "unknown"
        try:
            self._check(scope, client)
            await self.app(scope, receive, send_and_note)
        except ParatuneError as error:
            state["code"] = error.code
            await error_response(error)(scope, receive, send_and_note)
        except Exception:  # the application has answered it
            log.exception("a request failed")
        finally:
            self._note(scope, client, status, time.perf_counter() - started)

    def _check(self, scope: Scope, client: str) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        check_host(self.listens_on, headers.get("host"))
        if scope["path"] in OPEN_PATHS:
            return
        self.rate.check(client_name(client))
        check_token(self.token, headers.get("authorization"))

    def _note(self, scope: Scope, client: str, status: int, duration_s: float) -> None:
        """Write the line of the request, which has nothing of its content."""
        state = scope["state"]
        path = scope["path"] if scope["path"] in self.paths else "other"
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": client,
            "method": scope["method"],
            "path": path,
            "status": status,
            "code": state.get("code"),
            "num_rows": state.get("num_rows"),
            "num_tokens": state.get("num_tokens"),
            "duration_ms": round(1000 * duration_s, 3),
        }
        self.write_line(json.dumps(line))
