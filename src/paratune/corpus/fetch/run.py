"""The stage `fetch`: fetches the content of each capture in the index.

One process fetches a shard of the index, over several connections. A journal, an SQLite file, stores the results until
the shard is complete, so that an interrupted command requests nothing twice.
"""

import json
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from paratune.console import Display
from paratune.corpus.fetch.sources import MISSING, REDIRECT, Received, fetched_row, from_file, from_range, from_replay
from paratune.corpus.index.run import FOLDER as INDEX_FOLDER
from paratune.corpus.inputs import file_identity, find_files
from paratune.corpus.settings import Corpus, Fetch
from paratune.corpus.shard import FETCHED_SCHEMA, DroppedRow, counts_file, read_rows
from paratune.corpus.stage import Stage, Workers, run_stage, stage_output, stage_tables
from paratune.corpus.web import Unavailable, archive_client
from paratune.errors import CheckpointError, DataError, require_installed

PAYLOAD = "payload"


class Journal(AbstractContextManager["Journal"]):
    """A file of fetched captures by position in the shard; threads may share it."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, which belongs to one version of settings and index; a damaged file is replaced.

        Raises:
            CheckpointError: It cannot be opened: it may be locked, or the disk or the table of open files is full.
        """
        self._path, self._lock = path, threading.Lock()
        with self._usable():
            try:
                self._open()
            except sqlite3.OperationalError:  # the file may be whole, and its captures must not be requested again
                raise
            except sqlite3.DatabaseError:
                path.unlink()
                self._open()

    def _open(self) -> None:
        self._db = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        # The operating system writes what this process has written, also when the process is killed.
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("CREATE TABLE IF NOT EXISTS results (position INTEGER PRIMARY KEY, head TEXT, payload BLOB)")
        self.known = {position for (position,) in self._db.execute("SELECT position FROM results")}
        """Positions of the captures in the file."""

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            message = f"{self._path} cannot be used: {error}; change work"
            raise CheckpointError(message, code="output.not_writable", path=self._path) from error

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def add(self, position: int, result: dict[str, Any] | DroppedRow) -> None:
        """Store the result of a capture; it is kept when this returns, even if the process is killed then.

        Raises:
            CheckpointError: The file cannot be written: the disk may be full.
        """
        row = dict(vars(result)) if isinstance(result, DroppedRow) else dict(result)
        payload = row.pop(PAYLOAD, None)
        with self._usable(), self._lock:
            values = (position, json.dumps(row), payload)
            self._db.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", values)
            self.known.add(position)

    def read(self, position: int) -> dict[str, Any] | DroppedRow:
        """Return the result of a capture."""
        with self._usable(), self._lock:
            sql = "SELECT head, payload FROM results WHERE position = ?"
            head, payload = self._db.execute(sql, [position]).fetchone()
        row = json.loads(head)
        return DroppedRow(**row) if payload is None else {**row, PAYLOAD: payload}


FOLDER = "2_fetch"
FORMAT = 2  # version of the rows; increased when the same input gives other rows
MAX_CONSECUTIVE_FAILURES = 20
"""Successive failed captures after which the command ends."""
MAX_MISSING = 100
"""Missing captures at the start of a shard after which the URL is reported as wrong, once."""
WARNED_FILE = "missing-was-said"
UNAVAILABLE = "unavailable"

FetchResult = dict[str, Any] | DroppedRow


def run_fetch(corpus: Corpus, workers: Workers, display: Display) -> dict[str, Any]:
    """Run the stage, or return its totals (stage.json) if it is finished, with the number of kept `other_digest`.

    Raises:
        DataError: A file is unreadable, or a server sends an invalid response.
        Unavailable: An archive does not respond.
        CheckpointError: The index is not finished, or the folder is not writable.
    """
    before, folder = Path(corpus.work) / INDEX_FOLDER, Path(corpus.work) / FOLDER
    tables = stage_tables(before)
    fetch, files = corpus.fetch, dict[str, Path]()
    others = find_files(fetch.warcs, "fetch.warcs")
    for path in [*find_files(corpus.index.warcs, "index.warcs"), *others]:
        if files.setdefault(path.name, path) != path:
            message = f"{path} and {files[path.name]} have the same name, which an index uses; rename one"
            raise DataError(message, code="config.conflict", path=path)
    if files:
        require_installed("warcio", extra="corpus")
    if not files and fetch.ranges is None and fetch.replay is None:
        message = "captures have no source: set files (index.warcs, fetch.warcs) or a server (fetch.ranges, "
        raise DataError(f"{message}fetch.replay); for the index only, use --only index", code="config.required")
    identity = file_identity(others)
    settings = {**fetch.model_dump(), "warcs": identity, "statuses": corpus.index.statuses, "format": FORMAT}
    work = partial(fetch_shard, corpus, folder, files)
    uses_network = fetch.ranges is not None or fetch.replay is not None
    stage = Stage("fetch", folder, FETCHED_SCHEMA, work, settings, stage_output(before), uses_network)
    totals = run_stage(stage, list(enumerate(tables)), workers=workers, display=display)
    _forget_finished(folder)
    (folder / WARNED_FILE).unlink(missing_ok=True)
    kept = stage_tables(folder) if fetch.other_digest == "keep" else []  # else none is left to count
    fits = (row["digest_fits"] for table in kept for row in read_rows(table, ["digest_fits"]))
    return {**totals, "other_digest": sum(fit is False for fit in fits)}


