"""Gets a capture from a WARC or ARC file, on this machine or by byte range, or from raw replay.

Requests of raw replay are `<endpoint>/<timestamp>id_/<url>`, as in pywb, OpenWayback and Arquivo.pt. Replay sends the
nearest capture in time if it does not have the requested one, and redirects of pages unchanged, to the live web. A
response without Memento-Datetime (RFC 7089) is from the archive and not from the page.
"""

import io
import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from http.client import HTTPMessage
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import quote, urljoin, urlsplit

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
from paratune.corpus.web.client import MEMENTO, ArchiveResponse, Client, TooLarge, Unavailable
from paratune.errors import DataError, os_error_as, require

MISSING = "missing"
"""Reason for a capture that the archive does not have."""
MISSING_STATUSES = (404, 410, 416)
REDIRECT = "redirect"
MAX_HOPS = 3
"""Maximum number of redirects within the replay."""
ORIGINAL = "x-archive-orig-"
"""Prefix of headers of the page that would conflict with headers of the archive."""


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
        return _from_record(row, record, max_bytes, how)
    except damage_exceptions() as error:
        return DroppedRow(row["url"], "damaged record", " ".join(f"{type(error).__name__}: {error}".split()))


def _from_record(row: Mapping[str, Any], record: Any, max_bytes: int, how: str) -> Received | DroppedRow:
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


def from_replay(
    row: Mapping[str, Any], client: Client, endpoint: str, max_bytes: int, *, nearest: bool
) -> Received | DroppedRow:
    """Return the capture that an archive replays.

    Args:
        nearest: Whether a capture of another time is accepted.

    Raises:
        Unavailable: The archive does not respond, or not with a capture.
    """
    path = urlsplit(endpoint).path.rstrip("/")
    target = f"{path}/{row['timestamp']}id_/{quote_url(row['url'])}"
    try:
        for _ in range(MAX_HOPS):
            # Compressed as stored, for its digest; an archive that does not support this decompresses it.
            answer = client.request(target, max_bytes=max_bytes, headers={"Accept-Encoding": "gzip"})
            if not 300 <= answer.status < 400 or MEMENTO in answer.headers:
                return _received(row, answer, target, nearest=nearest)
            location = answer.headers.get("Location", "")
            address = urljoin(client.origin + target, location)
            if not address.startswith(f"{client.origin}{path}/"):  # outside of the same replay
                return DroppedRow(row["url"], REDIRECT, f"HTTP {answer.status} to {location}")
            target = quote_url(address[len(client.origin) :])
    except TooLarge as error:
        return DroppedRow(row["url"], "too large", str(error))
    return DroppedRow(row["url"], REDIRECT, f"{MAX_HOPS} times within the archive")


def quote_url(url: str) -> str:
    """Return a URL as part of a path: only characters that a request cannot contain are percent-encoded."""
    return quote(url, safe="%/:?=&;@+$,!*'()~[]|")


def _received(row: Mapping[str, Any], answer: ArchiveResponse, target: str, *, nearest: bool) -> Received | DroppedRow:
    moment = capture_time(answer.headers, target)
    if moment is None:
        if answer.status == 404:
            return DroppedRow(row["url"], MISSING, "the archive has no capture of it")
        message = f"HTTP {answer.status} without {MEMENTO}, a response of the archive and not of a page"
        raise Unavailable(message, is_out=False)
    if moment != row["timestamp"] and not nearest:
        return DroppedRow(row["url"], "another capture", f"{moment} instead of {row['timestamp']}")
    headers = page_headers(answer.headers)
    return Received(
        timestamp=moment,
        status=answer.status,
        headers=headers,
        body=answer.body,
        digests=frozenset({sha1(answer.body)}),
        is_unframed="chunked" in headers.get("transfer-encoding", "").lower(),
        how="replay",
    )


def capture_time(headers: HTTPMessage, target: str) -> str | None:
    """Return the time of a capture, in 14 digits, or None if the response is not a capture."""
    value = headers.get(MEMENTO)
    if value is None:
        return None
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        # Read it from the URL in Content-Location, or from the last requested one.
        match = re.search(r"/([0-9]{14})[a-z]{0,2}_?/", headers.get("Content-Location", target))
        return match.group(1) if match else None
    return f"{(moment if moment.tzinfo is None else moment.astimezone(UTC)):%Y%m%d%H%M%S}"


def page_headers(headers: HTTPMessage) -> dict[str, str]:
    """Return the headers of the page, with names in lower case.

    Content-Type and Content-Encoding describe the response; Link and Transfer-Encoding without prefix, the archive's.
    """
    original: dict[str, str] = {}
    plain: dict[str, str] = {}
    for name, value in headers.items():
        key = name.lower().removeprefix(ORIGINAL)
        target = plain if key == name.lower() else original
        target[key] = f"{target[key]}, {value}" if key in target else value
    for key in ("link", "transfer-encoding"):
        plain.pop(key, None)
    original.pop("content-encoding", None)
    return original | {"x-robots-tag": original.get("x-robots-tag", "")} | plain
