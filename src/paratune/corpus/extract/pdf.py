"""Extracts text and title of a PDF: PDFium reads the pages; lines are then joined to paragraphs."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pypdfium2

from paratune.corpus.extract.lines import HYPHEN, unwrap
from paratune.corpus.extract.process import NoText

SLACK = 0.85
"""Share of the maximum width from which a line counts as full, since letters differ in width."""
NUM_PAGES = 4
"""Minimum number of pages for the removal of headers and footers."""
_PASSWORD = 4
"""Code of FPDF_GetLastError: a password is required."""


def read_pdf(payload: bytes) -> dict[str, str | None] | NoText:
    """Return text and title of a PDF, or the reason why there is no text.

    Headers and footers, lines at the top or bottom of more than half of the pages, are removed; numbers may differ.
    """
    try:
        document = pypdfium2.PdfDocument(payload)
    except pypdfium2.PdfiumError as error:
        if getattr(error, "err_code", None) == _PASSWORD:
            return NoText("encrypted", "a password is required")
        return NoText("unreadable", str(error))
    with closing(document):
        title = document.get_metadata_value("Title")
        pages = [_lines(document, number) for number in range(len(document))]
    repeated = _repeated(pages)
    lines = list(_running([_without(page, repeated) for page in pages]))
    return {"text": "\n".join(unwrap(lines, slack=SLACK)), "title": title}


def _lines(document: pypdfium2.PdfDocument, number: int) -> list[str]:
    """Return the lines of a page; none for an unreadable page."""
    try:
        with closing(document[number]) as page, closing(page.get_textpage()) as text:
            # PDFium replaces a hyphen and the end of the line by a marker.
            text_lines = str(text.get_text_range()).replace(HYPHEN, f"{HYPHEN}\n")
    except pypdfium2.PdfiumError:
        return []
    return [line.strip() for line in text_lines.splitlines()]


def _repeated(pages: list[list[str]]) -> set[str]:
    """Return the first and last lines of more than half of the pages with text."""
    ends = [{_key(line) for line in (*page[:1], *page[-1:])} for page in pages if page]
    counts = Counter(key for page_ends in ends for key in page_ends)
    return {key for key, count in counts.items() if len(ends) >= NUM_PAGES and count > len(ends) / 2}


def _without(page: list[str], repeated: set[str]) -> list[str]:
    first = 1 if page and _key(page[0]) in repeated else 0
    last = len(page) - 1 if len(page) > first and _key(page[-1]) in repeated else len(page)
    return page[first:last]


def _running(pages: list[list[str]]) -> Iterator[str]:
    """Yield the lines of all pages, with an empty line between pages unless a paragraph continues."""
    for page in pages:
        if page and not page[0][:1].islower():
            yield ""
        yield from page


def _key(line: str) -> str:
    return re.sub(r"\d+|\b[ivxlc]+\b", "0", line)
