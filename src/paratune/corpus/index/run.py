"""The first stage: which captures there are. Read and filtered input by input, then each digest once, in even shards.

An input is a file, or a query to a server; one process reads it: `1_index/read` has a shard of each. What follows needs
them all in their order, and is done by one.
"""

import base64
import hashlib
import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from paratune.console import Display
from paratune.corpus.index.cdx import read_lines
from paratune.corpus.index.inputs import Source, find_files, open_index, sources_of
from paratune.corpus.index.servers import Query, queries_of, read_query
from paratune.corpus.index.warcs import read_records
from paratune.corpus.rows import INDEX_SCHEMA, CaptureRow, Found, Lost
from paratune.corpus.runs import RunWriter, merge, repeats
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import write_shard
from paratune.corpus.stage import Stage, begin, finish, is_finished, parts, run_stage
from paratune.corpus.web.settings import Network
from paratune.errors import DataError, coded, os_error_as, require_installed

log = logging.getLogger(__name__)

FOLDER = "1_index"
READ_FOLDER = "read"
SCRATCH_FOLDER = "digests"
"""Of the digests while they are sorted; deleted when they are."""
FORMAT = 2
"""Of the rows: raised when the same input gives others than before."""
SCHEMES = ("http", "https", "ftp")
"""Of addresses of documents; crawlers keep logs, names of hosts and pictures of pages under others (metadata, dns)."""
_SCHEME = re.compile(r"([a-z][a-z0-9+-]*):(?![0-9])", re.IGNORECASE)
"""At the start of an address; what has none begins with a host, and maybe its port."""


@dataclass(frozen=True)
class _Input:
    """What one process reads."""

    source: Source | Query
    mimes: tuple[str, ...]
    statuses: tuple[int, ...]
    max_bytes: int
    network: Network


def run_index(corpus: Corpus, workers: int, display: Display) -> dict[str, Any]:
    """Run the stage, or return what it found before.

    Returns:
        Its totals, as in stage.json; those of `read`, which is a part of it, are added.

    Raises:
        DataError: A file is missing, damaged or hostile, or a server answers what is none.
        Unavailable: A server does not answer.
        CheckpointError: The folder cannot be written.
    """
    inputs, ignored = _inputs(corpus)
    folder = Path(corpus.work) / FOLDER
    kept = {"mimes": corpus.index.mimes, "statuses": corpus.index.statuses, "format": FORMAT}
    read = Stage("read", folder / READ_FOLDER, INDEX_SCHEMA, read_input, kept, [_identity(each) for each in inputs])
    settings = {**kept, "unique": corpus.index.unique, "rows_per_shard": corpus.rows_per_shard}
    # Nothing but the reading takes long: it is kept when only what comes after has changed.
    whole = Stage("index", folder, INDEX_SCHEMA, _unused, settings, read.source)
    if is_finished(whole):
        return run_stage(whole, [], workers=workers, display=display)
    for name in ignored:
        log.warning(
            "%s is not read: its name is not that of an index", name, extra=coded("corpus.file_skipped", name=name)
        )
    aside = _keep_read(folder)
    begin(whole)
    if aside is not None:
        aside.replace(read.folder)
    first = run_stage(read, inputs, workers=workers, display=display)
    num_shards = _merge(whole, parts(read.folder), unique=corpus.index.unique, rows=corpus.rows_per_shard)
    return finish(whole, num_shards, read={key: first[key] for key in ("kept", "dropped", "output")}, ignored=ignored)


def _unused(_: object) -> Iterable[Found]:
    raise AssertionError("the shards of the index are written by one process")


def _keep_read(folder: Path) -> Path | None:
    """Move what was read out of the way of `begin`, which may empty the folder; return where it is."""
    aside = folder.with_name(f"{folder.name}.{READ_FOLDER}.tmp")
    if (folder / READ_FOLDER).exists():
        shutil.rmtree(aside, ignore_errors=True)
        (folder / READ_FOLDER).replace(aside)
    return aside if aside.exists() else None


def _inputs(corpus: Corpus) -> tuple[list[_Input], list[str]]:
    """Return what there is to read, in its order, and the names of what lies beside it in ZIPs."""
    index = corpus.index
    max_bytes = int(index.max_unpacked_gib * 2**30)
    sources: list[Source | Query] = []
    ignored: list[str] = []
    for path in find_files(index.files, "index.files"):
        found, others = sources_of(path, max_bytes)
        sources += found
        ignored += [f"{path.name}/{name}" for name in others]
    warcs = find_files(index.warcs, "index.warcs")
    if warcs:
        require_installed("warcio", extra="corpus")
    sources += [Source(path, "warc") for path in warcs]
    sources += [query for server in index.servers for query in queries_of(server)]
    wanted = tuple(_essence(each) for each in index.mimes)
    return [_Input(each, wanted, tuple(index.statuses), max_bytes, corpus.network) for each in sources], ignored


