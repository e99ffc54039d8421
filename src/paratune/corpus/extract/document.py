"""Extracts the text of a document: finds its MIME type, calls a library, and normalises the text."""

import re
from collections.abc import Callable
from typing import Any

import kreuzberg

from paratune.corpus.extract.charset import decode
from paratune.corpus.extract.html import read_html
from paratune.corpus.extract.mime import DOC, DOCX, HTML, ODT, PDF, RTF, TEXT, XHTML, mime_type
from paratune.corpus.extract.pdf import read_pdf
from paratune.corpus.extract.repair import repair, repair_line, without_mojibake
from paratune.corpus.extract.results import Document, ExtractedText, NoText, TextLimits
from paratune.corpus.extract.unwrap import unwrap

_ESCAPED = re.compile(r"\\'([0-9a-fA-F]{2})")

Read = tuple[dict[str, str | None] | NoText, str | None]
"""Result of a reader, and the charset."""


def extract(document: Document, limits: TextLimits) -> ExtractedText | NoText:
    """Return the text of a document, or the reason why there is none."""
    mime = mime_type(document.payload, document.content_type or document.mime)
    if not document.payload:
        return NoText("empty", "0 bytes", mime)
    if mime not in READERS:
        return NoText("kind", mime, mime)
    extractor, read = READERS[mime]
    fields, charset = read(document, mime, limits)
    if isinstance(fields, NoText):
        return NoText(fields.reason, fields.detail, mime)
    text = repair(fields["text"] or "")
    if len(text) < limits.min_characters:
        return NoText("short" if text else "empty", f"{len(text)} characters", mime)
    if len(text) > limits.max_characters:
        return NoText("long", f"{len(text)} characters", mime)
    return ExtractedText(
        mime=mime,
        text=text,
        extractor=extractor,
        title=repair_line(fields.get("title")),
        charset=charset,
        licence=repair_line(fields.get("licence")),
        robots=repair_line(fields.get("robots")),
    )


def _html(document: Document, _: str, limits: TextLimits) -> Read:
    page, charset = decode(document.payload, document.content_type or document.mime, fallback=limits.charset)
    return read_html(page, document.url), charset


def _text(document: Document, _: str, limits: TextLimits) -> Read:
    text, charset = decode(document.payload, document.content_type or document.mime, fallback=limits.charset)
    # Mojibake makes lines longer, so that unwrapping would fail.
    return {"text": "\n".join(unwrap(without_mojibake(text).split("\n")))}, charset


def read_office(payload: bytes, mime: str) -> dict[str, str | None] | NoText:
    """Return text and title of a file, or the reason why there is no text."""
    try:
        config = kreuzberg.ExtractionConfig(use_cache=False, output_format="plain", disable_ocr=True)
        extracted = kreuzberg.extract_bytes_sync(payload, mime, config=config)
    except MemoryError:
        raise
    except Exception as error:  # exceptions of kreuzberg and of its parsers
        return NoText("unreadable", " ".join(str(error).split()))
    return {"text": extracted.content, "title": _title(extracted.metadata)}


def warm_up() -> None:
    """Start the threads of kreuzberg, which take address space until the process ends."""
    read_office(b"{\\rtf1 .}", "application/rtf")


def _title(metadata: Any) -> str | None:
    title = metadata.get("title") or (metadata.get("core_properties") or {}).get("title")
    if not isinstance(title, str):
        return None
    # kreuzberg does not decode RTF escapes in a title.
    return _ESCAPED.sub(lambda match: bytes.fromhex(match[1]).decode("windows-1252", "replace"), title)


READERS: dict[str, tuple[str, Callable[[Document, str, TextLimits], Read]]] = {
    HTML: ("trafilatura", _html),
    XHTML: ("trafilatura", _html),
    TEXT: ("plain", _text),
    PDF: ("pypdfium2", lambda document, mime, limits: (read_pdf(document.payload), None)),
    **dict.fromkeys(
        (RTF, DOC, DOCX, ODT),
        ("kreuzberg", lambda document, mime, limits: (read_office(document.payload, mime), None)),
    ),
}
"""Library and reader of each MIME type."""
