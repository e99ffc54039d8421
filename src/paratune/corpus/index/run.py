"""The stage `index`: reads and filters lists of captures, removes repeated digests, and writes shards of equal size.

An input is a file or a query to a server, a list of captures in one window; `1_index/read` has a shard of each, read by
one process. One process then merges these shards in order.
"""

import json
import logging
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import urlencode, urlsplit

import pyarrow.parquet as pq

from paratune.console import Display
from paratune.corpus.database import repeated_rows
from paratune.corpus.index.captures import capture_row, essence, read_lines, read_records
from paratune.corpus.inputs import Source, file_identity, find_files, index_sources, open_index
from paratune.corpus.settings import CdxServer, Corpus, Index, Network, Server, TextSearchServer, after, first_moment
from paratune.corpus.shard import INDEX_SCHEMA, CaptureOrDropped, DroppedRow, counts_file, reading, write_shard
from paratune.corpus.stage import Stage, Workers, begin, finish, is_finished, read_record, run_stage, stage_tables
from paratune.corpus.web import ArchiveResponse, Client, TooLarge, archive_client
from paratune.errors import DataError, coded, require_installed

log = logging.getLogger(__name__)

FOLDER = "1_index"
READ_FOLDER = "read"
FORMAT = 2  # version of the rows; increased when the same input gives other rows
SCHEMES = ("http", "https", "ftp")
"""URL schemes of documents; crawlers store logs, host names and screenshots under others (metadata, dns)."""
_SCHEME = re.compile(r"([a-z][a-z0-9+-]*):(?![0-9])", re.IGNORECASE)
"""Scheme of a URL; a URL without one begins with a host, and possibly a port."""
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


def run_index(corpus: Corpus, workers: Workers, display: Display) -> dict[str, Any]:
    """Run the stage, or return its totals (stage.json, with those of `read`) if it is finished.

    Raises:
        DataError: A file is missing, damaged or unsafe, or a server sends an invalid response.
        Unavailable: A server does not respond.
        CheckpointError: The folder is not writable.
    """
    sources, ignored = _sources(corpus.index)
    folder = Path(corpus.work) / FOLDER
    read_settings = {"mimes": corpus.index.mimes, "statuses": corpus.index.statuses, "format": FORMAT}
    work = partial(read_source, corpus.index, corpus.network)
    identities = [
        ["server", *astuple(source)]
        if isinstance(source, Query)
        else [source.kind, source.member, *file_identity([source.path])]
        for source in sources
    ]
    read = Stage("read", folder / READ_FOLDER, INDEX_SCHEMA, work, read_settings, identities)
    settings = {**read_settings, "unique": corpus.index.unique, "rows_per_shard": corpus.rows_per_shard}
    # Reading takes the most time: it is kept if only settings of the merge have changed.
    whole = Stage("index", folder, INDEX_SCHEMA, iter, settings, read.source)  # written by one process, see `_merge`
    if is_finished(whole):
        return run_stage(whole, [], workers=workers, display=display)
    for name in ignored:
        log.warning("%s is not read: it has no suffix of an index", name, extra=coded("corpus.file_skipped", name=name))
    begin(whole, keep=(READ_FOLDER,))
    first = run_stage(read, [(source,) for source in sources], workers=workers, display=display)
    for number, source in enumerate(sources):
        reasons = read_record(read.folder / counts_file(number), "dropped")["dropped"]
        if not {"torn record", "damaged WARC"}.isdisjoint(reasons):
            text = "index: %s is cut or damaged, and read only up to there; get the whole file, and repeat the command"
            log.warning(text, source.name, extra=coded("corpus.archive_cut", name=source.name))
    num_shards = _merge(whole, stage_tables(read.folder), unique=corpus.index.unique, rows=corpus.rows_per_shard)
    return finish(whole, num_shards, read={key: first[key] for key in ("kept", "dropped", "output")}, ignored=ignored)


def _sources(index: Index) -> tuple[list[Source | Query], list[str]]:
    """Return the files and queries in order, and the names of other files in ZIPs."""
    sources: list[Source | Query] = []
    ignored: list[str] = []
    for path in find_files(index.files, "index.files"):
        file_sources, others = index_sources(path)
        sources += file_sources
        ignored += [f"{path.name}/{name}" for name in others]
    warcs = find_files(index.warcs, "index.warcs")
    if warcs:
        require_installed("warcio", extra="corpus")
    sources += [Source(path, "warc") for path in warcs]
    return [*sources, *(query for server in index.servers for query in server_queries(server))], ignored


