"""Requests lists of captures from servers; a query for one window is one input of the index."""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, BinaryIO, cast
from urllib.parse import urlencode, urlsplit

from paratune.corpus.index.captures import capture_row, read_lines
from paratune.corpus.rows import CaptureOrDropped, CaptureRow, DroppedRow
from paratune.corpus.settings import CdxServer, Network, Server, Windowed, after, first_moment
from paratune.corpus.web import ArchiveResponse, Client, TooLarge, archive_client
from paratune.errors import DataError

IN_MEMORY_BYTES = 16 << 20
"""Bytes of a CDX server's response in memory; a larger one goes to a temporary file."""
MAX_PAGE_BYTES = 256 << 20
"""Maximum bytes of one response of a search."""
MAX_PAGES = 10_000
"""Maximum number of responses to a query, against a server that ignores the offset."""
Parameters = tuple[tuple[str, str], ...]
DIGITS = {"year": 4, "month": 6, "day": 8}


@dataclass(frozen=True)
class Query:
    """A query to a server."""

    endpoint: str
    parameters: Parameters
    per_request: int | None
    """Results per response of a search; None for a CDX server, which sends one response."""

    @property
    def name(self) -> str:
        """Name in rows and messages."""
        return f"{urlsplit(self.endpoint).netloc} {urlencode(self.parameters)}"

    def target(self, **more: str | int) -> str:
        """Return path and query of a request."""
        return f"{urlsplit(self.endpoint).path or '/'}?{urlencode([*self.parameters, *more.items()])}"

    def error(self, problem: str, **facts: Any) -> DataError:
        return DataError(f"{self.name}: {problem}", code="corpus.server", name=self.name, **facts)


def server_queries(server: Server) -> list[Query]:
    """Return all queries to a server, ordered by URL or search words and then by time."""
    per_request = None if isinstance(server, CdxServer) else server.items_per_request
    return [
        Query(server.endpoint, (*subject, *window), per_request)
        for subject in _subjects(server)
        for window in _windows(server)
    ]


def _subjects(server: Server) -> Iterator[Parameters]:
    if isinstance(server, CdxServer):
        for url in server.urls:
            filters = [("filter", pattern) for pattern in server.filters]
            yield (("url", url), ("matchType", server.match), *filters, ("output", "json"))
    else:
        types: list[Parameters] = [(("type", document_type),) for document_type in server.types]
        # Without these two, the search returns at most two results per site.
        field = "url" if server.per_site is None else "site"
        options = [("dedupField", field), ("dedupValue", str(server.per_site or 1))]
        options += [("siteSearch", server.site)] if server.site is not None else []
        options += [("collection", ",".join(server.collections))] if server.collections else []
        for query in server.queries:
            for type_parameter in types or [()]:
                yield (("q", query), *options, *type_parameter)


def _windows(server: Windowed) -> Iterator[Parameters]:
    """Yield `from` and `to` of each window, both inclusive."""
    if server.window == "whole":
        limits = (("from", server.from_, first_moment), ("to", server.to, _end))
        yield tuple((key, _digits(moment_of(stamp))) for key, stamp, moment_of in limits if stamp is not None)
        return
    assert server.from_ is not None
    assert server.to is not None
    start, end = first_moment(server.from_), _end(server.to)
    while start <= end:
        num_digits = DIGITS[server.window]
        following = after(first_moment(int(_digits(start)[:num_digits])), num_digits)
        last = min(following - timedelta(seconds=1), end)
        yield (("from", _digits(start)), ("to", _digits(last)))
        start = following


def _end(stamp: int) -> datetime:
    return after(first_moment(stamp), len(str(stamp))) - timedelta(seconds=1)


def _digits(moment: datetime) -> str:
    return f"{moment:%Y%m%d%H%M%S}".rjust(14, "0")


def read_query(query: Query, network: Network, max_bytes: int) -> Iterator[CaptureOrDropped]:
    """Yield the captures that a server lists, and dropped rows for invalid results.

    Raises:
        DataError: The server refuses the query, or sends an invalid response.
        Unavailable: The server does not respond.
    """
    try:
        with archive_client(query.endpoint, network) as client:
            if query.per_request is not None:
                yield from _searched(query, client)
                return
            # The complete response first: a truncated one is requested again, without duplicate rows.
            with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as file:
                answer = client.request(query.target(), max_bytes=max_bytes, into=cast(BinaryIO, file))
                _check(query, answer)
                file.seek(0)
                yield from read_lines(cast(BinaryIO, file), query.name)
    except TooLarge as error:
        raise query.error(f"the response has {error}; use a shorter window") from error


def _check(query: Query, answer: ArchiveResponse) -> None:
    kind, status = answer.headers.get_content_type(), answer.status
    if 300 <= status < 400:
        where = answer.headers.get("Location")
        raise query.error(f"HTTP {status}, moved to {where}; use this as the endpoint", status=status, where=where)
    if status != 200 or kind == "text/html":
        problem = f"HTTP {status} of {kind}, not a response to a query; check the endpoint"
        raise query.error(problem, status=status, kind=kind)


def _searched(query: Query, client: Client) -> Iterator[CaptureOrDropped]:
    """Yield the results of a search, with requests until a response has no new result.

    The total number and the next offset in a response are estimates, and may be missing.
    """
    seen: set[tuple[str, str]] = set()
    offset = 0
    assert query.per_request is not None
    for _ in range(MAX_PAGES):
        target = query.target(offset=offset, maxItems=query.per_request, prettyPrint="false")
        answer = client.request(target, max_bytes=MAX_PAGE_BYTES)
        _check(query, answer)
        try:
            items = json.loads(answer.body)["response_items"]
        except (ValueError, KeyError, TypeError, RecursionError):
            items = None
        if not isinstance(items, list):
            raise query.error(f"the response is not JSON with response_items: {answer.body[:80]!r}")
        offset += len(items)
        num_seen = len(seen)
        for number, item in enumerate(items):
            result = _result(item, query.name, offset - len(items) + number)
            key = (result.url, result.timestamp if isinstance(result, CaptureRow) else result.detail)
            if key not in seen:
                seen.add(key)
                yield result
        if len(seen) == num_seen:
            return
    raise query.error(f"no end after {MAX_PAGES} responses; use a shorter window")


def _result(item: Any, source: str, number: int) -> CaptureOrDropped:
    try:
        if not isinstance(item, dict):
            raise ValueError("not an object")
        return capture_row(item, source)
    except ValueError as error:
        detail = f"item {number}: {error}: {json.dumps(item, ensure_ascii=False)[:200]}"
        return DroppedRow(url=source, reason="unreadable line", detail=detail)
