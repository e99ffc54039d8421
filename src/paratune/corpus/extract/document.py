"""Extracts the text of a document: finds its MIME type, calls a library, and normalises the text."""

import re
from typing import Any

import kreuzberg

from paratune.corpus.extract.charset import decode
from paratune.corpus.extract.html import read_html
from paratune.corpus.extract.mime import DOC, DOCX, HTML, ODT, PDF, RTF, TEXT, XHTML, mime_type
from paratune.corpus.extract.pdf import read_pdf
from paratune.corpus.extract.repair import repair, repair_line, without_mojibake
from paratune.corpus.extract.results import ExtractedText, NoText
from paratune.corpus.extract.unwrap import unwrap
from paratune.corpus.settings import Extract

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
