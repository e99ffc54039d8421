"""What servers say they hold: one query, of one window of time, is one input of the index."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, BinaryIO, cast
from urllib.parse import urlencode, urlsplit

from paratune.corpus.index.cdx import read_lines, row_of
from paratune.corpus.index.settings import CdxServer, Server, TextSearchServer, Windowed, after, first_moment
from paratune.corpus.rows import CaptureRow, Found, Lost
from paratune.corpus.web.client import ArchiveResponse, Client, TooLarge
from paratune.corpus.web.limits import client_of
from paratune.corpus.web.settings import Network
from paratune.errors import DataError

IN_MEMORY_BYTES = 16 << 20
"""Of an answer of a CDX server; more goes to a temporary file."""
MAX_PAGE_BYTES = 256 << 20
"""Of one answer of a search."""
MAX_PAGES = 10_000
"""Answers of one query; a server that gives more does not count."""
Parameters = tuple[tuple[str, str], ...]
DIGITS = {"year": 4, "month": 6, "day": 8}


@dataclass(frozen=True)
class Query:
    """What is asked of a server."""

    endpoint: str
    parameters: Parameters
    per_request: int | None
    """Items of one answer of a search; None for a CDX server, which answers all at once."""

    @property
    def name(self) -> str:
        """How rows and messages call it."""
        return f"{urlsplit(self.endpoint).netloc} {urlencode(self.parameters)}"

    def target(self, **more: str | int) -> str:
        """Return path and query of a request."""
        return f"{urlsplit(self.endpoint).path or '/'}?{urlencode([*self.parameters, *more.items()])}"


def queries_of(server: Server) -> list[Query]:
    """Return all queries to a server, in the order of what is asked for and then of time."""
    per_request = None if isinstance(server, CdxServer) else server.items_per_request
    return [
        Query(server.endpoint, (*asked, *window), per_request)
        for asked in _asked(server)
        for window in _windows(server)
    ]


def _asked(server: Server) -> Iterator[Parameters]:
    if isinstance(server, CdxServer):
        for url in server.urls:
            filters = [("filter", each) for each in server.filters]
            yield (("url", url), ("matchType", server.match), *filters, ("output", "json"))
    elif isinstance(server, TextSearchServer):
        types: list[Parameters] = [(("type", each),) for each in server.types]
        for query in server.queries:
            for each in types or [()]:
                yield (("q", query), *_narrowed(server), *each)
    else:
        for url in server.urls:
            yield (("versionHistory", url),)


def _narrowed(server: TextSearchServer) -> Iterator[tuple[str, str]]:
    # Without these two the search leaves out all but two answers of a site.
    yield "dedupField", "url" if server.per_site is None else "site"
    yield "dedupValue", str(server.per_site or 1)
    if server.site is not None:
        yield "siteSearch", server.site
    if server.collections:
        yield "collection", ",".join(server.collections)


def _windows(server: Windowed) -> Iterator[Parameters]:
    """Yield from and to of each window; both ends are part of it."""
    if server.window == "whole":
        limits = {"from": server.from_, "to": server.to}
        yield tuple((key, _stamp(stamp, key)) for key, stamp in limits.items() if stamp is not None)
        return
    assert server.from_ is not None
    assert server.to is not None
    start, end = first_moment(server.from_), _end(server.to)
    while start <= end:
        following = after(_begin(start, DIGITS[server.window]), DIGITS[server.window])
        last = min(following - timedelta(seconds=1), end)
        yield (("from", _digits(start)), ("to", _digits(last)))
        start = following


def _begin(moment: datetime, num_digits: int) -> datetime:
    return first_moment(int(_digits(moment)[:num_digits]))


def _end(stamp: int) -> datetime:
    return after(first_moment(stamp), len(str(stamp))) - timedelta(seconds=1)


def _stamp(stamp: int, key: str) -> str:
    return _digits(first_moment(stamp) if key == "from" else _end(stamp))


def _digits(moment: datetime) -> str:
    return f"{moment:%Y%m%d%H%M%S}".rjust(14, "0")


def read_query(query: Query, network: Network, max_bytes: int) -> Iterator[Found]:
    """Yield the captures that a server names, and what could not be read of its answers.

    Args:
        query: What is asked.
        network: How it is asked.
        max_bytes: Most bytes of the answer of a CDX server.

    Raises:
        DataError: The server refuses the query, or answers what is none.
        Unavailable: It does not answer.
    """
    try:
        with client_of(query.endpoint, network) as client:
            yield from _listed(query, client, max_bytes) if query.per_request is None else _searched(query, client)
    except TooLarge as error:
        raise DataError(
            f"{query.name}: the answer has {error}; ask for less with a shorter window",
            code="corpus.server",
            name=query.name,
        ) from error


def _listed(query: Query, client: Client, max_bytes: int) -> Iterator[Found]:
    with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as file:
        # The whole answer first: what is cut is asked for again, and no row is given twice.
        answer = client.ask(query.target(), max_bytes=max_bytes, into=cast(BinaryIO, file))
        _check(query, answer)
        file.seek(0)
        yield from read_lines(cast(BinaryIO, file), query.name)


def _check(query: Query, answer: ArchiveResponse) -> None:
    kind, status = answer.headers.get_content_type(), answer.status
    if 300 <= status < 400:
        where = answer.headers.get("Location")
        raise DataError(
            f"{query.name}: HTTP {status}, it is at {where} now; name that as the endpoint",
            code="corpus.server",
            name=query.name,
            status=status,
            where=where,
        )
    if status != 200 or kind == "text/html":
        raise DataError(
            f"{query.name}: HTTP {status} of {kind}, which is no answer to a query; check the endpoint",
            code="corpus.server",
            name=query.name,
            status=status,
            kind=kind,
        )


def _searched(query: Query, client: Client) -> Iterator[Found]:
    """Yield what the answers of a search hold; it is asked until one brings nothing that is new.

    What an answer says about the number of all and about a next one is an estimate, and may be missing.
    """
    seen: set[tuple[str, str]] = set()
    offset = 0
    assert query.per_request is not None
    for _ in range(MAX_PAGES):
        target = query.target(offset=offset, maxItems=query.per_request, prettyPrint="false")
        answer = client.ask(target, max_bytes=MAX_PAGE_BYTES)
        _check(query, answer)
        items = _items(query, answer.body)
        offset += len(items)
        num_seen = len(seen)
        for number, item in enumerate(items):
            found = _found(item, query.name, offset - len(items) + number)
            key = (found.url, found.timestamp if isinstance(found, CaptureRow) else found.detail)
            if key not in seen:
                seen.add(key)
                yield found
        if len(seen) == num_seen:
            return
    raise DataError(
        f"{query.name}: no end after {MAX_PAGES} answers; ask for less with a shorter window",
        code="corpus.server",
        name=query.name,
    )


def _items(query: Query, body: bytes) -> Sequence[Any]:
    try:
        value = json.loads(body)
        items = value["response_items"]
        if isinstance(items, list):
            return items
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise DataError(
        f"{query.name}: the answer is no JSON with response_items: {body[:80]!r}", code="corpus.server", name=query.name
    )


def _found(item: Any, source: str, number: int) -> Found:
    try:
        if not isinstance(item, dict):
            raise ValueError("no object")
        return row_of(item, source)
    except ValueError as error:
        detail = f"item {number}: {error}: {json.dumps(item, ensure_ascii=False)[:200]}"
        return Lost(url=source, reason="unreadable line", detail=detail)
