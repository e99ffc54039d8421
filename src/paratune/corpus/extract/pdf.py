"""Text and title of a PDF: PDFium reads the pages, whose lines are joined to paragraphs here."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pypdfium2

from paratune.corpus.extract.found import Refused
from paratune.corpus.extract.wrapped import HYPHEN, unwrap

SLACK = 0.85
"""Share of the width, in characters, from which on a line counts as full: letters differ in width."""
NUM_PAGES = 4
"""Pages from which on the lines at their top and foot are compared."""
_PASSWORD = 4
"""Of FPDF_GetLastError: a password is needed."""


def read_pdf(payload: bytes) -> dict[str, str | None] | Refused:
    """Return text and title of a PDF.

    Lines at the top or foot of more than half of the pages, but for their numbers, are left out.
    """
    try:
        document = pypdfium2.PdfDocument(payload)
    except pypdfium2.PdfiumError as error:
        if getattr(error, "err_code", None) == _PASSWORD:
            return Refused("encrypted", "a password is needed")
        return Refused("unreadable", str(error))
    with closing(document):
        title = document.get_metadata_value("Title")
        pages = [_lines(document, number) for number in range(len(document))]
    repeated = _repeated(pages)
    lines = list(_running([_without(page, repeated) for page in pages]))
    return {"text": "\n".join(unwrap(lines, slack=SLACK)), "title": title}


def _lines(document: pypdfium2.PdfDocument, number: int) -> list[str]:
    """Return the lines of a page; none of one that cannot be read."""
    try:
        with closing(document[number]) as page, closing(page.get_textpage()) as text:
            # PDFium leaves the end of a line out where it finds a hyphen, and puts a mark there.
            found = str(text.get_text_range()).replace(HYPHEN, f"{HYPHEN}\n")
    except pypdfium2.PdfiumError:
        return []
    return [line.strip() for line in found.splitlines()]


def _repeated(pages: list[list[str]]) -> set[str]:
    """Return what stands at the top or foot of more than half of the pages that hold text."""
    ends = [{_key(line) for line in (*page[:1], *page[-1:])} for page in pages if page]
    counts = Counter(key for each in ends for key in each)
    return {key for key, count in counts.items() if len(ends) >= NUM_PAGES and count > len(ends) / 2}


def _without(page: list[str], repeated: set[str]) -> list[str]:
    first = 1 if page and _key(page[0]) in repeated else 0
    last = len(page) - 1 if len(page) > first and _key(page[-1]) in repeated else len(page)
    return page[first:last]


def _running(pages: list[list[str]]) -> Iterator[str]:
    """Yield the lines of all pages; a paragraph goes on over the page where the next one begins in the middle of it."""
    for page in pages:
        if page and not page[0][:1].islower():
            yield ""
        yield from page


def _key(line: str) -> str:
    return re.sub(r"\d+|\b[ivxlc]+\b", "0", line)
