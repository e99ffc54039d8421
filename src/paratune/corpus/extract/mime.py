"""Finds the MIME type of a document: by its first bytes, otherwise by the declared type.

Source of the signatures: the MIME Sniffing standard, https://mimesniff.spec.whatwg.org, sections 6 and 7.
"""

import re

import kreuzberg

HTML, XHTML, TEXT, PDF = "text/html", "application/xhtml+xml", "text/plain", "application/pdf"
RTF, DOC = "application/rtf", "application/msword"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
ODT = "application/vnd.oasis.opendocument.text"
OCTETS = "application/octet-stream"

HEAD_BYTES = 1445
"""Bytes that the standard searches for binary data."""
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_UTF16 = (b"\xfe\xff", b"\xff\xfe")
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_PROLOGUE = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s+|<!--.{0,4096}?-->)*", re.DOTALL)
_HTML_TAGS = re.compile(
    rb"<(?:!doctype html|html|head|script|iframe|h1|div|font|table|a|style|title|b|body|br|p|meta)[\s>/]", re.IGNORECASE
)
_XHTML = re.compile(rb"<(?:!doctype\s+html|html)[\s>]", re.IGNORECASE)
_ALSO = {"text/rtf": RTF, "application/x-rtf": RTF, "application/x-pdf": PDF}


def essence(declared: str | None) -> str | None:
    """Return a MIME type in lower case, without parameters; None if it is missing."""
    mime = re.split(r"[;,\s]", (declared or "").strip().lower(), maxsplit=1)[0]
    return _ALSO.get(mime, mime) or None


def mime_type(payload: bytes, declared: str | None) -> str:
    """Return the MIME type of a document."""
    return _by_signature(payload) or _by_declaration(payload, essence(declared))


def _by_signature(payload: bytes) -> str | None:
    head = payload[: 2 * HEAD_BYTES]
    if b"%PDF-" in head[:1024]:
        return PDF
    if head.lstrip().startswith(b"{\\rtf"):
        return RTF
    if head.startswith(_OLE):
        return DOC if "WordDocument".encode("utf-16-le") in payload else None
    start = _PROLOGUE.sub(b"", head, count=1)
    if _HTML_TAGS.match(start):  # before the check for binary data: pages may contain control characters by mistake
        return HTML
    if _is_binary(head):
        return _type_of_container(payload)
    if start.startswith(b"<?xml"):
        return XHTML if _XHTML.search(head) else "text/xml"
    return None


def _by_declaration(payload: bytes, declared: str | None) -> str:
    """Return the type of a document without a signature: text, unless it contains binary data."""
    if _is_binary(payload[:HEAD_BYTES]):
        return declared if declared and not declared.startswith("text/") and declared != XHTML else OCTETS
    is_binary_kind = declared in (None, PDF, RTF, DOC, DOCX, ODT, OCTETS)
    # Text that is declared as a PDF is usually an error message of the server.
    return TEXT if is_binary_kind or declared is None else declared


def _is_binary(head: bytes) -> bool:
    return not head.startswith(_UTF16) and not unmarked_utf16(head) and bool(_BINARY.search(head[:HEAD_BYTES]))


def unmarked_utf16(head: bytes) -> str | None:
    """Return utf-16-le or utf-16-be if almost every second byte is 0, as in Western text without a byte order mark."""
    even, odd = head[:HEAD_BYTES:2], head[1:HEAD_BYTES:2]
    if len(odd) < 8:
        return None
    shares = [half.count(0) / len(half) for half in (even, odd)]
    if min(shares) < 0.02 and max(shares) > 0.8:
        return "utf-16-le" if shares[1] > shares[0] else "utf-16-be"
    return None


def _type_of_container(payload: bytes) -> str | None:
    """Return the type of a container or image, from kreuzberg."""
    try:
        mime = str(kreuzberg.detect_mime_type_from_bytes(payload))
        return None if mime.startswith("text/") else mime
    except Exception:  # kreuzberg raises many types for unknown bytes
        return None
