"""Schemas of the tables (captures, documents, sentences, dropped rows), and the files of a shard, complete or absent.

part-00000.parquet      kept rows
dropped-00000.parquet   id, url, reason and detail of dropped rows
counts-00000.json       counts of both; written last, so that its presence means that the shard is complete
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from paratune.base.atomic import replace_file
from paratune.errors import CheckpointError, os_error_as
from paratune.records import file_sha256, write_json


@dataclass(frozen=True)
class CaptureRow:
    """A capture in an index."""

    url: str
    timestamp: str
    """UTC, 14 digits: YYYYMMDDhhmmss."""
    digest: str | None
    """SHA-1 of the payload in base32."""
    mime: str | None
    """MIME type that the server declared."""
    status: int | None
    """HTTP status code."""
    offset: int | None
    """First byte of the record in its file."""
    length: int | None
    """Bytes of the record in its file."""
    filename: str | None
    """WARC or ARC file that contains it."""
    source: str
    """Index or archive file in which it is listed."""


@dataclass(frozen=True)
class DroppedRow:
    """A dropped capture, document or sentence."""

    url: str
    """URL of the capture; the name of the file if no capture could be read."""
    reason: str
    """A few words; rows are counted by reason."""
    detail: str
    """The offending value."""
    id: str | None = None
    """Id of the document, if it has one."""


CaptureOrDropped = CaptureRow | DroppedRow


def text_columns(*names: str) -> dict[str, pa.DataType]:
    """Return columns of texts, for `pa.schema`."""
    return dict.fromkeys(names, pa.string())


INDEX_SCHEMA = pa.schema(
    text_columns("url", "timestamp", "digest", "mime")
    | {"status": pa.int32(), "offset": pa.int64(), "length": pa.int64()}
    | text_columns("filename", "source")
)
FETCHED_SCHEMA = pa.schema(
    text_columns("url", "timestamp", "digest", "mime")
    | {"status": pa.int32()}
    | text_columns("source", "content_type", "sha1")
    | {"digest_fits": pa.bool_()}
    | text_columns("how", "licence", "robots")
    | {"payload": pa.large_binary()}
)
"""A fetched capture: columns of the index, and

content_type: HTTP header with the charset, or null.
sha1: SHA-1 of `payload` in base32, like `digest`.
digest_fits: whether the bytes as sent or `payload` have `digest`; null where they cannot be compared.
how: source of the bytes: file, range or replay.
licence, robots: terms of use from the settings, a header or a meta element, or null.
payload: body, decoded from transfer and content encodings.
"""
DOCUMENT_SCHEMA = pa.schema(
    text_columns("id", "url", "timestamp", "digest", "source", "mime", "charset")
    | text_columns("extractor", "licence", "robots", "title", "text", "sha256", "language")
    | {"language_score": pa.float32(), "variety": pa.string(), "variety_score": pa.float32(), "num_masked": pa.int32()}
)
"""A document, in all stages from extraction.

id: first 16 hexadecimal digits of the SHA-256 of "url timestamp digest".
mime: MIME type by the first bytes, not the declared one.
text: a paragraph per line.
sha256: SHA-256 of `text` in UTF-8, hexadecimal; updated by each step that changes the text.
language: ISO 639-1, with its probability; null before it is known, like variety (pt-PT, pt-BR) and num_masked.
"""
SENTENCE_SCHEMA = pa.schema(
    {"document_id": pa.string(), "position": pa.int32()} | text_columns("text", "sha256") | {"perplexity": pa.float32()}
)
"""A sentence; `position` counts from 0 in its document, `perplexity` is null if unknown."""
_NUMBERS = dict.fromkeys(("year", "num_characters", "num_words"), pa.int32())
STORED_DOCUMENT_SCHEMA = pa.schema(
    [*DOCUMENT_SCHEMA, *(text_columns("host") | _NUMBERS | text_columns("split")).items()]
)
"""A document of the finished corpus, with

