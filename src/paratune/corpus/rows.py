"""Schemas of the tables: captures of an archive, documents, sentences, and dropped rows."""

from dataclasses import dataclass

import pyarrow as pa


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
    | text_columns("source", "content_type", "sha1", "how", "licence", "robots")
    | {"payload": pa.large_binary()}
)
"""A fetched capture: columns of the index, and

content_type: HTTP header with the charset, or null.
sha1: SHA-1 of `payload` in base32, like `digest`.
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
STORED_DOCUMENT_SCHEMA = pa.schema(
    [
        *DOCUMENT_SCHEMA,
        ("host", pa.string()),
        *((name, pa.int32()) for name in ("year", "num_characters", "num_words")),
        ("split", pa.string()),
    ]
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
