"""Texts of evaluation sets, from files: Parquet, CSV, TSV, JSON lines, or a text a line."""

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from paratune.errors import DataError, did_you_mean

DELIMITERS = {".csv": ",", ".tsv": "\t"}
KINDS = (".parquet", *DELIMITERS, ".jsonl", ".ndjson", ".txt")
"""Kinds of files; all but Parquet also .gz."""


def read_texts(path: Path, columns: Sequence[str]) -> Iterator[str]:
    """Yield the texts of some columns of a file, row by row; of a .txt file its lines. Cells without text have none.

    Raises:
        DataError: It cannot be read, is of another kind, or lacks a column.
    """
    kind = Path(path.name.removesuffix(".gz")).suffix.lower()
    if kind not in KINDS or path.name.endswith(".parquet.gz"):
        raise DataError(f"{path}: {kind or 'no suffix'} is not a kind of file that can be read ({', '.join(KINDS)})")
    if (kind == ".txt") == bool(columns):
        what = "has no columns; name none" if columns else "has columns; name those that hold texts"
        raise DataError(f"{path}: a {kind} file {what} (clean.decontaminate.sets.columns)")
    try:
        yield from _lines(path) if kind == ".txt" else _cells(path, kind, columns)
    except (OSError, EOFError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        for line in file:
            yield line.strip()


def _cells(path: Path, kind: str, columns: Sequence[str]) -> Iterator[str]:
    for batch in _batches(path, kind, columns):
        missing = [name for name in columns if name not in batch.schema.names]
        if missing:
            names = batch.schema.names
            raise DataError(f"{path} has no column {missing[0]}{did_you_mean(missing[0], names)} ({', '.join(names)})")
        for row in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            for cell in row:
                yield from _texts(cell)


def _batches(path: Path, kind: str, columns: Sequence[str]) -> Iterator[Any]:
    if kind == ".parquet":
        with pq.ParquetFile(path) as table:
            named = [name for name in columns if name in table.schema_arrow.names]
            yield from table.iter_batches(columns=named if len(named) == len(columns) else None)
    elif kind in DELIMITERS:
        parse = pyarrow.csv.ParseOptions(delimiter=DELIMITERS[kind], newlines_in_values=True)
        as_text = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string()))
        yield from pyarrow.csv.open_csv(path, parse_options=parse, convert_options=as_text)
    else:
        with pa.input_stream(path) as raw:
            yield from pyarrow.json.read_json(raw).to_batches()


def _texts(cell: Any) -> Iterator[str]:
    """Yield the texts of a cell: itself, or those of a list."""
    if isinstance(cell, str):
        yield cell
    elif isinstance(cell, list):
        for each in cell:
            yield from _texts(each)
