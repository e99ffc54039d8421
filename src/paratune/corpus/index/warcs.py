"""Lists the captures in WARC and ARC files, with the fields of an index."""

import base64
import hashlib
import logging
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from paratune.corpus.index.cdx import base32_digest
from paratune.corpus.rows import CaptureOrDropped, CaptureRow, DroppedRow
from paratune.errors import DataError, os_error_as, require

WITH_PAYLOAD = ("response", "resource")
"""Types of records that contain a document."""
CHUNK_BYTES = 1 << 16
HEAD_BYTES = 1 << 20
"""Maximum unpacked bytes of the headers of a record: a small file may contain gigabytes of headers."""


def read_records(path: Path) -> Iterator[CaptureOrDropped]:
    """Yield the captures of a file, and dropped records; in a truncated file, those before the end.

    Raises:
        DataError: The file is unreadable.
        MissingDependency: warcio is not installed.
    """
    broken = damage_exceptions()
    with os_error_as(DataError, f"{path} cannot be read", code="data.unreadable", path=path), path.open("rb") as file:
        records = open_archive(file)
        num_records = end = 0
        try:
            for record in records:
                yield from _read_record(record, records, path.name)
                records.read_to_end(record)
                records.reader.readline.begin()
                end = records.get_record_offset() + records.get_record_length()
                num_records += 1
            # warcio raises no error for a file that is truncated in the headers of a record.
            if path.stat().st_size == 0:
                raise EOFError("the file is empty")
            file.seek(end)
            if file.read(CHUNK_BYTES).strip(b"\r\n\0 "):
                raise EOFError(f"the bytes after {end} are not a record")
        except broken as error:
            detail = f"after {num_records} whole records: {type(error).__name__}: {error}"
            yield DroppedRow(url=path.name, reason="damaged WARC", detail=" ".join(detail.split()))


def open_archive(file: BinaryIO) -> Any:
    """Return warcio's iterator over the records of a file, without its log messages.

    It raises a ValueError for headers of more than HEAD_BYTES since the last call of `reader.readline.begin()`.

    Raises:
        MissingDependency: warcio is not installed.
    """
    archive = require("warcio.archiveiterator", extra="corpus")
    # It logs URLs with spaces: untrusted text, and no file name.
    logging.getLogger("warcio").setLevel(logging.ERROR)
    records = archive.ArchiveIterator(file, arc2warc=True)
    # Only headers are read by line; payloads are read as bytes.
    records.reader.readline = _HeaderLines(records.reader.readline)
    return records


class _HeaderLines:
    """Reads lines and raises when there are too many bytes."""

    def __init__(self, readline: Callable[[int], bytes]) -> None:
        self._readline = readline
        self.begin()

    def begin(self) -> None:
        """Start the headers of another record."""
        self._left = HEAD_BYTES

    def __call__(self, length: int | None = None) -> bytes:
        line = self._readline(min(length or HEAD_BYTES, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise ValueError(f"headers of more than {HEAD_BYTES} bytes")
        return line


def damage_exceptions() -> tuple[type[Exception], ...]:
    """Return the exceptions that warcio raises for damaged files."""
    exceptions = require("warcio.exceptions", extra="corpus")
    return exceptions.ArchiveLoadFailed, EOFError, zlib.error, ValueError, AttributeError, IndexError, KeyError


def _read_record(record: Any, records: Any, name: str) -> Iterator[CaptureOrDropped]:
    headers = record.rec_headers
    if record.rec_type is None or headers.get_header("Content-Length") is None:
        raise EOFError("the headers of the next record are truncated")
    if record.rec_type not in (*WITH_PAYLOAD, "revisit"):
        return  # requests and metadata are not captures
    url = headers.get_header("WARC-Target-URI")
    if not url:
        yield DroppedRow(url=name, reason="no url", detail=f"record at byte {records.get_record_offset()}")
        return
    if record.rec_type == "revisit":
        yield DroppedRow(url=url, reason="revisit", detail="the document is in another record")
        return
    timestamp = re.sub("[^0-9]", "", headers.get_header("WARC-Date") or "")[:14]
    if len(timestamp) != 14:
        yield DroppedRow(url=url, reason="no date", detail=f"WARC-Date is {headers.get_header('WARC-Date')}")
        return
    http = record.http_headers if record.rec_type == "response" else None
    digest = base32_digest(headers.get_header("WARC-Payload-Digest")) or _digest(record)
    records.read_to_end(record)
    if getattr(record.raw_stream, "limit", 0) > 0:
        yield DroppedRow(
            url=url, reason="torn record", detail=f"{record.raw_stream.limit} of {record.length} bytes missing"
        )
        return
    yield CaptureRow(
        url=url.strip(),
        timestamp=timestamp,
        digest=digest,
        mime=(http or headers).get_header("Content-Type"),
        status=http_status(http, record.rec_type),
        offset=records.get_record_offset(),
        length=records.get_record_length(),
        filename=name,
        source=name,
    )


def _digest(record: Any) -> str:
    """Return the SHA-1 of the payload in base32, read in chunks."""
    sha1 = hashlib.sha1(usedforsecurity=False)
    while chunk := record.raw_stream.read(CHUNK_BYTES):
        sha1.update(chunk)
    return base64.b32encode(sha1.digest()).decode()


def http_status(http: Any, rec_type: str) -> int | None:
    """Return the HTTP status; 200 for a resource, a document without HTTP headers."""
    if rec_type == "resource":
        return 200
    code = http.get_statuscode() if http is not None else None
    return int(code) if code is not None and code.isdigit() and len(code) == 3 else None
