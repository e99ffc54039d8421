"""Reads texts of the user from Parquet, CSV, TSV, JSON lines, SQuAD's JSON, or lines of text files."""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from paratune.corpus.shard import BUFFER_BYTES
from paratune.errors import DataError, did_you_mean

DELIMITERS = {".csv": ",", ".tsv": "\t"}
SQUAD_COLUMNS = ("title", "context", "question", "answers")
"""Texts in SQuAD's JSON, with the names of the columns in its tables."""
BATCH_SIZE = 2_000
"""Rows of a Parquet file in memory."""
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
        message = f"{path}: a {kind} file {problem}"
        raise DataError(message, code="data.columns_unfit", path=path, kind=kind)
    try:
        if kind == ".txt":
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rt", encoding="utf-8-sig") as file:
                yield from (line.strip() for line in file)
            return
        cells = _squad_cells(path, columns) if kind == ".json" else _table_cells(path, kind, columns)
        for cell in cells:
            texts = cell if isinstance(cell, list) else [cell]
            yield from (text for text in texts if isinstance(text, str))
    except DataError:
        raise
    except (OSError, EOFError, ValueError, TypeError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}", code="data.unreadable", path=path) from error


def _squad_cells(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the cells of a file in SQuAD's layout: the title of an article, the context of a paragraph, and so on."""
    _refuse_missing(path, columns, SQUAD_COLUMNS)
    content = path.read_bytes()
    data = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)

    def cells() -> Iterator[tuple[str, Any]]:
        for article in data["data"]:
            yield "title", article.get("title")
            for paragraph in article["paragraphs"]:
                yield "context", paragraph["context"]
                for question in paragraph["qas"]:
                    yield "question", question["question"]
                    yield "answers", [answer["text"] for answer in question.get("answers", ())]

    try:
        yield from (cell for column, cell in cells() if column in columns)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not JSON in SQuAD's layout (data, paragraphs, context, qas, question); convert it to .jsonl "
            "with an object per line, and name its columns",
            code="data.columns_unfit",
            path=path,
        ) from error


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
