"""Rows of the shards - captures of an archive, documents, sentences, and what was dropped - with their tables."""

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class CaptureRow:
    """One capture, as an index knows it."""

    url: str
    timestamp: str
    """UTC, 14 digits: YYYYMMDDhhmmss."""
    digest: str | None
    """SHA-1 of the payload in base32."""
    mime: str | None
    """As the server declared it."""
    status: int | None
    """Of HTTP."""
    offset: int | None
    """First byte of the record in its file."""
    length: int | None
    """Bytes of the record in its file."""
    filename: str | None
    """WARC or ARC file that holds it."""
    source: str
    """Index or archive file in which it was found."""


@dataclass(frozen=True)
class Lost:
    """Something that was dropped, and why."""

    url: str
    """Of the capture; the name of the file where no capture could be read."""
    reason: str
    """A few words that are counted."""
    detail: str
    """What was found."""
    id: str | None = None
    """Of the document, once it has one."""


Found = CaptureRow | Lost

INDEX_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("url", "timestamp", "digest", "mime")),
        ("status", pa.int32()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("filename", pa.string()),
        ("source", pa.string()),
    ]
)
FETCHED_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("url", "timestamp", "digest", "mime")),
        ("status", pa.int32()),
        *((name, pa.string()) for name in ("source", "content_type", "sha1", "how", "licence", "robots")),
        ("payload", pa.large_binary()),
    ]
)
"""A capture with its bytes: those of the index, and

content_type: what the HTTP header says, with its charset, or null.
sha1: of `payload`, in base32 as `digest` is.
how: where the bytes come from: file, range or replay.
licence, robots: what is known of the right to use it (the settings, a header, a meta element), or null.
payload: the body as it was sent, with transfer and content encodings undone.
"""
DOCUMENT_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "url", "timestamp", "digest", "source", "mime", "charset")),
        *((name, pa.string()) for name in ("extractor", "licence", "robots", "title", "text", "sha256", "language")),
        ("language_score", pa.float32()),
        ("variety", pa.string()),
        ("variety_score", pa.float32()),
        ("num_masked", pa.int32()),
    ]
)
"""A text, from its extraction to the end.

id: first 16 hexadecimal digits of the SHA-256 of "url timestamp digest".
mime: as its first bytes say, not as the server declared it.
text: paragraphs, a line each.
sha256: of `text` in UTF-8, hexadecimal; made anew by each step that changes the text.
language: ISO 639-1, with its probability; null before it is known, as are variety (pt-PT, pt-BR) and num_masked.
"""
SENTENCE_SCHEMA = pa.schema(
    [
        ("document_id", pa.string()),
        ("position", pa.int32()),
        ("text", pa.string()),
        ("sha256", pa.string()),
        ("perplexity", pa.float32()),
    ]
)
"""A sentence of a document; `position` counts from 0 in it, perplexity is the n-gram model's, null if unknown."""
STORED_DOCUMENT_SCHEMA = pa.schema(
    [
        *DOCUMENT_SCHEMA,
        ("host", pa.string()),
        ("year", pa.int32()),
        ("num_characters", pa.int32()),
        ("num_words", pa.int32()),
        ("split", pa.string()),
    ]
)
"""A document of the finished corpus: what it was, and

host: of the URL, in lower case, without a leading "www."; null where the URL has none.
year: of the capture.
num_words: separated by white space.
split: train or validation, by the SHA-256 of the text alone.
"""
STORED_SENTENCE_SCHEMA = pa.schema(
    [*SENTENCE_SCHEMA, *((name, pa.string()) for name in ("url", "timestamp", "digest", "split"))]
)
"""A sentence of the finished corpus, with the capture and the split of its document."""
DROPPED_SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "url", "reason", "detail")])