host: host of the URL, in lower case, without a leading "www."; null without a host.
year: year of the capture.
num_words: words between white space.
split: train or validation, by the SHA-256 of the text.
"""
STORED_SENTENCE_SCHEMA = pa.schema([*SENTENCE_SCHEMA, *text_columns("url", "timestamp", "digest", "split").items()])
"""A sentence of the finished corpus, with the capture and the split of its document."""
DROPPED_SCHEMA = pa.schema(text_columns("id", "url", "reason", "detail"))

BUFFER_BYTES = 1 << 20
"""Read-ahead of a column; without it a whole shard would be read."""
MAX_PYTHON_ROWS, MAX_PYTHON_BYTES = 250, 1 << 20
"""Rows, and bytes in them, that are kept as dicts before they become an Arrow batch, which takes less memory."""
MAX_GROUP_ROWS, MAX_GROUP_BYTES = 10_000, 4 << 20
"""Rows of a row group, and bytes of text and payload in them: the memory that writing a shard takes."""


def writing(failed: str = "written", **place: Path) -> AbstractContextManager[None]:
    """Raise CheckpointError instead of an OSError of the block, which writes to a `path` or `folder` in `work`."""
    (path,) = place.values()
    failure = f"{path} cannot be {failed}"
    return os_error_as(CheckpointError, failure, "change work", code="output.not_writable", **place)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise CheckpointError where the block cannot read a file that a stage has written: absent or damaged."""
    remedy = f"delete {path.parent} to make it again"
    with os_error_as(CheckpointError, f"{path} cannot be read", remedy, code="corpus.damaged", path=path):
        try:
            yield
        except pa.ArrowMemoryError:  # the file may be complete
            raise
        except pa.ArrowException as error:
            raise OSError(str(error)) from error


def part_file(number: int, kind: Literal["part", "dropped"] = "part") -> str:
    return f"{kind}-{number:05d}.parquet"


def counts_file(number: int) -> str:
    return f"counts-{number:05d}.json"


def read_rows(path: Path, columns: list[str] | None = None, *, batch_size: int = 200) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet table, with one batch in memory at a time.

    Raises:
        CheckpointError: The table is missing or damaged.
    """
    # Otherwise the stage that is reading it would report that it cannot write.
    with reading(path), closing(pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False)) as table:
        for batch in table.iter_batches(batch_size, columns=columns, use_threads=False):
            yield from batch.to_pylist()


def write_shard(folder: Path, number: int, schema: pa.Schema, results: Iterable[Any]) -> dict[str, Any]:
    """Write a shard and return its counts.

    Args:
        results: Kept rows, as mappings or dataclasses with a field for each column, and dropped ones, in order.

    Returns:
        `kept`, `dropped` (counts by reason, sorted), and `sha256` of both tables.

    Raises:
        CheckpointError: The folder is not writable.
    """
    reasons: Counter[str] = Counter()
    num_kept = 0
    tables = (folder / part_file(number), folder / part_file(number, "dropped"))
    with writing(folder=folder):
        with (
            replace_file(tables[0]) as kept_path,
            replace_file(tables[1]) as dropped_path,
            ShardWriter(kept_path, schema) as kept_writer,
            ShardWriter(dropped_path, DROPPED_SCHEMA) as dropped,
        ):
            for result in results:
                if isinstance(result, DroppedRow):
                    reasons[result.reason] += 1
                    dropped.add(vars(result))
                else:
                    num_kept += 1
                    kept_writer.add(result if isinstance(result, Mapping) else vars(result))
        sha256 = [file_sha256(path) for path in tables]
    counts = {"kept": num_kept, "dropped": dict(sorted(reasons.items())), "sha256": sha256}
    write_json(folder / counts_file(number), counts)
    return counts


class ShardWriter(AbstractContextManager["ShardWriter"]):
    """Writes a Parquet file in row groups of limited size."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows: list[Mapping[str, Any]] = []
        self._batches: list[pa.RecordBatch] = []
        self._num_rows = self._num_bytes = self._packed_bytes = 0
        self._writer = pq.ParquetWriter(path, schema, compression="zstd", write_batch_size=64)

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            self._flush()
        self._writer.close()

    def add(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        self._num_rows += 1
        self._num_bytes += sum(len(value) for value in row.values() if isinstance(value, bytes | str))
        if self._num_rows == MAX_GROUP_ROWS or self._num_bytes >= MAX_GROUP_BYTES:
            self._flush()
        elif len(self._rows) == MAX_PYTHON_ROWS or self._num_bytes - self._packed_bytes >= MAX_PYTHON_BYTES:
            self._pack()

    def _pack(self) -> None:
        try:
            batch = pa.RecordBatch.from_pylist(self._rows, schema=self._schema)
        except UnicodeEncodeError:  # lone surrogates in names and JSON of others, which UTF-8 cannot encode: "?"
            writable = [
                {key: x.encode("utf-8", "replace").decode() if isinstance(x, str) else x for key, x in row.items()}
                for row in self._rows
            ]
            batch = pa.RecordBatch.from_pylist(writable, schema=self._schema)
        self._batches.append(batch)
        self._rows, self._packed_bytes = [], self._num_bytes

    def _flush(self) -> None:
        if self._rows:
            self._pack()
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches).combine_chunks())
            self._batches = []
            self._num_rows = self._num_bytes = self._packed_bytes = 0
