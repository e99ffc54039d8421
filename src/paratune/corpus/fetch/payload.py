"""What a capture is once its bytes have come: checked against the index, unpacked, with what it says of its use."""

import base64
import hashlib
import importlib.util
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paratune.corpus.rows import Lost

SCANNED_BYTES = 2 << 20
"""Of a page, in which licence and robots are looked for."""
_ELEMENT = re.compile(r"<(meta|a|link)\b([^<>]{1,1000})>", re.IGNORECASE)
_ATTRIBUTE = re.compile(
    r"""(?<![\w-])(name|content|rel|href)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE
)
_LINK = re.compile(r"<([^<>]{1,1000})>([^<>]{0,200})")
BROTLI_BYTES = 64
"""Given to brotli at once, which knows no limit for what comes out."""


@dataclass(frozen=True)
class Received:
    """The answer of a page, as its archive keeps it."""

    timestamp: str
    """Of the capture, 14 digits; "" when it is that of the index."""
    status: int | None
    headers: Mapping[str, str]
    """Of the page, with names in small letters."""
    body: bytes
    """Transfer encoding undone, content encoding not."""
    digests: frozenset[str]
    """SHA-1 in base32 of `body`, and of the bytes with the transfer encoding where they are known."""
    is_unframed: bool
    """Whether the page was sent in chunks which are not known any more: crawlers may have made its digest of them."""
    how: str
    """file, range or replay."""


@dataclass(frozen=True)
class PayloadChoice:
    """What is taken."""

    statuses: tuple[int, ...]
    max_bytes: int
    licence: str | None


def finished(row: Mapping[str, Any], received: Received, wanted: PayloadChoice) -> dict[str, Any] | Lost:
    """Return a row of what was fetched, or why it is dropped.

    Args:
        row: Of the index.
        received: What came.
        wanted: What is taken.
    """
    url = row["url"]
    if received.status not in wanted.statuses:
        to = received.headers.get("location")
        status = "n/a" if received.status is None else str(received.status)
        return Lost(url, "status", f"{status} to {to}" if to else status)
    try:
        payload = unpacked(received.body, received.headers.get("content-encoding"), wanted.max_bytes)
    except ValueError as error:
        return Lost(url, "content encoding", str(error))
    if payload is None:
        return Lost(url, "too large", f"unpacks to more than {wanted.max_bytes} bytes")
    own = sha1(payload)
    is_other = bool(received.timestamp) and received.timestamp != row["timestamp"]
    digest = sha1(received.body) if is_other else row["digest"]
    known = {*received.digests, own}
    if is_sha1(digest) and digest not in known and not received.is_unframed:
        return Lost(url, "digest", f"{digest} in the index, {' or '.join(sorted(known))} now")
    content_type = received.headers.get("content-type") or None
    mime = row["mime"] or _essence(content_type)
    robots, licence = said_of_use(received.headers, payload if "html" in f"{mime} {content_type}" else b"")
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
        "licence": licence or wanted.licence,
        "robots": robots,
        "payload": payload,
    }


def sha1(content: bytes) -> str:
    """Return the SHA-1 of bytes in base32, as an index has it."""
    return base64.b32encode(hashlib.sha1(content, usedforsecurity=False).digest()).decode()


def is_sha1(digest: str | None) -> bool:
    """Return whether a digest of an index is SHA-1 (Arquivo.pt's text search gives MD5)."""
    return digest is not None and re.fullmatch("[A-Z2-7]{32}", digest) is not None


def _essence(content_type: str | None) -> str | None:
    return re.split(r"[;,\s]", content_type.strip().lower(), maxsplit=1)[0] or None if content_type else None


def unpacked(body: bytes, encodings: str | None, max_bytes: int) -> bytes | None:
    """Return a body with its content encodings undone, or None when it is larger than allowed.

    Pages that are not packed though they say so are returned as they are; of those that are torn, what is there.

    Raises:
        ValueError: An encoding is not known.
    """
    for each in reversed(re.split(r"[,\s]+", (encodings or "").strip().lower())):
        if each in ("gzip", "x-gzip", "deflate"):
            found = _inflated(body, max_bytes)
        elif each == "br":
            found = _brotli(body, max_bytes)
        elif each in ("", "identity", "none", "utf-8", "utf8"):
            found = body
        else:
            raise ValueError(f"{each[:40]} is not known")
        if found is None:
            return None
        body = found
    return body if len(body) <= max_bytes else None


def _inflated(body: bytes, max_bytes: int) -> bytes | None:
    for bits in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):  # with the head of gzip or zlib; without, as some servers
        found, rest = bytearray(), body
        try:
            while rest:
                stream = zlib.decompressobj(bits)
                found += stream.decompress(rest, max_bytes + 1 - len(found))
                if len(found) > max_bytes:
                    return None
                rest = stream.unused_data
                if not stream.eof:
                    break
        except zlib.error:
            pass  # what follows a whole member may be anything
        if found:
            return bytes(found)
    return body


def _brotli(body: bytes, max_bytes: int) -> bytes | None:
    if importlib.util.find_spec("brotli") is None:
        raise ValueError("br is read when the package brotli is installed")
    brotli: Any = importlib.import_module("brotli")
    stream, found = brotli.Decompressor(), bytearray()
    # Two packages have this name, and each another one for the same function.
    step = getattr(stream, "process", None) or stream.decompress
    try:
        for start in range(0, len(body), BROTLI_BYTES):
            found += step(body[start : start + BROTLI_BYTES])
            if len(found) > max_bytes:
                return None
    except brotli.error:
        pass
    return bytes(found) or body


def said_of_use(headers: Mapping[str, str], page: bytes) -> tuple[str | None, str | None]:
    """Return what a page says to robots, and the address of its licence; None where it says nothing.

    Looked for in X-Robots-Tag and <meta name="robots">; in Link headers, <a> and <link> with rel="license".
    """
    robots = [headers.get("x-robots-tag", "")]
    licences = [target for target, more in _LINK.findall(headers.get("link", "")) if "license" in more.lower()]
    for kind, values in _elements(page[:SCANNED_BYTES].decode("latin-1")):
        if kind == "meta" and values.get("name", "").lower() == "robots":
            robots.append(values.get("content", ""))
        elif kind != "meta" and "license" in values.get("rel", "").lower().split():
            licences.append(values.get("href", ""))
    words = [word.strip().lower() for each in robots for word in each.split(",")]
    return _joined(words, ", "), _joined([each.strip() for each in licences], " ")


def _elements(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    for kind, inside in _ELEMENT.findall(text):
        yield kind.lower(), {name.lower(): a or b or c for name, a, b, c in _ATTRIBUTE.findall(inside)}


def _joined(words: list[str], by: str) -> str | None:
    return by.join(dict.fromkeys(word for word in words if word)) or None
