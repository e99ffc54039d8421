"""Records the fetched captures of a shard in an SQLite file, so that an interrupted command requests nothing twice."""

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from paratune.corpus.rows import DroppedRow
from paratune.errors import CheckpointError

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
        self._known = {position for (position,) in self._db.execute("SELECT position FROM results")}

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            message = f"{self._path} cannot be used: {error}; change work"
            raise CheckpointError(message, code="corpus.not_writable", path=self._path) from error

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def __contains__(self, position: int) -> bool:
        return position in self._known

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
            self._known.add(position)

    def read(self, position: int) -> dict[str, Any] | DroppedRow:
        """Return the result of a capture."""
        with self._usable(), self._lock:
            sql = "SELECT head, payload FROM results WHERE position = ?"
            head, payload = self._db.execute(sql, [position]).fetchone()
        row = json.loads(head)
        return DroppedRow(**row) if payload is None else {**row, PAYLOAD: payload}
