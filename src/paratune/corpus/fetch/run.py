"""The second stage: the bytes of each capture that the index found.

A shard of the index is fetched by one process, over several connections. What has come is kept in a journal until the
shard is whole, so that a command that was killed asks for nothing twice.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from paratune.console import Display
from paratune.corpus.fetch.journal import Journal
from paratune.corpus.fetch.payload import PayloadChoice, Received, finished
from paratune.corpus.fetch.records import MISSING, from_file, from_range
from paratune.corpus.fetch.replay import REDIRECT, from_replay
from paratune.corpus.fetch.settings import Fetch
from paratune.corpus.index.inputs import find_files
from paratune.corpus.index.run import FOLDER as INDEX_FOLDER
from paratune.corpus.rows import FETCHED_SCHEMA, Lost
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import counts_file
from paratune.corpus.stage import Stage, output_of, parts, run_stage
from paratune.corpus.web.client import Client, Unavailable
from paratune.corpus.web.limits import client_of
from paratune.corpus.web.settings import Network
from paratune.errors import DataError, require_installed

FOLDER = "2_fetch"
FORMAT = 1
"""Of the rows: raised when the same input gives others than before."""
MAX_IN_A_ROW = 20
"""Captures that the archive may fail to give one after the other, before it is taken to be ill."""
MAX_MISSING = 100
"""Captures at the start of a shard that may all be missing, before the address is taken to be wrong; said once."""
SAID_FILE = "missing-was-said"
UNAVAILABLE = "unavailable"
ROWS_AT_ONCE = 1000
"""Rows of the index that are read at once."""

Fetched = dict[str, Any] | Lost


@dataclass(frozen=True)
class _Shard:
    """What one process fetches."""

    number: int
    table: Path
    """Of the index."""
    folder: Path
    files: Mapping[str, Path]
    """Archive files of this machine by name."""
    fetch: Fetch
    network: Network
    wanted: PayloadChoice

    @property
    def journal(self) -> Path:
        return self.folder / f"journal-{self.number:05d}"


def run_fetch(corpus: Corpus, workers: int, display: Display) -> dict[str, Any]:
    """Run the stage, or return what it found before.

    Returns:
        Its totals, as in stage.json.

    Raises:
        DataError: A file cannot be read, or a server does not give what it should.
        Unavailable: An archive does not answer.
        CheckpointError: The index is not finished, or the folder cannot be written.
    """
    before, folder = Path(corpus.work) / INDEX_FOLDER, Path(corpus.work) / FOLDER
    tables = parts(before)
    files, others = _files(corpus)
    fetch = corpus.fetch
    if not files and fetch.ranges is None and fetch.replay is None:
        raise DataError(
            "there is no way to the captures: name their files (index.warcs, fetch.warcs) or a server (fetch.ranges, "
            "fetch.replay); for the index alone, --only index",
            code="config.required",
        )
    wanted = PayloadChoice(tuple(corpus.index.statuses), int(fetch.max_payload_mib * 2**20), fetch.licence)
    settings = {**fetch.model_dump(), "warcs": others, "statuses": corpus.index.statuses, "format": FORMAT}
    source = output_of(before)
    stage = Stage("fetch", folder, FETCHED_SCHEMA, fetch_shard, settings, source)
    shards = [
        _Shard(number, table, folder, files, fetch, corpus.network, wanted) for number, table in enumerate(tables)
    ]
    totals = run_stage(stage, shards, workers=workers, display=display)
    _forget_finished(folder)
    (folder / SAID_FILE).unlink(missing_ok=True)
    return totals


def _files(corpus: Corpus) -> tuple[dict[str, Path], list[Any]]:
    """Return the archive files of this machine by name, and what tells those of fetch.warcs from others."""
    found: dict[str, Path] = {}
    others = find_files(corpus.fetch.warcs, "fetch.warcs")
    for path in [*find_files(corpus.index.warcs, "index.warcs"), *others]:
        if found.setdefault(path.name, path) != path:
            raise DataError(
                f"{path} and {found[path.name]} have the same name, by which an index calls them; rename one",
                code="config.named_twice",
                path=path,
            )
    if found:
        require_installed("warcio", extra="corpus")
    return found, [[path.as_posix(), path.stat().st_size, path.stat().st_mtime_ns] for path in others]


def _forget_finished(folder: Path) -> None:
    """Delete the journals of shards that are whole."""
    for path in folder.glob("journal-*"):
        if (folder / counts_file(int(path.name.removeprefix("journal-")))).exists():
            path.unlink(missing_ok=True)


def fetch_shard(shard: _Shard) -> Iterator[Fetched]:
    """Yield the captures of a shard of the index with their bytes, in its order, and why others are dropped."""
    _forget_finished(shard.folder)
    with ExitStack() as stack:
        ways = _Ways(shard, stack)
        judge = _Judge(shard.folder)
        for found in _in_order(map(ways.start, count(), _rows(shard.table)), 2 * shard.network.connections):
            judge.see(found)
            yield found


class _Judge:
    """Sees what becomes of the captures of a shard, and ends the command when no archive can be behind that."""

    def __init__(self, folder: Path) -> None:
        self._said = folder / SAID_FILE
        self._num_failed = 0
        self._num_missing = 0
        self._has_other = False

    def see(self, found: Fetched) -> None:
        """Look at the next capture.

        Raises:
            Unavailable: Too many could not be had.
        """
        reason = found.reason if isinstance(found, Lost) else None
        self._num_failed = self._num_failed + 1 if reason in (UNAVAILABLE, REDIRECT) else 0
        if isinstance(found, Lost) and self._num_failed == MAX_IN_A_ROW:
            raise Unavailable(
                f"{MAX_IN_A_ROW} captures one after the other could not be had: {found.detail}; check the "
                "address, or start the same command again when the archive is well"
            )
        self._has_other = self._has_other or reason != MISSING
        self._num_missing += not self._has_other
        if isinstance(found, Lost) and self._num_missing == MAX_MISSING and not self._said.exists():
            self._said.touch()
            raise Unavailable(
                f"the first {MAX_MISSING} captures are all missing: {found.detail} ({found.url}); check the address; "
                "if it is right, start the same command again, which goes on"
            )


def _in_order(started: Iterator[Callable[[], Fetched]], num_ahead: int) -> Iterator[Fetched]:
    """Yield what was started in its order, with so many under way."""
    pending: deque[Callable[[], Fetched]] = deque()
    for each in started:
        pending.append(each)
        if len(pending) > num_ahead:
            yield pending.popleft()()
    while pending:
        yield pending.popleft()()


def _rows(table: Path) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(table) as file:
        for batch in file.iter_batches(ROWS_AT_ONCE):
            yield from batch.to_pylist()


class _Ways:
    """The ways to the bytes of a capture, with what they need: clients, threads, and the journal."""

    def __init__(self, shard: _Shard, stack: ExitStack) -> None:
        self._shard, self._stack = shard, stack
        self._clients: dict[str, Client] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._journal: Journal | None = None
        if shard.fetch.replay is not None or shard.fetch.ranges is not None:
            self._journal = stack.enter_context(Journal(shard.journal))

    def start(self, position: int, row: Mapping[str, Any]) -> Callable[[], Fetched]:
        """Begin to fetch a capture; return what waits for its end."""
        shard, journal = self._shard, self._journal
        path = shard.files.get(Path(row["filename"]).name) if row["filename"] else None
        if path is not None and row["offset"] is not None:
            return partial(_take, row, shard.wanted, partial(from_file, row, path, shard.wanted.max_bytes))
        way = self._way(row)
        if way is None or journal is None:
            return partial(Lost, row["url"], "no way to it", self._why_not(row))
        if position in journal:
            return partial(journal.read, position)
        return self._pool().submit(_ask, position, row, shard.wanted, way, journal).result

    def _way(self, row: Mapping[str, Any]) -> Callable[[], Received | Lost] | None:
        fetch, most = self._shard.fetch, self._shard.wanted.max_bytes
        has_place = None not in (row["filename"], row["offset"], row["length"])
        if fetch.ranges is not None and has_place:
            return partial(from_range, row, self._client(fetch.ranges), fetch.ranges, most)
        if fetch.replay is not None:
            return partial(from_replay, row, self._client(fetch.replay), fetch.replay, most, nearest=fetch.nearest)
        return None

    def _why_not(self, row: Mapping[str, Any]) -> str:
        if self._shard.fetch.ranges is not None:
            return "file, offset or length are not in the index; set fetch.replay"
        return f"{row['filename'] or 'its file'} is not on this machine; set fetch.warcs, fetch.ranges or fetch.replay"

    def _client(self, endpoint: str) -> Client:
        if endpoint not in self._clients:
            client = client_of(endpoint, self._shard.network)
            self._clients[endpoint] = self._stack.enter_context(client)
        return self._clients[endpoint]

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._shard.network.connections)
            # First nobody waits any longer, then all end, then connections and journal are closed.
            self._stack.callback(self._end)
        return self._threads

    def _end(self) -> None:
        for client in self._clients.values():
            client.stop()
        assert self._threads is not None
        self._threads.shutdown(cancel_futures=True)


def _take(row: Mapping[str, Any], wanted: PayloadChoice, way: Callable[[], Received | Lost]) -> Fetched:
    received = way()
    return received if isinstance(received, Lost) else finished(row, received, wanted)


def _ask(
    position: int, row: Mapping[str, Any], wanted: PayloadChoice, way: Callable[[], Received | Lost], journal: Journal
) -> Fetched:
    try:
        found = _take(row, wanted, way)
    except Unavailable as error:
        if error.is_out:
            raise
        return Lost(row["url"], UNAVAILABLE, str(error))  # asked for again when the command is
    journal.add(position, found)
    return found
