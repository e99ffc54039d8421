"""Extracts the text of a document: finds its MIME type and charset, calls a library, and normalises the text.

Pages declare a charset in the HTTP header, in a `meta` element, in both or in neither, and often wrongly. Valid UTF-8
is almost never in another charset, so it is decoded as UTF-8 despite the declaration. Otherwise the order is that of
browsers: byte order mark, header, meta, detection. Labels have the meaning of the Encoding standard: ISO-8859-1 and
ASCII are windows-1252.

Sources: https://mimesniff.spec.whatwg.org, sections 6 and 7 (signatures); https://encoding.spec.whatwg.org and
https://html.spec.whatwg.org, "Determining the character encoding".
"""

import codecs
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import cchardet
import ftfy.bad_codecs  # noqa: F401 - registers the sloppy-* codecs
import kreuzberg
import webencodings

from paratune.corpus.extract.pages import read_html, read_pdf, repair, repair_line, unwrap, without_mojibake
from paratune.corpus.extract.process import ExtractedText, NoText
from paratune.corpus.settings import Extract

META_BYTES = 4096
"""Bytes at the start of a page that are searched for a charset; 1024 in the standard, too few for old pages."""
DETECT_BYTES = 1 << 16
"""Bytes that are read to detect a charset."""
SURE = 0.65
"""Minimum confidence of the detection; below, it confuses Portuguese with Cyrillic."""
FALLBACK = "windows-1252"
"""Charset of texts without a declared or detected one."""
FEW = 0.1
"""Maximum share of undecodable characters among those outside ASCII, in a declared charset."""
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_LABEL = rb"""charset\s*=\s*["']?\s*([\w.:+-]+)"""
_IN_META = re.compile(rb"<meta\b[^>]{0,400}?" + _LABEL, re.IGNORECASE)
_IN_XML = re.compile(rb"""^\s*<\?xml\b[^>]{0,200}?encoding\s*=\s*["']([\w.:+-]+)""")
_IN_HEADER = re.compile(_LABEL, re.IGNORECASE)


def decode(payload: bytes, content_type: str | None) -> tuple[str, str]:
    """Return the text of some bytes, and the name of their charset.

    Returns:
        The text, with U+FFFD for invalid bytes, and the name of the charset in the Encoding standard.
    """
    for mark, name in _MARKS:
        if payload.startswith(mark):
            return payload[len(mark) :].decode(name, "replace"), name
    try:
        text = payload.decode("utf-8")
        if text.isascii() and b"\x1b" not in payload:  # equal in the declared charset; ISO-2022 has escapes
            return text, next(_declared(payload, content_type), "utf-8")
        if not text.isascii():
            return text, "utf-8"
    except UnicodeDecodeError:
        pass
    for name in _candidates(payload, content_type):
        text = _decoded(payload, name)
        if text.count("\ufffd") <= FEW * sum(not character.isascii() for character in text):
            return text, name
    return _decoded(payload, FALLBACK), FALLBACK


def _candidates(payload: bytes, content_type: str | None) -> Iterator[str]:
    yield from _declared(payload, content_type)
    detected = cchardet.detect(payload[:DETECT_BYTES])
    name = _name(detected["encoding"] or "")
    if name is not None and (detected["confidence"] or 0) >= SURE:
        yield name


def _declared(payload: bytes, content_type: str | None) -> Iterator[str]:
    """Yield the declared charsets: in the HTTP header, in XML, in `meta`."""
    header = (content_type or "").encode("ascii", "replace")
    for pattern, source in ((_IN_HEADER, header), (_IN_XML, payload[:META_BYTES]), (_IN_META, payload[:META_BYTES])):
        match = pattern.search(source)
        name = _name(match[1].decode("ascii", "replace")) if match else None
        # A label that is readable as single bytes is not in UTF-16.
        if name is not None:
            yield "utf-8" if name.startswith("utf-16") else name


def _name(label: str) -> str | None:
    """Return the name of a label in the Encoding standard; None for an unknown label or one without text."""
    encoding = webencodings.lookup(label)
    return None if encoding is None or encoding.name in ("x-user-defined", "replacement") else str(encoding.name)


def _decoded(payload: bytes, name: str) -> str:
    if name in ("windows-1252", "windows-1250", "windows-1251", "windows-1253", "windows-1254", "windows-1257"):
        # Their unused bytes are control characters in the standard; ftfy decodes them, Python does not.
        return payload.decode(f"sloppy-{name}", "replace")
    encoding = webencodings.lookup(name)
    return payload.decode(encoding.codec_info.name if encoding is not None else name, "replace")


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
        settings: Limits of the length of a text.
    """
    if not payload:
        return NoText("empty", "0 bytes")
    mime, charset = mime_type(payload, declared), None
    fields: dict[str, str | None] | NoText
    if mime in (HTML, XHTML, TEXT):
        page, charset = decode(payload, declared)
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
