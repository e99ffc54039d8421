"""Extracts the text of a document: finds its MIME type, calls a library, and normalises the text.

Source of the signatures: the MIME Sniffing standard, https://mimesniff.spec.whatwg.org, sections 6 and 7.
"""

import re
from contextlib import suppress
from typing import Any

import kreuzberg

from paratune.corpus.extract.charset import decode
from paratune.corpus.extract.html import read_html
from paratune.corpus.extract.lines import repair, repair_line, unwrap, without_mojibake
from paratune.corpus.extract.pdf import read_pdf
from paratune.corpus.extract.process import ExtractedText, NoText
from paratune.corpus.settings import Extract

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


_ESCAPED = re.compile(r"\\'([0-9a-fA-F]{2})")


def extract(payload: bytes, declared: str | None, settings: Extract) -> ExtractedText | NoText:
    """Return the text of a document, or the reason why there is none.

    Args:
        declared: MIME type of the HTTP header, or else of the index.
        settings: Limits of the length of a text, and the fallback charset.
    """
    if not payload:
        return NoText("empty", "0 bytes")
    mime, charset = mime_type(payload, declared), None
    fields: dict[str, str | None] | NoText
    if mime in (HTML, XHTML, TEXT):
        page, charset = decode(payload, declared, fallback=settings.charset)
        if mime == TEXT:
            # Mojibake makes lines longer, so that unwrapping would fail.
            extractor, fields = "plain", {"text": "\n".join(unwrap(without_mojibake(page).split("\n")))}
        else:
            extractor, fields = "trafilatura", read_html(page)
    elif mime == PDF:
        extractor, fields = "pypdfium2", read_pdf(payload)
    elif mime in (RTF, DOC, DOCX, ODT):
        extractor, fields = "kreuzberg", read_office(payload, mime)
    else:
        return NoText("kind", mime)
    if isinstance(fields, NoText):
        return fields
    text = repair(fields["text"] or "")
    if len(text) < settings.min_characters:
        return NoText("short" if text else "empty", f"{len(text)} characters")
    if len(text) > settings.max_characters:
        return NoText("long", f"{len(text)} characters")
    return ExtractedText(mime, text, extractor, title=repair_line(fields.get("title")), charset=charset)


def read_office(payload: bytes, mime: str) -> dict[str, str | None] | NoText:
    """Return text and title of a file, or the reason why there is no text."""
    try:
        config = kreuzberg.ExtractionConfig(use_cache=False, output_format="plain", disable_ocr=True)
        extracted = kreuzberg.extract_bytes_sync(payload, mime, config=config)
    except MemoryError:
        raise
    except Exception as error:  # exceptions of kreuzberg and of its parsers
        return NoText("unreadable", " ".join(str(error).split()))
    metadata: Any = extracted.metadata
    title = metadata.get("title") or (metadata.get("core_properties") or {}).get("title")
    if isinstance(title, str):  # in RTF with escapes, which kreuzberg does not decode
        title = _ESCAPED.sub(lambda match: bytes.fromhex(match[1]).decode("windows-1252", "replace"), title)
    return {"text": extracted.content, "title": title if isinstance(title, str) else None}


def warm_up() -> None:
    """Start the threads of kreuzberg, which take address space until the process ends."""
    read_office(b"{\\rtf1 .}", "application/rtf")
