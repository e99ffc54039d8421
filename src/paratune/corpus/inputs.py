"""Finds and opens files of the user: indexes of archives, and texts.

Archives are untrusted: nothing is extracted to disk, and bytes are counted, because sizes in a ZIP may be wrong.
"""

import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from paratune.config.sources import demo_file
from paratune.corpus.shard import BUFFER_BYTES
from paratune.errors import DataError, did_you_mean

SUFFIXES = (".cdx", ".cdxj", ".json", ".jsonl", ".ndjson", ".cdx.gz", ".cdxj.gz", ".json.gz", ".jsonl.gz", ".ndjson.gz")
"""Suffixes of indexes in a ZIP."""


@dataclass(frozen=True)
class Source:
    """An index or archive file with captures."""

    path: Path
    kind: Literal["cdx", "warc"]
    member: str | None = None
    """Name in a ZIP."""

    @property
    def name(self) -> str:
        """Name in rows and messages."""
        return self.path.name if self.member is None else f"{self.path.name}/{self.member}"


def find_files(patterns: Sequence[str], key: str) -> list[Path]:
    """Return the files that match paths and patterns, each once, in order; those of a pattern by name.

    `demo:captures` is the file that comes with paratune.

    Raises:
        DataError: A path or pattern matches no file.
    """
    paths: list[Path] = []
    for pattern in patterns:
        if pattern.startswith("demo:"):
            paths.append(demo_file(pattern, has_captures=True))
            continue
        names = sorted(glob(pattern, recursive=True)) if has_magic(pattern) else [pattern]  # noqa: PTH207 - also absolute ones
        found = [Path(name) for name in names if Path(name).is_file()]
        if not found:
            missing = "is a URL; mount the store, and use a path" if "://" in pattern else "matches no file"
            problem = "is a folder; use its files (folder/*)" if Path(pattern).is_dir() else missing
            raise DataError(f"{key}: {pattern} {problem}", code="data.not_found", key=key, pattern=pattern)
        paths += found
    return list(dict.fromkeys(paths))


def file_identity(paths: Iterable[Path]) -> list[list[Any]]:
    """Return a JSON value that changes when the files change: path, size and time of each."""
    stats = [(path.as_posix(), path.stat()) for path in paths]
    return [[path, stat.st_size, stat.st_mtime_ns] for path, stat in stats]


def index_sources(path: Path) -> tuple[list[Source], list[str]]:
    """Return the indexes in a file, and the names of other files in a ZIP.

    Raises:
        DataError: The file is a ZIP that is damaged or has no index.
    """
    if path.suffix.lower() != ".zip":
        return [Source(path, "cdx")], []
    with _named(path.as_posix()), zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    wanted = [name for name in names if name.lower().endswith(SUFFIXES)]
    if not wanted:
        message = f"{path} contains no index; names of indexes end in {', '.join(SUFFIXES)}"
        raise DataError(message, code="corpus.archive_unreadable", path=path)
    return [Source(path, "cdx", name) for name in wanted], [name for name in names if name not in wanted]


