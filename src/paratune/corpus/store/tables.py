"""Makes the tables of the finished corpus: documents with additional columns, sentences with their sources, texts."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from paratune.base.atomic import replace_folder
from paratune.corpus.shard import ShardWriter, read_rows
from paratune.errors import DataError

TRAIN, VALIDATION = "train", "validation"
SPLITS = (TRAIN, VALIDATION)
TEXTS_FOLDER = "texts"
_TEXTS_SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string())])
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


def write_texts(folder: Path, tables: Sequence[Path], *, key: str) -> dict[str, int]:
    """Write the texts of tables in order to texts/train.parquet and texts/validation.parquet, complete or absent.

    Args:
        folder: Folder of the store; earlier files are replaced.
        key: Column with the id of the document, which becomes the column `id` next to `text`.

    Returns:
        Number of texts by split. An empty split has no file.
    """
    counts = dict.fromkeys(SPLITS, 0)
    with replace_folder(folder / TEXTS_FOLDER) as temporary, ExitStack() as stack:
        writers: dict[str, ShardWriter] = {}
        for row in (row for table in tables for row in read_rows(table, [key, "text", "split"])):
            split = row["split"]
            if split not in writers:
                writers[split] = stack.enter_context(ShardWriter(temporary / f"{split}.parquet", _TEXTS_SCHEMA))
            writers[split].add({"id": row[key], "text": row["text"]})
            counts[split] += 1
    return counts


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
