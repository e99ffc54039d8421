"""Reads a capture from a WARC or ARC file, on this machine or on a server with byte ranges."""

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import quote, urlsplit

from paratune.corpus.fetch.payload import Received, sha1
from paratune.corpus.index.warcs import (
    CHUNK_BYTES,
    HEAD_BYTES,
    WITH_PAYLOAD,
    damage_exceptions,
    http_status,
    open_archive,
)
from paratune.corpus.rows import DroppedRow
from paratune.corpus.web.client import Client, TooLarge, Unavailable
from paratune.errors import DataError, os_error_as, require

MISSING = "missing"
"""Reason for a capture that the archive does not have."""
MISSING_STATUSES = (404, 410, 416)


def from_file(row: Mapping[str, Any], path: Path, max_bytes: int) -> Received | DroppedRow:
    """Return the capture at the offset in a file on this machine.

    Raises:
        DataError: The file is unreadable.
    """
    with os_error_as(DataError, f"{path} cannot be read", code="data.unreadable", path=path), path.open("rb") as file:
        file.seek(row["offset"])
        return _record(row, file, max_bytes, "file")


def from_range(row: Mapping[str, Any], client: Client, endpoint: str, max_bytes: int) -> Received | DroppedRow:
    """Return the capture at a byte range of a file on a server.

    Raises:
        DataError: The server does not support ranges.
        Unavailable: The server does not respond, or refuses.
    """
    if row["length"] > max_bytes + HEAD_BYTES:
        return DroppedRow(row["url"], "too large", f"the record has {row['length']} bytes; allowed: {max_bytes}")
    if ".." in row["filename"].split("/"):
        return DroppedRow(row["url"], MISSING, f"{row['filename']} is outside of the archive")
    path = urlsplit(endpoint).path.rstrip("/")
    target = f"{path}/{quote(row['filename'].lstrip('/'), safe='/')}"
    asked = f"bytes={row['offset']}-{row['offset'] + row['length'] - 1}"
    no_ranges = f"{endpoint} sends whole files instead of byte ranges; use fetch.replay"
    try:
        answer = client.request(target, max_bytes=max(row["length"], CHUNK_BYTES), headers={"Range": asked})
    except TooLarge as error:
        raise DataError(no_ranges, code="corpus.server") from error
    if answer.status == 200:
        raise DataError(no_ranges, code="corpus.server")
    if answer.status not in (206, *MISSING_STATUSES):
        raise Unavailable(f"HTTP {answer.status} for {target}", is_out=False)
    if answer.status != 206:
        return DroppedRow(row["url"], MISSING, f"HTTP {answer.status} for {asked} of {row['filename']}")
    return _record(row, io.BytesIO(answer.body), max_bytes, "range")


def _record(row: Mapping[str, Any], file: BinaryIO, max_bytes: int, how: str) -> Received | DroppedRow:
    try:
        record = next(open_archive(file), None)
        if record is None or record.rec_type not in WITH_PAYLOAD:
            return DroppedRow(row["url"], "another record", "none" if record is None else str(record.rec_type))
        return _received(row, record, max_bytes, how)
    except damage_exceptions() as error:
        return DroppedRow(row["url"], "damaged record", " ".join(f"{type(error).__name__}: {error}".split()))


def _received(row: Mapping[str, Any], record: Any, max_bytes: int, how: str) -> Received | DroppedRow:
    headers = record.rec_headers
    url = (headers.get_header("WARC-Target-URI") or "").strip(" <>")
    moment = re.sub("[^0-9]", "", headers.get_header("WARC-Date") or "")[:14]
    if (url, moment) != (row["url"].strip(" <>"), row["timestamp"]):
        return DroppedRow(row["url"], "another record", f"{moment} {url}")
    raw = bytearray()
    while chunk := record.raw_stream.read(CHUNK_BYTES):
        raw += chunk
        if len(raw) > max_bytes:
            return DroppedRow(row["url"], "too large", f"more than {max_bytes} bytes")
    if getattr(record.raw_stream, "limit", 0) > 0:
        return DroppedRow(row["url"], "torn record", f"{record.raw_stream.limit} of {record.length} bytes missing")
    http = record.http_headers if record.rec_type == "response" else None
    fields: dict[str, str] = {}
    for name, value in http.headers if http else [("Content-Type", headers.get_header("Content-Type") or "")]:
        fields[name.lower()] = f"{fields[name.lower()]}, {value}" if name.lower() == "x-robots-tag" in fields else value
    body = bytes(raw)
    if "chunked" in fields.get("transfer-encoding", "").lower():
        # Bytes without chunks, despite the header, are returned unchanged.
        reader = require("warcio.bufferedreaders", extra="corpus").ChunkedDataReader(io.BytesIO(raw))
        body = b"".join(iter(lambda: cast(bytes, reader.read(CHUNK_BYTES)), b""))
    digests = frozenset({sha1(body), sha1(bytes(raw))})
    return Received("", http_status(http, record.rec_type), fields, body, digests, is_unframed=False, how=how)
