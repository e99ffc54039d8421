"""Opens DuckDB connections without network and with limited memory, for queries on the tables of a corpus."""

import contextlib
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paratune.base.atomic import delete_remains, temporary_path
from paratune.base.text import plain
from paratune.errors import DataError, require

MEMORY = "256MiB"
"""Memory limit of a connection, above which DuckDB uses files."""
THREADS = min(4, os.cpu_count() or 1)
"""Threads of a connection; each has a part of a table in memory. Results do not depend on their number."""
NUM_FETCHED = 1 << 15
"""Rows of a result in memory."""
_ROWS = 1 << 40
"""More than the rows of a table."""


@contextlib.contextmanager
def connection(folder: Path) -> Iterator[Any]:
    """Open DuckDB in memory, with temporary files in an existing folder.

    Raises:
        MissingDependency: DuckDB is not installed.
        DataError: A table is missing or damaged, or memory or disk is full.
    """
    duckdb = require("duckdb", extra="corpus")
    # With the name of the machine: tasks on other machines may use the same folder.
    scratch = folder / f"duckdb-{platform.node()}"
    delete_remains(folder, name=scratch.name)
    own = temporary_path(scratch)
    settings = {
        "threads": THREADS,
        "memory_limit": MEMORY,
        "temp_directory": str(own),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
    }
    with duckdb.connect(":memory:", config=settings) as opened:
        opened.execute("SET enable_progress_bar = false")
        try:
            yield opened
        except duckdb.Error as error:
            raise DataError(f"DuckDB: {plain(str(error).splitlines()[0])}", code="corpus.query") from error
        finally:
            shutil.rmtree(own, ignore_errors=True)


def query(folder: Path, sql: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query, see `connection`."""
    with connection(folder) as db:
        result = db.execute(sql, values)
        while rows := result.fetchmany(NUM_FETCHED):
            yield from rows


def parquet(tables: Sequence[Path]) -> str:
    """Return SQL for the rows of tables in order; patterns in names are not expanded."""
    names = ["'" + str(table).replace("'", "''") + "'" for table in tables]  # file names cannot be parameters
    return f"read_parquet([{', '.join(names)}])"


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
