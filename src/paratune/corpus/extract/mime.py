"""Finds the MIME type of a document: by its first bytes, otherwise by the declared type.

Source of the signatures: the MIME Sniffing standard, https://mimesniff.spec.whatwg.org, sections 6 and 7.
"""

import re
from contextlib import suppress

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
    """Return the MIME type of a document; without a signature it is text, unless it contains binary data."""
    head = payload[: 2 * HEAD_BYTES]
    start = _PROLOGUE.sub(b"", head, count=1)
    is_binary = not head.startswith(_UTF16) and bool(_BINARY.search(head[:HEAD_BYTES]))
    if b"%PDF-" in head[:1024]:
        return PDF
    if head.lstrip().startswith(b"{\\rtf"):
        return RTF
    if head.startswith(_OLE):
        if "WordDocument".encode("utf-16-le") in payload:
            return DOC
    elif _HTML_TAGS.match(start):  # before the check for binary data: pages may contain control characters by mistake
        return HTML
    elif is_binary:
        with suppress(Exception):  # kreuzberg raises many types for unknown bytes
            if not (mime := str(kreuzberg.detect_mime_type_from_bytes(payload))).startswith("text/"):
                return mime  # of a container or image
    elif start.startswith(b"<?xml"):
        return XHTML if _XHTML.search(head) else "text/xml"
    named = essence(declared)
    if is_binary:
        return named if named and not named.startswith("text/") and named != XHTML else OCTETS
    # Text that is declared as a PDF is usually an error message of the server.
    return TEXT if named is None or named in (PDF, RTF, DOC, DOCX, ODT, OCTETS) else named
