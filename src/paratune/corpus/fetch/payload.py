"""Makes rows of fetched captures: checks the digest, decodes the content, and finds the terms of use."""

import base64
import hashlib
import importlib.util
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paratune.corpus.index.cdx import essence
from paratune.corpus.rows import DroppedRow
from paratune.corpus.settings import Fetch

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
    if is_sha1(digest) and digest not in known and not received.is_unframed:
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
        "how": received.how,
        "licence": licence or fetch.licence,
        "robots": robots,
        "payload": payload,
    }


def sha1(content: bytes) -> str:
    """Return the SHA-1 of bytes in base32, as in an index."""
    return base64.b32encode(hashlib.sha1(content, usedforsecurity=False).digest()).decode()


def is_sha1(digest: str | None) -> bool:
    """Return whether a digest of an index is SHA-1 (Arquivo.pt's text search has MD5)."""
    return digest is not None and re.fullmatch("[A-Z2-7]{32}", digest) is not None


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
