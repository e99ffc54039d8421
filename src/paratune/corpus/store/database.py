"""One database of the whole corpus, for questions in SQL: it holds its own copies, and can be moved and read anywhere.

documents, sentences   all columns of the tables of the store
dropped                stage, id, url, reason, detail of all that was dropped
stages                 position, stage, kept, dropped, in their order
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
from paratune.corpus.made import Made
from paratune.errors import DataError, require

FILE = "corpus.duckdb"
MEMORY = "512MiB"
"""Most memory of one connection; what takes more goes through files. Less is too little for documents of 0.5 MB."""
FIRST_MEMORY = "64MiB"
"""That with which the database is written first: buffers grow up to the limit, whatever the documents need."""
_STORAGE = "v1.4.0"
"""The oldest DuckDB that can read the file."""


@contextlib.contextmanager
def connection(scratch: Path, *, threads: int = 1, memory: str | None = None) -> Iterator[Any]:
    """Open DuckDB in memory, so that it asks no network and holds little.

    Args:
        scratch: Begins the name of a folder for what does not fit in memory, which is made when it is needed, and
            deleted. Several processes may give the same.
        threads: Which change nothing of a result.
        memory: Most of it, as DuckDB writes sizes; MEMORY when not given.

    Raises:
        MissingDependency: DuckDB is not installed.
        DataError: A table is missing or damaged, or there is no room in memory or on the disk.
    """
    duckdb = require("duckdb", extra="corpus")
    _clear_scratch(scratch)
    # Beside each other: DuckDB makes this folder, and none above it.
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
    """Delete what processes of this machine left that were killed."""
    for path in scratch.parent.glob(f"{scratch.name}.{platform.node()}-*"):
        pid = path.name.rpartition("-")[2]
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            shutil.rmtree(path, ignore_errors=True)
        except (OSError, ValueError):
            pass  # it is alive and another's, or the name is not ours


def write_database(folder: Path, documents: Sequence[Path], sentences: Sequence[Path], stages: Sequence[Made]) -> None:
    """Write the database, whole or not at all.

    Args:
        folder: That of the store.
        documents: Its tables of documents.
        sentences: Those of sentences; the table is left out when there are none.
        stages: All that are finished.

    Raises:
        DataError: There is too little memory for its documents, or a table is damaged.
    """
    # What the tables took of memory goes back to the system before DuckDB takes its own.
    pa.default_memory_pool().release_unused()
    delete_remains(folder, is_locked=True)
    with replace_file(folder / FILE) as temporary:
        try:
            _write(temporary, documents, sentences, stages, FIRST_MEMORY)
        except DataError:
            _write(temporary, documents, sentences, stages, MEMORY)


def _write(
    aside: Path, documents: Sequence[Path], sentences: Sequence[Path], stages: Sequence[Made], memory: str
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


def _write_stages(db: Any, stages: Sequence[Made]) -> None:
    db.execute("CREATE TABLE stages (position INTEGER, stage VARCHAR, kept BIGINT, dropped BIGINT)")
    db.execute("CREATE TABLE dropped (stage VARCHAR, id VARCHAR, url VARCHAR, reason VARCHAR, detail VARCHAR)")
    for position, each in enumerate(stages):
        counts = [each.totals["kept"], sum(each.totals["dropped"].values())]
        db.execute("INSERT INTO stages VALUES (?, ?, ?, ?)", [position, each.name, *counts])
        if counts[1]:
            db.execute(
                f"INSERT INTO dropped SELECT ?, id, url, reason, detail FROM {parquet(each.dropped)}", [each.name]
            )


def parquet(tables: Sequence[Path]) -> str:
    """Return the SQL for the rows of tables in their order; a name that looks like a pattern still means that file."""
    return f"read_parquet([{', '.join(map(quoted, tables))}])"


def quoted(value: Any) -> str:
    """Return a text of SQL, for names of files, which cannot be parameters."""
    text = str(value).replace("'", "''")
    return f"'{text}'"