@contextmanager
def open_index(source: Source, max_bytes: int) -> Iterator[BinaryIO]:
    """Open an index for reading, decompressed.

    Raises:
        DataError: The file is unreadable or damaged, or unpacks to too many bytes; also raised during reading.
    """
    with _named(source.name), ExitStack() as stack:
        file: Any = stack.enter_context(source.path.open("rb"))
        if source.member is not None:
            file = stack.enter_context(stack.enter_context(zipfile.ZipFile(file)).open(source.member))
        file = io.BufferedReader(file)
        if file.peek(2)[:2] == b"\x1f\x8b":
            file = gzip.GzipFile(fileobj=file)
        yield cast(BinaryIO, io.BufferedReader(_Counted(file, source.name, max_bytes)))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Replace errors of a damaged or encrypted file by an error that names it."""
    try:
        yield
    except (OSError, EOFError, UnicodeError, zlib.error, zipfile.BadZipFile, RuntimeError) as error:
        message = f"{name} cannot be read to its end: {error}"
        raise DataError(message, code="corpus.archive_unreadable", name=name) from error


class _Counted(io.RawIOBase):
    """Reads from another file and raises when there are too many bytes."""

    def __init__(self, file: Any, name: str, max_bytes: int) -> None:
        self._file, self._name, self._max = file, name, max_bytes
        self._num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        num_bytes = int(self._file.readinto(buffer))
        self._num_bytes += num_bytes
        if self._num_bytes > self._max:
            message = f"{self._name} unpacks to more than {self._max / 2**30:g} GiB; raise index.max_unpacked_gib"
            raise DataError(message, code="corpus.archive_unreadable", name=self._name)
        return num_bytes


DELIMITERS = {".csv": ",", ".tsv": "\t"}
BATCH_SIZE = 2_000
"""Rows of a Parquet file in memory."""
KINDS = (".parquet", *DELIMITERS, ".jsonl", ".ndjson", ".json", ".txt")
"""File formats; all but Parquet also as .gz."""


def read_texts(path: Path, columns: Sequence[str], *, of_tables: bool = False) -> Iterator[str]:
    """Yield the texts in some columns of a file, row by row, or the lines of a .txt file.

    A .txt file must have no `columns`, unless these are `of_tables` among several files.

    Raises:
        DataError: The file is unreadable, has another format, or lacks a column.
    """
    kind = Path(path.name.removesuffix(".gz")).suffix.lower()
    if kind not in KINDS or path.name.endswith(".parquet.gz"):
        message = f"{path}: {kind or 'no suffix'} is not a supported format ({', '.join(KINDS)})"
        raise DataError(message, code="data.format", path=path)
    if (kind == ".txt") == bool(columns) and not (of_tables and kind == ".txt"):
        problem = "has no columns; leave columns out" if columns else "needs columns; name those with texts"
        message = f"{path}: a {kind} file {problem}"
        raise DataError(message, code="data.column_missing", path=path, kind=kind)
    try:
        if kind == ".txt":
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rt", encoding="utf-8-sig") as file:
                yield from (line.strip() for line in file)
            return
        cells = _json_cells(path, columns) if kind == ".json" else _table_cells(path, kind, columns)
        for cell in cells:
            texts = cell if isinstance(cell, list) else [cell]
            yield from (text for text in texts if isinstance(text, str))
    except DataError:
        raise
    except (OSError, EOFError, ValueError, TypeError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}", code="data.unreadable", path=path) from error


def _json_cells(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the values below some keys, at any depth: context, question and answers of SQuAD's layout, for example."""
    content, names = path.read_bytes(), dict[str, None]()

    def values(below: Any, is_wanted: bool) -> Iterator[Any]:
        if isinstance(below, dict):
            names.update(dict.fromkeys(below))
        pairs = below.items() if isinstance(below, dict) else enumerate(below) if isinstance(below, list) else ()
        for key, value in pairs:
            yield from values(value, is_wanted or key in columns)
        if is_wanted:
            yield below

    cells = [*values(json.loads(gzip.decompress(content) if path.suffix == ".gz" else content), is_wanted=False)]
    _refuse_missing(path, columns, list(names))
    yield from (cell for cell in cells if isinstance(cell, str))


def _table_cells(path: Path, kind: str, columns: Sequence[str]) -> Iterator[Any]:
    if kind in (".jsonl", ".ndjson"):
        import pandas as pd

        # Lines that are lists give columns with numbers.
        table = pd.read_json(path, lines=True, dtype=False, encoding="utf-8").rename(columns=str)
        _refuse_missing(path, columns, list(table.columns))
        for cells in table[list(columns)].itertuples(index=False):
            yield from cells
        return
    for batch in _batches(path, kind, columns):
        for row in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            yield from row


def _batches(path: Path, kind: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet, CSV or TSV file, with these columns, some at a time.

    Raises:
        DataError: The file lacks a column.
    """
    if kind == ".parquet":
        with pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False) as table:
            _refuse_missing(path, columns, table.schema_arrow.names)
            yield from table.iter_batches(BATCH_SIZE, columns=list(columns), use_threads=False)
    else:
        parse = pyarrow.csv.ParseOptions(delimiter=DELIMITERS[kind], newlines_in_values=True)
        with pyarrow.csv.open_csv(path, parse_options=parse) as table:
            _refuse_missing(path, columns, table.schema.names)
        # The types of other columns would be guessed from the first rows, and later ones may differ.
        as_text = pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()), include_columns=list(columns)
        )
        with pyarrow.csv.open_csv(path, parse_options=parse, convert_options=as_text) as table:
            yield from table


def _refuse_missing(path: Path, columns: Sequence[str], names: Sequence[str]) -> None:
    missing = [name for name in columns if name not in names]
    if missing:
        message = f"{path} has no column {missing[0]}{did_you_mean(missing[0], names)} ({', '.join(names)})"
        raise DataError(message, code="data.column_missing", path=path)
