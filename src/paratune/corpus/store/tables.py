"""The tables of the finished corpus: documents with what is asked of them most, sentences with where they are from."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from paratune.errors import DataError

TRAIN, VALIDATION = "train", "validation"
SPLITS = (TRAIN, VALIDATION)
_ROWS = 100
"""Of a table that are in memory at a time."""
_OF_DOCUMENT = ("url", "timestamp", "digest", "split")


@dataclass(frozen=True)
class Documents:
    """A table of cleaned documents."""

    table: Path
    validation: float
    """Share of the documents."""


@dataclass(frozen=True)
class SentenceTable:
    """A table of sentences, and that of the documents which they are of."""

    table: Path
    documents: Path


def stored_documents(each: Documents) -> Iterator[dict[str, Any]]:
    """Yield the documents of a table with the columns that are added to them."""
    for row in rows_of(each.table):
        text = row["text"]
        yield row | {
            "host": host_of(row["url"]),
            "year": int(row["timestamp"][:4]),
            "num_characters": len(text),
            "num_words": len(text.split()),
            "split": split_of(row["sha256"], each.validation),
        }


def stored_sentences(each: SentenceTable) -> Iterator[dict[str, Any]]:
    """Yield the sentences of a table with the capture and the split of their document.

    Raises:
        DataError: A sentence is of a document that is not in the table beside it.
    """
    documents = {
        row["id"]: {name: row[name] for name in _OF_DOCUMENT} for row in rows_of(each.documents, ["id", *_OF_DOCUMENT])
    }
    for row in rows_of(each.table):
        document = documents.get(row["document_id"])
        if document is None:
            raise DataError(
                f"{each.table}: {row['document_id']} is not a document of {each.documents}",
                code="data.damaged",
                table=each.table,
            )
        yield row | document


def rows_of(table: Path, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, some at a time.

    Raises:
        DataError: It is missing or damaged.
    """
    try:
        with pq.ParquetFile(table) as file:
            for batch in file.iter_batches(batch_size=_ROWS, columns=columns):
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{table} cannot be read: {error}", code="data.unreadable", table=table) from error


def host_of(url: str) -> str | None:
    """Return the host of a URL in lower case, without a leading "www."; None where it has none."""
    try:
        host = urlsplit(url).hostname
    except ValueError:  # of a port or an address in brackets
        return None
    return host.removeprefix("www.") or None if host else None


def split_of(sha256: str, validation: float) -> str:
    """Return the split of a text by its SHA-256 in hexadecimal: equal texts are in the same, in every corpus."""
    # Of 52 bits, which a float holds exactly.
    return VALIDATION if int(sha256[:13], 16) / 16**13 < validation else TRAIN
