"""Makes the tables of the finished corpus: documents with additional columns, sentences with their sources."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from paratune.corpus import shard
from paratune.errors import DataError

TRAIN, VALIDATION = "train", "validation"
SPLITS = (TRAIN, VALIDATION)
_OF_DOCUMENT = ("url", "timestamp", "digest", "split")


def stored_documents(validation: float, table: Path) -> Iterator[dict[str, Any]]:
    """Yield the documents of a table with additional columns; `validation` is the share of the validation split."""
    for row in read_rows(table):
        text = row["text"]
        yield row | {
            "host": url_host(row["url"]),
            "year": int(row["timestamp"][:4]),
            "num_characters": len(text),
            "num_words": len(text.split()),
            "split": text_split(row["sha256"], validation),
        }


def stored_sentences(table: Path, documents_table: Path) -> Iterator[dict[str, Any]]:
    """Yield the sentences of a table with the capture and the split of their document.

    Raises:
        DataError: The document of a sentence is not in the table of documents.
    """
    documents = {
        row["id"]: {name: row[name] for name in _OF_DOCUMENT}
        for row in read_rows(documents_table, ["id", *_OF_DOCUMENT])
    }
    for row in read_rows(table):
        document = documents.get(row["document_id"])
        if document is None:
            message = f"{table}: {row['document_id']} is not a document of {documents_table}"
            raise DataError(message, code="data.damaged", table=table)
        yield row | document


def read_rows(table: Path, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, a batch at a time.

    Raises:
        DataError: The table is missing or damaged.
    """
    try:
        yield from shard.read_rows(table, columns, batch_size=100)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{table} cannot be read: {error}", code="data.unreadable", table=table) from error


def url_host(url: str) -> str | None:
    """Return the host of a URL in lower case, without a leading "www."; None without a host."""
    try:
        host = urlsplit(url).hostname
    except ValueError:  # invalid port or address in brackets
        return None
    return host.removeprefix("www.") or None if host else None


def text_split(sha256: str, validation: float) -> str:
    """Return the split of a text by its SHA-256 (hexadecimal): equal texts get the same split in every corpus."""
    # A float represents 52 bits exactly.
    return VALIDATION if int(sha256[:13], 16) / 16**13 < validation else TRAIN