def _identity(each: _Input) -> list[Any]:
    """Return what tells whether a file is still the same, or a query."""
    if isinstance(each.source, Query):
        return ["server", *astuple(each.source)]
    with os_error_as(DataError, f"{each.source.path} cannot be read", code="data.unreadable", path=each.source.path):
        found = each.source.path.stat()
    return [each.source.kind, each.source.path.as_posix(), each.source.member, found.st_size, found.st_mtime_ns]


def read_input(each: _Input) -> Iterator[Found]:
    """Yield the captures of one input that are wanted, and why others are not."""
    for found in _read(each):
        reason = None if isinstance(found, Lost) else _unwanted(found, each)
        yield found if isinstance(found, Lost) or reason is None else Lost(found.url, *reason)


def _read(each: _Input) -> Iterator[Found]:
    if isinstance(each.source, Query):
        yield from read_query(each.source, each.network, each.max_bytes)
        return
    if each.source.kind == "warc":
        yield from read_records(each.source.path)
        return
    with open_index(each.source, each.max_bytes) as file:
        yield from read_lines(file, each.source.name)


def _unwanted(row: CaptureRow, each: _Input) -> tuple[str, str] | None:
    """Return reason and detail of what is against a capture, or None."""
    scheme = _SCHEME.match(row.url)
    if scheme and scheme[1].lower() not in SCHEMES:
        return "scheme", scheme[1].lower()
    mime, status = row.mime, row.status
    kind = _essence(mime or "")
    if kind == "warc/revisit":
        return "revisit", "the document is in another record"
    # A search may say neither; its answers are documents, and what they are is seen when they are fetched.
    is_search = isinstance(each.source, Query) and each.source.per_request is not None
    if kind not in each.mimes and not (is_search and mime is None):
        return "mime", mime or "n/a"
    if status not in each.statuses and not (is_search and status is None):
        return "status", "n/a" if status is None else str(status)
    return None


def _essence(mime: str) -> str:
    """Return a MIME type without its parameters."""
    return re.split(r"[;,\s]", mime.strip().lower(), maxsplit=1)[0]


def _merge(stage: Stage, tables: Sequence[Path], *, unique: bool, rows: int) -> int:
    """Write shards of so many rows, of each digest the first; return how many."""
    scratch = stage.folder / SCRATCH_FOLDER
    shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
    found = _once(_rows(tables), _later(tables, scratch)) if unique else _rows(tables)
    number = 0
    following = next(found, None)
    while following is not None or number == 0:
        shard = _Even(following, found, rows)
        write_shard(stage.folder, number, stage.schema, shard)
        following, number = shard.following, number + 1
    shutil.rmtree(scratch, ignore_errors=True)
    return number


class _Even:
    """The next rows up to so many that are kept, with what is dropped among them."""

    def __init__(self, first: Any, found: Iterator[Any], num_rows: int) -> None:
        self.following = first
        """The first of the next shard, once this one has been read."""
        self._found, self._num_rows = found, num_rows

    def __iter__(self) -> Iterator[Any]:
        num_kept = 0
        while self.following is not None:
            is_kept = not isinstance(self.following, Lost)
            if is_kept and num_kept == self._num_rows:
                return
            num_kept += is_kept
            yield self.following
            self.following = next(self._found, None)


def _rows(tables: Sequence[Path]) -> Iterator[Any]:
    for path in tables:
        with pq.ParquetFile(path) as table:
            for group in range(table.num_row_groups):  # batches over all of them hold more, the more there are
                yield from table.read_row_group(group).to_pylist()


def _once(rows: Iterator[dict[str, Any]], later: Iterator[int]) -> Iterator[Any]:
    """Yield rows, and `Lost` for those whose numbers are in `later`, which is in order."""
    duplicate = next(later, None)
    for number, row in enumerate(rows):
        if number == duplicate:
            yield Lost(row["url"], "duplicate", row["digest"])
            duplicate = next(later, None)
        else:
            yield row


def _later(tables: Sequence[Path], scratch: Path) -> Iterator[int]:
    """Yield the numbers of the rows whose digest an earlier one has, in order; sorted on disk, however many."""
    scratch.mkdir()
    number = 0
    with RunWriter(scratch, 0) as digests:
        for path in tables:
            with pq.ParquetFile(path) as table:
                for group in range(table.num_row_groups):
                    found = table.read_row_group(group, columns=["digest"])["digest"].to_pylist()
                    keyed = [(*_key(each), at) for at, each in enumerate(found, start=number) if each is not None]
                    digests.add(*np.array(keyed, np.uint64).reshape(-1, 3).T)
                    number += len(found)
    with RunWriter(scratch, 1) as numbers:
        for repeated in repeats(merge([scratch / name for name in digests.names])):
            numbers.add(repeated, 0, 0)
    for block in merge([scratch / name for name in numbers.names]):
        yield from block["high"].tolist()


def _key(digest: str) -> tuple[int, int]:
    """Return 128 bits of a digest, the same for all ways to write it."""
    try:
        raw = base64.b32decode(digest)
    except ValueError:
        raw = digest.encode()
    hashed = hashlib.blake2b(raw, digest_size=16).digest()
    return int.from_bytes(hashed[:8], "little"), int.from_bytes(hashed[8:], "little")
