"""Extracts the text of a document: finds its MIME type, calls a library, and normalises the text."""

from collections.abc import Callable

from paratune.corpus.extract.charset import decode
from paratune.corpus.extract.html import read_html
from paratune.corpus.extract.mime import DOC, DOCX, HTML, ODT, PDF, RTF, TEXT, XHTML, mime_type
from paratune.corpus.extract.office import read_office
from paratune.corpus.extract.pdf import read_pdf
from paratune.corpus.extract.repair import repair, repair_line, without_mojibake
from paratune.corpus.extract.results import Document, ExtractedText, NoText, TextLimits
from paratune.corpus.extract.unwrap import unwrap

UNSUPPORTED = "kind"
"""Reason for a MIME type without a library; Tika may read it."""

Read = tuple[dict[str, str | None] | NoText, str | None]
"""Result of a reader, and the charset."""


def extract(document: Document, limits: TextLimits) -> ExtractedText | NoText:
    """Return the text of a document, or the reason why there is none."""
    mime = mime_type(document.payload, document.content_type or document.mime)
    if not document.payload:
        return NoText("empty", "0 bytes", mime)
    if mime not in READERS:
        return NoText(UNSUPPORTED, mime, mime)
    extractor, read = READERS[mime]
    fields, charset = read(document, mime, limits)
    if isinstance(fields, NoText):
        return NoText(fields.reason, fields.detail, mime)
    return finish(fields, mime, extractor, charset, limits)


def finish(
    fields: dict[str, str | None], mime: str, extractor: str, charset: str | None, limits: TextLimits
) -> ExtractedText | NoText:
    """Normalise the text of a reader, and check its length."""
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
