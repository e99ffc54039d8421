"""Opens DuckDB connections without network and with limited memory, for queries on the tables of a corpus."""

import contextlib
import itertools
import os
import platform
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paratune.base.process_state import is_running
from paratune.base.text import plain
from paratune.errors import CheckpointError, require

MEMORY = "256MiB"
"""Memory limit of a connection, above which DuckDB uses files."""
THREADS = min(4, os.cpu_count() or 1)
"""Threads of a connection; each has a part of a table in memory. Results do not depend on their number."""
NUM_FETCHED = 1 << 15
"""Rows of a result in memory."""
_ROWS = 1 << 40
"""More than the rows of a table."""
_SCRATCH = ".duckdb-"
"""Start of the name of a temporary folder. It is no name of `base.atomic`: a build deletes those in `work`, where
queries may run without its lock."""
_NUMBERS = itertools.count()
_OPEN: set[str] = set()
"""Names of the temporary folders of the open connections of this process; a connection may open while another reads."""


@contextlib.contextmanager
def connection(folder: Path) -> Iterator[Any]:
    """Open DuckDB in memory, with temporary files in an existing folder.

    Raises:
        MissingDependency: DuckDB is not installed.
        CheckpointError: Memory or disk is full, or a table is damaged or cannot be opened.
    """
    duckdb = require("duckdb", extra="corpus")
    delete_scratch(folder)
    # With the name of the machine: tasks on other machines may use the same folder. DuckDB creates it when it needs it,
    # since statistics of a corpus need no permission to write.
    own = folder / f"{_SCRATCH}{platform.node()}.{os.getpid()}-{next(_NUMBERS)}"
    _OPEN.add(own.name)
    settings = {
        "threads": THREADS,
        "memory_limit": MEMORY,
        "temp_directory": str(own),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
    }
    try:
        with duckdb.connect(":memory:", config=settings) as opened:
            opened.execute("SET enable_progress_bar = false")
            yield opened
    except duckdb.Error as error:
        problem = f"DuckDB: {plain(str(error).splitlines()[0])}"
        if isinstance(error, duckdb.OutOfMemoryException | duckdb.IOException):
            message = f"{problem}; free space in {folder}, or change work"
            raise CheckpointError(message, code="output.not_writable", folder=folder) from error
        message = f"{problem}; delete the folder of this table and repeat the command"
        raise CheckpointError(message, code="corpus.damaged") from error
    finally:
        shutil.rmtree(own, ignore_errors=True)
        _OPEN.discard(own.name)


def delete_scratch(folder: Path, *, is_locked: bool = False) -> None:
    """Delete the temporary folders of killed processes of this machine; with a lock on the folder, those of all."""
    for path in folder.glob(f"{_SCRATCH}*"):
        name, _, number = path.name.rpartition(".")
        pid = int(number.partition("-")[0]) if number[:1].isdigit() else 0
        # A number of a process is used again: one of an earlier process may be that of this one.
        is_ended = path.name not in _OPEN if pid == os.getpid() else not is_running(pid)
        if is_locked or (name == f"{_SCRATCH}{platform.node()}" and is_ended):
            shutil.rmtree(path, ignore_errors=True)


def query(folder: Path, sql: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query, see `connection`."""
    with connection(folder) as db:
        result = db.execute(sql, values)
        while rows := result.fetchmany(NUM_FETCHED):
            yield from rows


def parquet(tables: Sequence[Path]) -> str:
    """Return SQL for the rows of tables in order; patterns in names are not expanded, name=value adds no column."""
    names = [re.sub(r"([\[*?])", r"[\1]", str(table)) for table in tables]
    quoted = ["'" + name.replace("'", "''") + "'" for name in names]  # file names cannot be parameters
    return f"read_parquet([{', '.join(quoted)}], hive_partitioning = false)"


def repeated_rows(folder: Path, tables: Sequence[Path], column: str) -> Iterator[tuple[int, int]]:
    """Yield table and row, counted from 0, of each row with a value that an earlier row has, in order.

    Rows without a value are never repeated. Values are compared by their MD5: two of 10^12 are equal by chance with a
    probability of 10^-15.
    """
    if tables:
        yield from query(
            folder,
            f"""
            SELECT place // {_ROWS}, place % {_ROWS} FROM (
                SELECT place, row_number() OVER (PARTITION BY key ORDER BY place) AS nth FROM (
                    SELECT md5_number({column}) AS key, file_index::UBIGINT * {_ROWS} + file_row_number AS place
                    FROM {parquet(tables)} WHERE {column} IS NOT NULL
                )
            ) WHERE nth > 1 ORDER BY place
            """,
        )
