"""The stage `index`: reads and filters lists of captures, removes repeated digests, and writes shards of equal size.

An input is a file or a query to a server; `1_index/read` has a shard of each, read by one process. One process then
merges these shards in order.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from paratune.console import Display
from paratune.corpus.database import repeated_rows
from paratune.corpus.index.cdx import essence, read_lines
from paratune.corpus.index.inputs import Source, find_files, index_sources, open_index
from paratune.corpus.index.servers import Query, read_query, server_queries
from paratune.corpus.index.warcs import read_records
from paratune.corpus.rows import INDEX_SCHEMA, CaptureOrDropped, CaptureRow, DroppedRow
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import write_shard
from paratune.corpus.stage import Stage, begin, finish, is_finished, run_stage, stage_tables
from paratune.corpus.web.settings import Network
from paratune.errors import DataError, coded, os_error_as, require_installed

log = logging.getLogger(__name__)

FOLDER = "1_index"
READ_FOLDER = "read"
FORMAT = 2  # version of the rows; increased when the same input gives other rows
SCHEMES = ("http", "https", "ftp")
"""URL schemes of documents; crawlers store logs, host names and screenshots under others (metadata, dns)."""
_SCHEME = re.compile(r"([a-z][a-z0-9+-]*):(?![0-9])", re.IGNORECASE)
"""Scheme of a URL; a URL without one begins with a host, and possibly a port."""


@dataclass(frozen=True)
class IndexInput:
    """A file or query with the filters of captures."""

    source: Source | Query
    mimes: tuple[str, ...]
    statuses: tuple[int, ...]
    max_bytes: int
    network: Network


def run_index(corpus: Corpus, workers: int, display: Display) -> dict[str, Any]:
    """Run the stage, or return its totals (stage.json, with those of `read`) if it is finished.

    Raises:
        DataError: A file is missing, damaged or unsafe, or a server sends an invalid response.
        Unavailable: A server does not respond.
        CheckpointError: The folder is not writable.
    """
    inputs, ignored = _inputs(corpus)
    folder = Path(corpus.work) / FOLDER
    read_settings = {"mimes": corpus.index.mimes, "statuses": corpus.index.statuses, "format": FORMAT}
    read = Stage(
        "read", folder / READ_FOLDER, INDEX_SCHEMA, read_input, read_settings, [_identity(task) for task in inputs]
    )
    settings = {**read_settings, "unique": corpus.index.unique, "rows_per_shard": corpus.rows_per_shard}
    # Reading takes the most time: it is kept if only settings of the merge have changed.
    whole = Stage("index", folder, INDEX_SCHEMA, _unused, settings, read.source)
    if is_finished(whole):
        return run_stage(whole, [], workers=workers, display=display)
    for name in ignored:
        log.warning("%s is not read: it has no suffix of an index", name, extra=coded("corpus.file_skipped", name=name))
    begin(whole, keep=(READ_FOLDER,))
    first = run_stage(read, [(task,) for task in inputs], workers=workers, display=display)
    num_shards = _merge(whole, stage_tables(read.folder), unique=corpus.index.unique, rows=corpus.rows_per_shard)
    return finish(whole, num_shards, read={key: first[key] for key in ("kept", "dropped", "output")}, ignored=ignored)


def _unused(_: object) -> Iterable[CaptureOrDropped]:
    raise AssertionError("the shards of the index are written by one process")


def _inputs(corpus: Corpus) -> tuple[list[IndexInput], list[str]]:
    """Return the inputs in order, and the names of other files in ZIPs."""
    index = corpus.index
    max_bytes = int(index.max_unpacked_gib * 2**30)
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
    sources += [query for server in index.servers for query in server_queries(server)]
    wanted = tuple(essence(mime) for mime in index.mimes)
    return [IndexInput(source, wanted, tuple(index.statuses), max_bytes, corpus.network) for source in sources], ignored


def _identity(task: IndexInput) -> list[Any]:
    """Return a JSON value that identifies a file or query."""
    if isinstance(task.source, Query):
        return ["server", *astuple(task.source)]
    with os_error_as(DataError, f"{task.source.path} cannot be read", code="data.unreadable", path=task.source.path):
        stat = task.source.path.stat()
    return [task.source.kind, task.source.path.as_posix(), task.source.member, stat.st_size, stat.st_mtime_ns]


def read_input(task: IndexInput) -> Iterator[CaptureOrDropped]:
    """Yield the captures of an input that pass the filters, and drop the others."""
    for result in _read(task):
        reason = None if isinstance(result, DroppedRow) else _unwanted(result, task)
        yield result if isinstance(result, DroppedRow) or reason is None else DroppedRow(result.url, *reason)


def _read(task: IndexInput) -> Iterator[CaptureOrDropped]:
    if isinstance(task.source, Query):
        yield from read_query(task.source, task.network, task.max_bytes)
        return
    if task.source.kind == "warc":
        yield from read_records(task.source.path)
        return
    with open_index(task.source, task.max_bytes) as file:
        yield from read_lines(file, task.source.name)


def _unwanted(row: CaptureRow, task: IndexInput) -> tuple[str, str] | None:
    """Return reason and detail for dropping a capture, or None."""
    scheme = _SCHEME.match(row.url)
    if scheme and scheme[1].lower() not in SCHEMES:
        return "scheme", scheme[1].lower()
    mime, status = row.mime, row.status
    kind = essence(mime or "")
    if kind == "warc/revisit":
        return "revisit", "the document is in another record"
    # Results of a search may have neither; they are documents, and are checked when they are fetched.
    is_search = isinstance(task.source, Query) and task.source.per_request is not None
    if kind not in task.mimes and not (is_search and mime is None):
        return "mime", mime or "n/a"
    if status not in task.statuses and not (is_search and status is None):
        return "status", "n/a" if status is None else str(status)
    return None


def _merge(stage: Stage, tables: Sequence[Path], *, unique: bool, rows: int) -> int:
    """Write shards of `rows` rows, with the first row of each digest if `unique`; return their number."""
    captures = _captures(tables, repeated_rows(stage.folder, tables, "digest") if unique else iter(()))
    following = next(captures, None)

    def shard() -> Iterator[Any]:
        """Yield captures up to `rows` kept ones, with the dropped ones between them; `following` is then the next."""
        nonlocal following
        num_kept = 0
        while following is not None:
            is_kept = not isinstance(following, DroppedRow)
            if is_kept and num_kept == rows:
                return
            num_kept += is_kept
            yield following
            following = next(captures, None)

    number = 0
    while following is not None or number == 0:  # an empty index has one empty shard
        write_shard(stage.folder, number, stage.schema, shard())
        number += 1
    return number


def _captures(tables: Sequence[Path], repeated: Iterator[tuple[int, int]]) -> Iterator[Any]:
    """Yield the rows of tables, and `DroppedRow` for those whose places are in the sorted `repeated`."""
    duplicate = next(repeated, None)
    for number, path in enumerate(tables):
        with pq.ParquetFile(path) as table:
            at = 0
            for group in range(table.num_row_groups):  # batches across groups take more memory
                for row in table.read_row_group(group).to_pylist():
                    if (number, at) == duplicate:
                        yield DroppedRow(row["url"], "duplicate", row["digest"])
                        duplicate = next(repeated, None)
                    else:
                        yield row
                    at += 1
