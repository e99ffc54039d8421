"""One document: which kind it is, who reads it, and its text made fit to keep."""

from collections.abc import Callable

from paratune.corpus.extract.charset import decode
from paratune.corpus.extract.found import Document, Extracted, Kept, Refused
from paratune.corpus.extract.html import read_html
from paratune.corpus.extract.kinds import DOC, DOCX, HTML, ODT, PDF, RTF, TEXT, XHTML, kind_of
from paratune.corpus.extract.office import read_office
from paratune.corpus.extract.pdf import read_pdf
from paratune.corpus.extract.repair import repair, repair_line, without_mojibake
from paratune.corpus.extract.wrapped import unwrap

UNREAD = "kind"
"""Reason of what no library here reads; Tika may."""


Read = tuple[dict[str, str | None] | Refused, str | None]
"""What a reader found, and the charset."""


def extract(document: Document, kept: Kept) -> Extracted | Refused:
    """Return the text of a document, or why there is none."""
    mime = kind_of(document.payload, document.content_type or document.mime)
    if not document.payload:
        return Refused("empty", "0 bytes", mime)
    if mime not in READERS:
        return Refused(UNREAD, mime, mime)
    extractor, read = READERS[mime]
    found, charset = read(document, mime, kept)
    if isinstance(found, Refused):
        return Refused(found.reason, found.detail, mime)
    return finish(found, mime, extractor, charset, kept)


def finish(
    found: dict[str, str | None], mime: str, extractor: str, charset: str | None, kept: Kept
) -> Extracted | Refused:
    """Repair what a reader found, and judge its length."""
    text = repair(found["text"] or "")
    if len(text) < kept.min_characters:
        return Refused("short" if text else "empty", f"{len(text)} characters", mime)
    if len(text) > kept.max_characters:
        return Refused("long", f"{len(text)} characters", mime)
    return Extracted(
        mime=mime,
        text=text,
        extractor=extractor,
        title=repair_line(found.get("title")),
        charset=charset,
        licence=repair_line(found.get("licence")),
        robots=repair_line(found.get("robots")),
    )


def _html(document: Document, _: str, kept: Kept) -> Read:
    page, charset = decode(document.payload, document.content_type or document.mime, fallback=kept.charset)
    return read_html(page, document.url), charset


def _text(document: Document, _: str, kept: Kept) -> Read:
    text, charset = decode(document.payload, document.content_type or document.mime, fallback=kept.charset)
    # In mojibake a line is longer than it was when it was broken.
    return {"text": "\n".join(unwrap(without_mojibake(text).split("\n")))}, charset


def _pdf(document: Document, *_: object) -> Read:
    return read_pdf(document.payload), None


def _office(document: Document, mime: str, _: Kept) -> Read:
    return read_office(document.payload, mime), None


READERS: dict[str, tuple[str, Callable[[Document, str, Kept], Read]]] = {
    HTML: ("trafilatura", _html),
    XHTML: ("trafilatura", _html),
    TEXT: ("plain", _text),
    PDF: ("pypdfium2", _pdf),
    **dict.fromkeys((RTF, DOC, DOCX, ODT), ("kreuzberg", _office)),
}
"""Kinds of documents: the library, and the function that reads them."""
