"""Writes one DuckDB database with copies of all tables of the corpus, and opens DuckDB connections.

documents, sentences   all columns of the tables of the store
dropped                stage, id, url, reason, detail of all dropped rows
stages                 position, stage, kept, dropped, in order
"""

import contextlib
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from paratune.base.atomic import delete_remains, replace_file
from paratune.base.text import plain
from paratune.corpus.finished import FinishedStage
from paratune.errors import DataError, require

FILE = "corpus.duckdb"
MEMORY = "512MiB"
"""Memory limit of a connection, above which DuckDB uses files. Documents of 0.5 MB need as much."""
FIRST_MEMORY = "64MiB"
"""Limit for the first attempt to write the database: buffers always grow up to the limit."""
_STORAGE = "v1.4.0"
"""Oldest version of DuckDB that can read the file."""


@contextlib.contextmanager
def connection(scratch: Path, *, threads: int = 1, memory: str | None = None) -> Iterator[Any]:
    """Open DuckDB in memory, without network and with limited memory.

    Args:
        scratch: Prefix of the temporary folder of this process.
        memory: Memory limit, in DuckDB's notation; MEMORY by default.

    Raises:
        MissingDependency: DuckDB is not installed.
        DataError: A table is missing or damaged, or memory or disk is full.
    """
    duckdb = require("duckdb", extra="corpus")
    _clear_scratch(scratch)
    # DuckDB makes this folder, but not its parents.
    own = scratch.with_name(f"{scratch.name}.{platform.node()}-{os.getpid()}")
    settings = {
        "threads": threads,
        "memory_limit": memory or MEMORY,
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


def _clear_scratch(scratch: Path) -> None:
    """Delete the folders of killed processes of this machine."""
    for path in scratch.parent.glob(f"{scratch.name}.{platform.node()}-*"):
        pid = path.name.rpartition("-")[2]
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            shutil.rmtree(path, ignore_errors=True)
        except (OSError, ValueError):
            pass  # a process of another user, or another name


def write_database(
    folder: Path, documents: Sequence[Path], sentences: Sequence[Path], stages: Sequence[FinishedStage]
) -> None:
    """Write the database; the file is complete or absent.

    Raises:
        DataError: A document needs more memory than the limit, or a table is damaged.
    """
    # Free the memory of the tables before DuckDB allocates its own.
    pa.default_memory_pool().release_unused()
    delete_remains(folder, is_locked=True)
    with replace_file(folder / FILE) as temporary:
        try:
            _write(temporary, documents, sentences, stages, FIRST_MEMORY)
        except DataError:
            _write(temporary, documents, sentences, stages, MEMORY)


def _write(
    aside: Path, documents: Sequence[Path], sentences: Sequence[Path], stages: Sequence[FinishedStage], memory: str
) -> None:
    aside.unlink(missing_ok=True)
    with connection(aside.with_name(f".{FILE}.scratch"), memory=memory) as db:
        db.execute(f"ATTACH {quoted(aside)} AS corpus (STORAGE_VERSION '{_STORAGE}', ROW_GROUP_SIZE 16384)")
        db.execute("SET force_compression = 'zstd'")
        db.execute("USE corpus")
        for name, tables in (("documents", documents), ("sentences", sentences)):
            if tables:
                db.execute(f"CREATE TABLE {name} AS SELECT * FROM {parquet(tables)}")
        _write_stages(db, stages)
        db.execute("USE memory")
        db.execute("DETACH corpus")


def _write_stages(db: Any, stages: Sequence[FinishedStage]) -> None:
    db.execute("CREATE TABLE stages (position INTEGER, stage VARCHAR, kept BIGINT, dropped BIGINT)")
    db.execute("CREATE TABLE dropped (stage VARCHAR, id VARCHAR, url VARCHAR, reason VARCHAR, detail VARCHAR)")
    for position, stage in enumerate(stages):
        counts = [stage.totals["kept"], sum(stage.totals["dropped"].values())]
        db.execute("INSERT INTO stages VALUES (?, ?, ?, ?)", [position, stage.name, *counts])
        if counts[1]:
            db.execute(
                f"INSERT INTO dropped SELECT ?, id, url, reason, detail FROM {parquet(stage.dropped)}", [stage.name]
            )


def parquet(tables: Sequence[Path]) -> str:
    """Return SQL for the rows of tables in order; patterns in names are not expanded."""
    return f"read_parquet([{', '.join(map(quoted, tables))}])"


def quoted(value: Any) -> str:
    """Return an SQL string literal, for file names, which cannot be parameters."""
    text = str(value).replace("'", "''")
    return f"'{text}'"