def read_source(index: Index, network: Network, source: Source | Query) -> Iterator[CaptureOrDropped]:
    """Yield the captures of a file or query that pass the filters, and drop the others."""
    max_bytes = int(index.max_unpacked_gib * 2**30)
    mimes = [essence(mime) for mime in index.mimes]
    # Results of a search may have neither type nor status; they are documents, and are checked when they are fetched.
    is_search = isinstance(source, Query) and source.per_request is not None
    with ExitStack() as stack:
        if isinstance(source, Query):
            results = read_query(source, network, max_bytes)
        elif source.kind == "warc":
            results = read_records(source.path)
        else:
            results = read_lines(stack.enter_context(open_index(source, max_bytes)), source.name)
        for result in results:
            if isinstance(result, DroppedRow):
                yield result
                continue
            scheme, mime, status = _SCHEME.match(result.url), result.mime, result.status
            kind = essence(mime or "")
            if scheme and scheme[1].lower() not in SCHEMES:
                yield DroppedRow(result.url, "scheme", scheme[1].lower())
            elif kind == "warc/revisit":
                yield DroppedRow(result.url, "revisit", "the document is in another record")
            elif kind not in mimes and not (is_search and mime is None):
                yield DroppedRow(result.url, "mime", mime or "n/a")
            elif status not in index.statuses and not (is_search and status is None):
                yield DroppedRow(result.url, "status", "n/a" if status is None else str(status))
            else:
                yield result


def _merge(stage: Stage, tables: Sequence[Path], *, unique: bool, rows: int) -> int:
    """Write shards of `rows` kept rows, with the first row of each digest if `unique`; return their number."""
    num_shards = 0
    captures = _captures(tables, repeated_rows(stage.folder, tables, "digest") if unique else iter(()), rows)
    for number, shard in groupby(captures, key=itemgetter(0)):
        write_shard(stage.folder, number, stage.schema, (capture for _, capture in shard))
        num_shards = number + 1
    if not num_shards:  # an empty index has one empty shard
        write_shard(stage.folder, 0, stage.schema, ())
    return max(1, num_shards)


def _captures(
    tables: Sequence[Path], repeated: Iterator[tuple[int, int]], rows_per_shard: int
) -> Iterator[tuple[int, Any]]:
    """Yield shard and row of the rows of tables, with `DroppedRow` for those whose places are in sorted `repeated`."""
    duplicate, num_kept = next(repeated, None), 0
    for number, path in enumerate(tables):
        with reading(path), pq.ParquetFile(path) as table:
            groups = map(table.read_row_group, range(table.num_row_groups))  # batches across groups take more memory
            for place, row in enumerate(row for group in groups for row in group.to_pylist()):
                if (number, place) == duplicate:
                    yield max(0, num_kept - 1) // rows_per_shard, DroppedRow(row["url"], "duplicate", row["digest"])
                    duplicate = next(repeated, None)
                else:
                    yield num_kept // rows_per_shard, row
                    num_kept += 1


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
    elif isinstance(server, TextSearchServer):
        types: list[Parameters] = [(("type", document_type),) for document_type in server.types]
        # Without these two, the search returns at most two results per site.
        field = "url" if server.per_site is None else "site"
        options = [("dedupField", field), ("dedupValue", str(server.per_site or 1))]
        options += [("siteSearch", server.site)] if server.site is not None else []
        options += [("collection", ",".join(server.collections))] if server.collections else []
        for query in server.queries:
            for type_parameter in types or [()]:
                yield (("q", query), *options, *type_parameter)
    else:
        for url in server.urls:
            yield (("versionHistory", url),)


def _windows(server: Server) -> Iterator[Parameters]:
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
            result: CaptureOrDropped
            try:
                if not isinstance(item, dict):
                    raise ValueError("not an object")
                result = capture_row(item, query.name)
            except ValueError as error:
                text = json.dumps(item, ensure_ascii=False)[:200]
                detail = f"item {offset - len(items) + number}: {error}: {text}"
                result = DroppedRow(url=query.name, reason="unreadable line", detail=detail)
            key = (result.url, result.detail if isinstance(result, DroppedRow) else result.timestamp)
            if key not in seen:
                seen.add(key)
                yield result
        if len(seen) == num_seen:
            return
    raise query.error(f"no end after {MAX_PAGES} responses; use a shorter window")