def _forget_finished(folder: Path) -> None:
    for path in folder.glob("journal-*"):  # also the rollback journals of SQLite
        if (folder / counts_file(int(path.name.split("-")[1]))).exists():
            path.unlink(missing_ok=True)


def fetch_shard(
    corpus: Corpus, folder: Path, files: Mapping[str, Path], number: int, table: Path
) -> Iterator[FetchResult]:
    """Yield the captures of a shard with their content, in order, and drop those that cannot be fetched.

    Args:
        folder: Folder of the stage.
        files: Archive files on this machine, by name.
        number: Number of the shard.
        table: Its table of the index.
    """
    _forget_finished(folder)
    fetch, statuses, connections = corpus.fetch, corpus.index.statuses, corpus.network.connections
    max_bytes = int(fetch.max_payload_mib * 2**20)
    with ExitStack() as stack:
        endpoints = {endpoint for endpoint in (fetch.ranges, fetch.replay) if endpoint is not None}
        clients = {name: stack.enter_context(archive_client(name, corpus.network)) for name in endpoints}
        if clients:
            journal = stack.enter_context(Journal(folder / f"journal-{number:05d}"))
            threads = ThreadPoolExecutor(connections)
            # Last in, first out: end waits, end threads, then close the journal.
            stack.callback(threads.shutdown, cancel_futures=True)
            for client in clients.values():
                stack.push(client)

        def fetch_remote(
            position: int, row: Mapping[str, Any], source: Callable[[], Received | DroppedRow]
        ) -> FetchResult:
            try:
                result = _fetch(row, fetch, statuses, source)
            except Unavailable as error:
                if error.is_out:
                    raise
                return DroppedRow(row["url"], UNAVAILABLE, str(error))  # requested again when the command is repeated
            journal.add(position, result)
            return result

        def start(position: int, row: Mapping[str, Any]) -> Callable[[], FetchResult]:
            """Start to fetch a capture; return a function that waits for the result."""
            path = files.get(Path(row["filename"]).name) if row["filename"] else None
            if path is not None and row["offset"] is not None:
                return partial(_fetch, row, fetch, statuses, partial(from_file, row, path, max_bytes))
            source: Callable[[], Received | DroppedRow]
            if fetch.ranges is not None and None not in (row["filename"], row["offset"], row["length"]):
                source = partial(from_range, row, clients[fetch.ranges], fetch.ranges, max_bytes)
            elif fetch.replay is not None:
                client = clients[fetch.replay]
                source = partial(from_replay, row, client, fetch.replay, max_bytes, nearest=fetch.nearest)
            else:
                problem = f"{row['filename'] or 'its file'} is not on this machine; set fetch.warcs, fetch.ranges or"
                problem = problem if fetch.ranges is None else "the index has no file, offset or length; set"
                return partial(DroppedRow, row["url"], "no way to it", f"{problem} fetch.replay")
            if position in journal.known:
                return partial(journal.read, position)
            return threads.submit(fetch_remote, position, row, source).result

        started = map(start, count(), read_rows(table, batch_size=1000))
        yield from _checked(_in_order(started, 2 * connections), folder / WARNED_FILE)


def _checked(results: Iterator[FetchResult], warned: Path) -> Iterator[FetchResult]:
    """Yield results, and raise when they show that the archive or its URL is wrong.

    Args:
        warned: Created before the error for missing captures, so that it is raised once.

    Raises:
        Unavailable: Too many captures failed or are missing.
    """
    num_failed = num_missing = 0
    has_other = False
    for result in results:
        reason = result.reason if isinstance(result, DroppedRow) else None
        num_failed = num_failed + 1 if reason in (UNAVAILABLE, REDIRECT) else 0
        has_other = has_other or reason != MISSING
        num_missing += not has_other
        if isinstance(result, DroppedRow) and num_failed == MAX_CONSECUTIVE_FAILURES:
            problem = f"{num_failed} successive captures failed: {result.detail}"
            raise Unavailable(f"{problem}; check the URL, or repeat the command later")
        if isinstance(result, DroppedRow) and num_missing == MAX_MISSING and not has_other and not warned.exists():
            warned.touch()
            problem = (
                f"the first {MAX_MISSING} captures are all missing: {result.detail} ({result.url}); check the URL; "
            )
            raise Unavailable(f"{problem}if it is right, repeat the command, which then continues")
        yield result


def _in_order(started: Iterator[Callable[[], FetchResult]], num_ahead: int) -> Iterator[FetchResult]:
    """Yield the results of started requests in order, with `num_ahead` requests in flight."""
    pending: deque[Callable[[], FetchResult]] = deque()
    for wait_for_result in started:
        pending.append(wait_for_result)
        if len(pending) > num_ahead:
            yield pending.popleft()()
    while pending:
        yield pending.popleft()()


def _fetch(
    row: Mapping[str, Any], fetch: Fetch, statuses: Sequence[int], source: Callable[[], Received | DroppedRow]
) -> FetchResult:
    received = source()
    return received if isinstance(received, DroppedRow) else fetched_row(row, received, fetch, statuses)
