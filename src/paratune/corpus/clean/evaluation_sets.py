"""Reads texts of evaluation sets from Parquet, CSV, TSV, JSON lines, SQuAD's JSON, or lines of text files."""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from paratune.errors import DataError, did_you_mean

DELIMITERS = {".csv": ",", ".tsv": "\t"}
SQUAD_COLUMNS = ("title", "context", "question", "answers")
"""Texts in SQuAD's JSON, with the names of the columns in its tables."""
KINDS = (".parquet", *DELIMITERS, ".jsonl", ".ndjson", ".json", ".txt")
"""File formats; all but Parquet also as .gz."""


def read_texts(path: Path, columns: Sequence[str]) -> Iterator[str]:
    """Yield the texts in some columns of a file, row by row, or the lines of a .txt file.

    Raises:
        DataError: The file is unreadable, has another format, or lacks a column.
    """
    kind = Path(path.name.removesuffix(".gz")).suffix.lower()
    if kind not in KINDS or path.name.endswith(".parquet.gz"):
        message = f"{path}: {kind or 'no suffix'} is not a supported format ({', '.join(KINDS)})"
        raise DataError(message, code="data.format", path=path)
    if (kind == ".txt") == bool(columns):
        problem = "has no columns; leave columns out" if columns else "needs columns; name those with texts"
        message = f"{path}: a {kind} file {problem} (clean.decontaminate.sets.columns)"
        raise DataError(message, code="data.columns_unfit", path=path, kind=kind)
    try:
        read = {".txt": _lines, ".json": _squad}.get(kind, _cells)
        yield from read(path, kind, columns)
    except DataError:
        raise
    except (OSError, EOFError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}", code="data.unreadable", path=path) from error


def _opened(path: Path) -> IO[str]:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _lines(path: Path, _: str, __: Sequence[str]) -> Iterator[str]:
    with _opened(path) as file:
        for line in file:
            yield line.strip()


def _squad(path: Path, _: str, columns: Sequence[str]) -> Iterator[str]:
    """Yield the texts of a file in SQuAD's layout, each text once."""
    _refuse_missing(path, columns, SQUAD_COLUMNS)
    with _opened(path) as file:
        content = json.load(file)
    try:
        for column, cell in _squad_cells(content):
            if column in columns:
                yield from _texts(cell)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not JSON in SQuAD's layout (data, paragraphs, context, qas, question); convert it to .jsonl "
            "with an object per line, and name its columns",
            code="data.columns_unfit",
            path=path,
        ) from error


def _squad_cells(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield column and cell of each text, each once: the title of an article, the context of a paragraph, and so on."""
    for article in content["data"]:
        yield "title", article.get("title")
        for paragraph in article["paragraphs"]:
            yield "context", paragraph["context"]
            for question in paragraph["qas"]:
                yield "question", question["question"]
                yield "answers", [answer["text"] for answer in question.get("answers", ())]


def _cells(path: Path, kind: str, columns: Sequence[str]) -> Iterator[str]:
    for batch in _batches(path, kind, columns):
        _refuse_missing(path, columns, batch.schema.names)
        for row in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            for cell in row:
                yield from _texts(cell)


def _refuse_missing(path: Path, columns: Sequence[str], names: Sequence[str]) -> None:
    missing = [name for name in columns if name not in names]
    if missing:
        message = f"{path} has no column {missing[0]}{did_you_mean(missing[0], names)} ({', '.join(names)})"
        raise DataError(message, code="data.column_missing", path=path)


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
    """Yield the text of a cell, or the texts of its list."""
    if isinstance(cell, str):
        yield cell
    elif isinstance(cell, list):
        for item in cell:
            yield from _texts(item)
