"""Reads texts of evaluation sets from Parquet, CSV, TSV, JSON lines, SQuAD's JSON, or lines of text files."""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
        if kind == ".txt":
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rt", encoding="utf-8") as file:
                yield from (line.strip() for line in file)
            return
        cells = _squad_cells(path, columns) if kind == ".json" else _table_cells(path, kind, columns)
        for cell in cells:
            yield from _texts(cell)
    except DataError:
        raise
    except (OSError, EOFError, ValueError) as error:
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
    import pandas as pd

    if kind == ".parquet":
        table = pd.read_parquet(path)
    elif kind in DELIMITERS:
        table = pd.read_csv(path, sep=DELIMITERS[kind], dtype=str, keep_default_na=False, encoding="utf-8")
    else:
        table = pd.read_json(path, lines=True, dtype=False, encoding="utf-8")
    _refuse_missing(path, columns, list(table.columns))
    for row in table[list(columns)].itertuples(index=False):
        yield from row


def _refuse_missing(path: Path, columns: Sequence[str], names: Sequence[str]) -> None:
    missing = [name for name in columns if name not in names]
    if missing:
        message = f"{path} has no column {missing[0]}{did_you_mean(missing[0], names)} ({', '.join(names)})"
        raise DataError(message, code="data.column_missing", path=path)


def _texts(cell: Any) -> Iterator[str]:
    """Yield the text of a cell, or the texts of its list."""
    if isinstance(cell, str):
        yield cell
    elif isinstance(cell, list | np.ndarray):
        for item in cell:
            yield from _texts(item)
