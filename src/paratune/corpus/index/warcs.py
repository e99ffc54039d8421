"""Captures in WARC and ARC files, as an index of them would have them."""

import base64
import hashlib
import logging
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from paratune.corpus.index.cdx import base32_digest
from paratune.corpus.rows import CaptureRow, Found, Lost
from paratune.errors import DataError, os_error_as, require

WITH_PAYLOAD = ("response", "resource")
"""Types of records that hold a document."""
CHUNK_BYTES = 1 << 16
HEAD_BYTES = 1 << 20
"""Most bytes of the headers of a record, unpacked, beside its payload: a small file may hold gigabytes of them."""


def read_records(path: Path) -> Iterator[Found]:
    """Yield the captures of a file, and what of it was dropped; what comes before a tear is kept.

    Raises:
        DataError: The file cannot be read.
        MissingDependency: warcio is not installed.
    """
    broken = damage()
    with os_error_as(DataError, f"{path} cannot be read", code="data.unreadable", path=path), path.open("rb") as file:
        records = open_archive(file)
        num_records = end = 0
        try:
            for record in records:
                yield from _found(record, records, path.name)
                records.read_to_end(record)
                records.reader.readline.begin()
                end = records.get_record_offset() + records.get_record_length()
                num_records += 1
            # A file that is torn within the headers of a record ends without a word.
            if path.stat().st_size == 0:
                raise EOFError("the file is empty")
            file.seek(end)
            if file.read(CHUNK_BYTES).strip(b"\r\n\0 "):
                raise EOFError(f"what follows byte {end} is no record")
        except broken as error:
            detail = f"after {num_records} whole records: {type(error).__name__}: {error}"
            yield Lost(url=path.name, reason="damaged WARC", detail=" ".join(detail.split()))


def open_archive(file: BinaryIO) -> Any:
    """Return warcio's iterator over the records of a file, which prints nothing of what it finds.

    It reads headers up to HEAD_BYTES, and as many again after each `reader.readline.begin()`; of more it raises a
    ValueError.

    Raises:
        MissingDependency: warcio is not installed.
    """
    archive = require("warcio.archiveiterator", extra="corpus")
    # It would warn of addresses with spaces, with all that a stranger has written into them and no name of the file.
    logging.getLogger("warcio").setLevel(logging.ERROR)
    records = archive.ArchiveIterator(file, arc2warc=True)
    # Lines are read of headers alone; payloads are read as bytes.
    records.reader.readline = _HeaderLines(records.reader.readline)
    return records


class _HeaderLines:
    """Reads lines, until they are too many."""

    def __init__(self, readline: Callable[[int], bytes]) -> None:
        self._readline = readline
        self.begin()

    def begin(self) -> None:
        """Begin with the headers of another record."""
        self._left = HEAD_BYTES

    def __call__(self, length: int | None = None) -> bytes:
        found = self._readline(min(length or HEAD_BYTES, self._left + 1))
        self._left -= len(found)
        if self._left < 0:
            raise ValueError(f"headers of more than {HEAD_BYTES} bytes")
        return found


def damage() -> tuple[type[Exception], ...]:
    """Return what warcio raises on damaged files: its parsers stumble over torn headers in many ways."""
    exceptions = require("warcio.exceptions", extra="corpus")
    return exceptions.ArchiveLoadFailed, EOFError, zlib.error, ValueError, AttributeError, IndexError, KeyError


def _found(record: Any, records: Any, name: str) -> Iterator[Found]:
    headers = record.rec_headers
    if record.rec_type is None or headers.get_header("Content-Length") is None:
        raise EOFError("the headers of the next record are torn")
    if record.rec_type not in (*WITH_PAYLOAD, "revisit"):
        return  # requests and metadata describe captures; they are none
    url = headers.get_header("WARC-Target-URI")
    if not url:
        yield Lost(url=name, reason="no url", detail=f"record at byte {records.get_record_offset()}")
        return
    if record.rec_type == "revisit":
        yield Lost(url=url, reason="revisit", detail="the document is in another record")
        return
    timestamp = re.sub("[^0-9]", "", headers.get_header("WARC-Date") or "")[:14]
    if len(timestamp) != 14:
        yield Lost(url=url, reason="no date", detail=f"WARC-Date is {headers.get_header('WARC-Date')}")
        return
    http = record.http_headers if record.rec_type == "response" else None
    digest = base32_digest(headers.get_header("WARC-Payload-Digest")) or _digest(record)
    records.read_to_end(record)
    if getattr(record.raw_stream, "limit", 0) > 0:
        yield Lost(url=url, reason="torn record", detail=f"{record.raw_stream.limit} of {record.length} bytes missing")
        return
    yield CaptureRow(
        url=url.strip(),
        timestamp=timestamp,
        digest=digest,
        mime=(http or headers).get_header("Content-Type"),
        status=status_of(http, record.rec_type),
        offset=records.get_record_offset(),
        length=records.get_record_length(),
        filename=name,
        source=name,
    )


def _digest(record: Any) -> str:
    """Return the SHA-1 of the payload in base32; chunk by chunk, however long it is."""
    sha1 = hashlib.sha1(usedforsecurity=False)
    while chunk := record.raw_stream.read(CHUNK_BYTES):
        sha1.update(chunk)
    return base64.b32encode(sha1.digest()).decode()


def status_of(http: Any, rec_type: str) -> int | None:
    """Return the status of HTTP; of a resource, which has no HTTP and is a document whole, 200."""
    if rec_type == "resource":
        return 200
    code = http.get_statuscode() if http is not None else None
    return int(code) if code is not None and code.isdigit() and len(code) == 3 else None
