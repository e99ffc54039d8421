"""The paths of the server: `/predict`, `/explain`, `/health`, and the page `/`.

Every request passes the checks of Host header, rate and token first, and leaves a line in the access log.
"""

import asyncio
import base64
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paratune.errors import ConfigError, DataError, ParatuneError
from paratune.explain.explain import require_explainable
from paratune.infer.trained import TrainedModel
from paratune.records import finite
from paratune.serving.access import (
    DEFAULT_STATUS,
    STATUS,
    ClientRateLimit,
    ServingLimits,
    check_host,
    check_token,
    client_name,
)
from paratune.serving.batcher import Batcher
from paratune.serving.predictor import Predictor, TokenizedRow, column_names, describe, read_calibration, read_rows

log = logging.getLogger(__name__)

PATHS = frozenset({"/", "/predict", "/explain", "/health"})
OPEN_PATHS = ("/", "/health")
"""Paths that need no token and have no rate: the page, which asks for the token, and the state for a supervisor."""


def page_response() -> Response:
    """Return the page; its headers forbid other scripts, other sites, and being shown inside of another page."""
    content, policy = _page()
    headers = {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(content, headers=headers, media_type="text/html")


@cache
def _page() -> tuple[str, str]:
    """Return the page and its content security policy."""
    style = _read("paratune.reports.page", "style.css") + _read("paratune.serving.page", "page.css")
    script = _read("paratune.serving.page", "page.js")
    content = _read("paratune.serving.page", "index.html").replace("STYLE", style).replace("SCRIPT", script)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return content, policy


def _read(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


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


class Service:
    """The model of a server, and its queue."""

    def __init__(self, trained: TrainedModel, limits: ServingLimits, about: Mapping[str, Any] | None = None) -> None:
        """Make a service; `about` is what the page says of the model: `model`, `score`, `example`."""
        self.trained = trained
        self.about = about or {}
        self.limits = limits
        self.calibration = read_calibration(trained)
        self.predictor = Predictor(trained, self.calibration)
        self.batcher = Batcher(self.predictor.predict, limits)
        found = trained.not_better
        self.warning = {} if found is None else {"warning": {"code": "model.not_better", "message": found.warning}}
        """Part of every answer of a model that is not better than a constant answer."""
        self.tokenizing = ThreadPoolExecutor(1, thread_name_prefix="paratune-tokenize")

    @asynccontextmanager
    async def running(self, app: FastAPI) -> AsyncIterator[None]:
        """Start the queue, and stop it after the block."""
        self.batcher.start()
        try:
            yield
        finally:
            await self.batcher.close()
            self.tokenizing.shutdown(wait=False)

    async def predict(self, request: Request) -> dict[str, Any]:
        """Return the answer to `/predict`.

        Raises:
            DataError: The request is refused.
        """
        tokenized = await self._read(request)
        num_tokens = [row.num_tokens for row in tokenized]
        answers = await self.batcher.submit(tokenized, num_tokens)
        answer = {"predictions": [answer.columns for answer in answers], "num_tokens": sum(num_tokens)}
        answer |= {"intervals": [answer.interval for answer in answers]} if self.calibration else {}
        return answer | self.warning

    async def explain(self, request: Request) -> dict[str, Any]:
        """Return the answer to `/explain`, for one row: it costs a forward pass per word.

        Raises:
            ParatuneError: The model cannot be explained, or the request is refused.
        """
        require_explainable(self.trained, "this model")
        first, *others = await self._read(request)
        if others:
            message = f"an explanation is of one row, and the request has {1 + len(others)}"
            raise DataError(message, code="serve.too_many_rows", num_rows=1 + len(others), max_rows=1)
        result: dict[str, Any] = await self.batcher.run(self.predictor.explain, first)
        return result

    async def _read(self, request: Request) -> list[TokenizedRow]:
        is_words = self.trained.task.kind == "token_classification"
        body = await read_body(request, self.limits)
        rows = read_rows(body, self.trained.columns, is_words=is_words, limits=self.limits)
        loop = asyncio.get_running_loop()
        tokenized = await loop.run_in_executor(self.tokenizing, self.predictor.tokenize, rows)
        request.state.num_rows, request.state.num_tokens = len(rows), sum(row.num_tokens for row in tokenized)
        return tokenized

    def health(self, *, needs_token: bool) -> dict[str, Any]:
        """Return the answer to `/health`.

        Args:
            needs_token: Whether requests need a token.
        """
        explains = False
        with suppress(ConfigError):
            require_explainable(self.trained, "this model")
            explains = True
        return {
            "task": self.trained.task.kind,
            "columns": list(dict.fromkeys(column_names(self.trained.columns).values())),
            "max_chars": self.limits.max_chars,
            "needs_token": needs_token,
            "interval": describe(self.calibration),
            "explains": explains,
            **self.about,
            # A text of the data is shown only where everybody who can connect may read it.
            "example": None if needs_token else self.about.get("example"),
        } | self.warning


async def read_body(request: Request, limits: ServingLimits) -> bytes:
    """Return the JSON body of a request.

    Raises:
        DataError: It is not declared as JSON, is too large, does not arrive in time, or the client leaves.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # Pages of other sites can send other types without asking the server first.
        raise DataError("the header Content-Type must be application/json", code="serve.content_type")
    too_large = DataError(
        f"the body is larger than {limits.max_body_bytes} bytes",
        code="serve.body_too_large",
        max_bytes=limits.max_body_bytes,
    )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limits.max_body_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for part in request.stream():
                body += part
                if len(body) > limits.max_body_bytes:
                    raise too_large
    except ClientDisconnect as error:
        message = "the client closed the connection before its body was complete"
        raise DataError(message, code="serve.client_gone") from error
    except TimeoutError as error:
        message = f"the body did not arrive within {limits.body_timeout_s:g} s"
        raise DataError(message, code="serve.body_timeout") from error
    return bytes(body)


def refuse(request: Request, error: ParatuneError) -> Response:
    """Return the response of an error, and note its code for the access log."""
    request.state.code = error.code
    return error_response(error)


def make_app(
    service: Service,
    *,
    listens_on: str = "127.0.0.1",
    token: str | None = None,
    write_line: Callable[[str], None] = lambda line: None,
) -> Gate:
    """Return the ASGI application of a service.

    Args:
        listens_on: The address of the server, for the check of the header Host.
        token: The token that requests must have; None: none.
        write_line: Called with each line of the access log.
    """
    # The pages of FastAPI for its documentation load scripts from another site.
    app = FastAPI(title="paratune serve", docs_url=None, redoc_url=None, openapi_url=None, lifespan=service.running)

    @app.post("/predict")
    async def predict(request: Request) -> JSONResponse:
        return JSONResponse(finite(await service.predict(request)))

    @app.post("/explain")
    async def explain(request: Request) -> JSONResponse:
        return JSONResponse(finite(await service.explain(request)))

    @app.get("/")
    async def page() -> Response:
        return page_response()

    @app.get("/health")
    async def health() -> JSONResponse:
        return JSONResponse(service.health(needs_token=token is not None))

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            return refuse(request, DataError(f"this path does not take {request.method}", code="serve.method"))
        return refuse(
            request, DataError(f"there is no such path; paths: {', '.join(sorted(PATHS))}", code="serve.path")
        )

    @app.exception_handler(ParatuneError)
    async def refused(request: Request, error: ParatuneError) -> Response:
        return refuse(request, error)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return refuse(request, DataError("the server failed; its log has the reason", code="serve.failed"))

    return Gate(
        app,
        paths=PATHS,
        listens_on=listens_on,
        token=token,
        rate=ClientRateLimit(service.limits.rate_per_s),
        write_line=write_line,
    )
