"""Gets a capture from a WARC or ARC file, on this machine or by byte range, or from raw replay, and makes its row.

Requests of raw replay are `<endpoint>/<timestamp>id_/<url>`, as in pywb, OpenWayback and Arquivo.pt. Replay sends the
nearest capture in time if it does not have the requested one, and redirects of pages unchanged, to the live web. A
response without Memento-Datetime (RFC 7089) is from the archive and not from the page.
"""

import base64
import hashlib
import importlib.util
import io
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import quote, urljoin, urlsplit

from paratune.corpus.index.captures import (
    CHUNK_BYTES,
    HEAD_BYTES,
    WITH_PAYLOAD,
    damage_exceptions,
    essence,
    http_status,
    open_archive,
)
from paratune.corpus.settings import Fetch
from paratune.corpus.shard import DroppedRow
from paratune.corpus.web import MEMENTO, ArchiveResponse, Client, TooLarge, Unavailable
from paratune.errors import DataError, os_error_as, require

SCANNED_BYTES = 2 << 20
"""Bytes of a page that are searched for licence and robots."""
_ELEMENT = re.compile(r"<(meta|a|link)\b([^<>]{1,1000})>", re.IGNORECASE)
_ATTRIBUTE = re.compile(
    r"""(?<![\w-])(name|content|rel|href)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE
)
_LINK = re.compile(r"<([^<>]{1,1000})>([^<>]{0,200})")
BROTLI_BYTES = 64
"""Bytes per call of brotli, which has no limit for its output."""


@dataclass(frozen=True)
class Received:
    """The stored response of a page."""

    timestamp: str
    """Time of the capture, 14 digits; "" if it is that of the index."""
    status: int | None
    headers: Mapping[str, str]
    """Headers of the page, with names in lower case."""
    body: bytes
    """Decoded from the transfer encoding, not from the content encoding."""
    digests: frozenset[str]
    """SHA-1 in base32 of `body`, and of the bytes with transfer encoding if they are known."""
    is_unframed: bool
    """Whether the page was sent in chunks that are lost: its digest may be that of the chunks."""
    how: str
    """file, range or replay."""


def fetched_row(
    row: Mapping[str, Any], received: Received, fetch: Fetch, statuses: Sequence[int]
) -> dict[str, Any] | DroppedRow:
    """Return the row of a fetched capture, or a dropped row.

    Args:
        row: The capture in the index.
        fetch: Settings with the largest payload and the default licence.
        statuses: HTTP status codes to keep.
    """
    url, max_bytes = row["url"], int(fetch.max_payload_mib * 2**20)
    if received.status not in statuses:
        to = received.headers.get("location")
        status = "n/a" if received.status is None else str(received.status)
        return DroppedRow(url, "status", f"{status} to {to}" if to else status)
    try:
        payload = decode_content(received.body, received.headers.get("content-encoding"), max_bytes)
    except ValueError as error:
        return DroppedRow(url, "content encoding", str(error))
    if payload is None:
        return DroppedRow(url, "too large", f"unpacks to more than {max_bytes} bytes")
    own = sha1(payload)
    is_other = bool(received.timestamp) and received.timestamp != row["timestamp"]
    digest = sha1(received.body) if is_other else row["digest"]
    known = {*received.digests, own}
    fits = None
    if re.fullmatch("[A-Z2-7]{32}", digest or ""):  # Arquivo.pt's text search has MD5, which is not compared
        fits = True if digest in known else None if received.is_unframed else False
    if fits is False and fetch.other_digest == "drop":
        return DroppedRow(url, "digest", f"{digest} in the index, {' or '.join(sorted(known))} now")
    content_type = received.headers.get("content-type") or None
    mime = row["mime"] or (essence(content_type or "") or None)
    robots, licence = usage_terms(received.headers, payload if "html" in f"{mime} {content_type}" else b"")
    return {
        "url": url,
        "timestamp": received.timestamp or row["timestamp"],
        "digest": digest,
        "mime": mime,
        "status": received.status,
        "source": row["source"],
        "content_type": content_type,
        "sha1": own,
        "digest_fits": fits,
        "how": received.how,
        "licence": licence or fetch.licence,
        "robots": robots,
        "payload": payload,
    }


def sha1(content: bytes) -> str:
    """Return the SHA-1 of bytes in base32, as in an index."""
    return base64.b32encode(hashlib.sha1(content, usedforsecurity=False).digest()).decode()


def decode_content(body: bytes, encodings: str | None, max_bytes: int) -> bytes | None:
    """Return a body decoded from its content encodings, or None if it is too large.

    A body without the encoding in its header is returned unchanged; a truncated one is decoded as far as possible.

    Raises:
        ValueError: An encoding is unknown.
    """
    for encoding in reversed(re.split(r"[,\s]+", (encodings or "").strip().lower())):
        if encoding in ("gzip", "x-gzip", "deflate"):
            decoded = _inflated(body, max_bytes)
        elif encoding == "br":
            decoded = _brotli(body, max_bytes)
        elif encoding in ("", "identity", "none", "utf-8", "utf8"):
            decoded = body
        else:
            raise ValueError(f"{encoding[:40]} is not known")
        if decoded is None:
            return None
        body = decoded
    return body if len(body) <= max_bytes else None


def _inflated(body: bytes, max_bytes: int) -> bytes | None:
    for bits in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):  # with a gzip or zlib header; without, from some servers
        inflated, rest = bytearray(), body
        try:
            while rest:
                stream = zlib.decompressobj(bits)
                inflated += stream.decompress(rest, max_bytes + 1 - len(inflated))
                if len(inflated) > max_bytes:
                    return None
                rest = stream.unused_data
                if not stream.eof:
                    break
        except zlib.error:
            pass  # any bytes may follow a complete member
        if inflated:
            return bytes(inflated)
    return body


def _brotli(body: bytes, max_bytes: int) -> bytes | None:
    if importlib.util.find_spec("brotli") is None:
        raise ValueError("br needs the package brotli")
    brotli: Any = importlib.import_module("brotli")
    stream, decompressed = brotli.Decompressor(), bytearray()
    # Two packages have this name, with different names for the same function.
    step = getattr(stream, "process", None) or stream.decompress
    try:
        for start in range(0, len(body), BROTLI_BYTES):
            decompressed += step(body[start : start + BROTLI_BYTES])
            if len(decompressed) > max_bytes:
                return None
    except brotli.error:
        pass
    return bytes(decompressed) or body


def usage_terms(headers: Mapping[str, str], page: bytes) -> tuple[str | None, str | None]:
    """Return the directives for robots and the URL of the licence of a page, None if there are none.

    Sources: X-Robots-Tag and <meta name="robots">; Link headers, <a> and <link> with rel="license".
    """
    robots = [headers.get("x-robots-tag", "")]
    licences = [target for target, more in _LINK.findall(headers.get("link", "")) if "license" in more.lower()]
    for element, inside in _ELEMENT.findall(page[:SCANNED_BYTES].decode("latin-1")):
        kind, values = element.lower(), {name.lower(): a or b or c for name, a, b, c in _ATTRIBUTE.findall(inside)}
        if kind == "meta" and values.get("name", "").lower() == "robots":
            robots.append(values.get("content", ""))
        elif kind != "meta" and "license" in values.get("rel", "").lower().split():
            licences.append(values.get("href", ""))
    words = [word.strip().lower() for directives in robots for word in directives.split(",")]
    return _joined(words, ", "), _joined([licence.strip() for licence in licences], " ")


def _joined(words: list[str], by: str) -> str | None:
    return by.join(dict.fromkeys(word for word in words if word)) or None


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
            key = name.lower()
            fields[key] = f"{fields[key]}, {value}" if key == "x-robots-tag" in fields else value
        body = bytes(raw)
        if "chunked" in fields.get("transfer-encoding", "").lower():
            # Bytes without chunks, despite the header, are returned unchanged.
            reader = require("warcio.bufferedreaders", extra="corpus").ChunkedDataReader(io.BytesIO(raw))
            body = b"".join(iter(lambda: cast(bytes, reader.read(CHUNK_BYTES)), b""))
    except damage_exceptions() as error:
        return DroppedRow(row["url"], "damaged record", " ".join(f"{type(error).__name__}: {error}".split()))
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
    moment = None
    try:
        if (value := answer.headers.get(MEMENTO)) is not None:
            sent = parsedate_to_datetime(value)
            moment = f"{(sent if sent.tzinfo is None else sent.astimezone(UTC)):%Y%m%d%H%M%S}"
    except ValueError:
        # Read it from the URL in Content-Location, or from the last requested one.
        match = re.search(r"/([0-9]{14})[a-z]{0,2}_?/", answer.headers.get("Content-Location", target))
        moment = match.group(1) if match else None
    if moment is None:  # the response is not a capture
        if answer.status == 404:
            return DroppedRow(row["url"], MISSING, "the archive has no capture of it")
        message = f"HTTP {answer.status} without {MEMENTO}, a response of the archive and not of a page"
        raise Unavailable(message, is_out=False)
    if moment != row["timestamp"] and not nearest:
        return DroppedRow(row["url"], "another capture", f"{moment} instead of {row['timestamp']}")
    original: dict[str, str] = {}
    plain: dict[str, str] = {}
    for name, value in answer.headers.items():
        key = name.lower().removeprefix(ORIGINAL)
        fields = plain if key == name.lower() else original
        fields[key] = f"{fields[key]}, {value}" if key in fields else value
    # Content-Type and Content-Encoding describe the response; these two without prefix, the archive's.
    for key in ("link", "transfer-encoding"):
        plain.pop(key, None)
    original.pop("content-encoding", None)
    headers = original | {"x-robots-tag": original.get("x-robots-tag", "")} | plain
    is_unframed, digests = "chunked" in headers.get("transfer-encoding", "").lower(), frozenset({sha1(answer.body)})
    return Received(moment, answer.status, headers, answer.body, digests, is_unframed=is_unframed, how="replay")
