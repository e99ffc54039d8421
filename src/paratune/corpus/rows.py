"""Rows of the shards: captures of an archive, and what was dropped, with their tables in Parquet."""

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Row:
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


Found = Row | Lost

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
DROPPED_SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "url", "reason", "detail")])
