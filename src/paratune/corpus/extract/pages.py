"""Extracts text and title of HTML pages and PDFs, repairs lines, and joins wrapped lines to paragraphs.

Trafilatura reads HTML, PDFium the pages of a PDF.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import ftfy
import pypdfium2
import trafilatura
from ftfy.badness import is_bad
from ftfy.chardata import CONTROL_CHARS, LIGATURES, WIDTH_MAP

from paratune.corpus.extract.process import NoText

MIN_WIDTH, MAX_WIDTH = 40, 140
"""Range of widths of wrapped text: shorter lines are verse or tables, longer ones are paragraphs."""
LONG = 0.95
"""Quantile of line lengths that is the width, so that a single long URL does not count."""
HYPHEN = "\ufffe"
"""PDFium's marker of a hyphen at the end of a line, which may belong to the word or to the wrapping."""
_ITEM = re.compile(r"(?:[-*+•·▪–—]|\(?\d{1,3}(?:\.\d{1,3})*[.)]?|\(?[a-zA-Z][.)])\s")
_BROKEN = re.compile(r"(\w+)(?:-|\ufffe)$")
_WORD = re.compile(r"\w+")


def unwrap(lines: Sequence[str], *, slack: float = 1.0) -> list[str]:
    """Join the lines that end where the next word does not fit.

    Args:
        lines: Lines of a text or page; an empty line ends a paragraph.
        slack: Share of the width from which a line counts as full; 1 for a fixed-width font.

    Returns:
        Paragraphs, without empty ones.
    """
    lengths = sorted(_length(line) for line in lines if line.strip())
    width = lengths[min(len(lengths) - 1, int(LONG * len(lengths)))] if lengths else 0
    if not MIN_WIDTH <= width <= MAX_WIDTH:
        return [" ".join(line.split()) for line in lines if line.strip()]
    known = set(re.findall(r"\w+(?:-\w+)+|\w+", "\n".join(lines).lower()))
    paragraphs: list[list[str]] = []
    before = ""
    for raw_line in lines:
        line = " ".join(raw_line.split())
        # Whether the first word did not fit on the line before.
        full = line and before and _length(before) + 1 + len(line.split(maxsplit=1)[0]) > slack * width
        if line and before and not _ITEM.match(line) and (full or before.endswith(HYPHEN)):
            paragraphs[-1][-1] = _without_line_end(paragraphs[-1][-1], line, known)
            paragraphs[-1].append(line)
        elif line:
            paragraphs.append([line])
        before = raw_line.rstrip()
    return ["".join(parts) for parts in paragraphs]


def _length(line: str) -> int:
    """Return the number of columns of a line, including indentation."""
    return len(line.rstrip().expandtabs())


def _without_line_end(line: str, following: str, known: set[str]) -> str:
    """Return a line to which the next one can be appended: with a space at the end, or without a hyphen.

    A hyphen is kept if the text contains the word with a hyphen and not without one.
    """
    left, right = _BROKEN.search(line), _WORD.match(following)
    if left is None or right is None or not right[0][0].islower():
        return f"{line[:-1]}-" if line.endswith(HYPHEN) else f"{line} "
    whole, parted = (left[1] + right[0]).lower(), f"{left[1]}-{right[0]}".lower()
    return f"{line[:-1]}-" if parted in known and whole not in known else line[:-1]


CONFIG = ftfy.TextFixerConfig(unescape_html=False, uncurl_quotes=False, explain=False)
_OTHERWISE = re.compile(
    f"[\x80-\x9f\x1b\ud800-\udfff{re.escape(''.join(map(chr, (*CONTROL_CHARS, *LIGATURES, *WIDTH_MAP))))}]"
)
"""Characters that ftfy also changes without mojibake. Skipping ftfy for other lines halves the time."""
_ENDS = re.compile("\r\n|[\n\r\x0b\x0c\x1c-\x1e\u2028\u2029]|\x85(?<![\xc2-\xf4]\x85)")
"""Line ends. After a letter such as Ã, \\x85 is the second byte of one in UTF-8: "Ã\\x85" is "Å"."""
_HONEST = re.compile("Ã(?:(?<=[A-ZÀ-ÖØ-Þ]Ã)(?=[\xa0\xad][A-ZÀ-ÖØ-Þ])|(?<=[A-ZÀ-ÖØ-Þ]{2}Ã)(?=[\xa0\xbb]))")
"""Ã in a word of capitals, before a soft hyphen, a fixed space or a quotation mark: it would become a lower-case letter
("IRMÃ\\xadZINHA" IRMíZINHA, "MANHÃ»" MANHû)."""
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f"  # control characters except separators of words and lines
    "\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff"  # soft hyphens, zero-width and direction marks
    "\ufdd0-\ufdef\ufff9-\ufffc\ufffe\uffff\ud800-\udfff]"  # noncharacters; surrogates
)


def repair(text: str) -> str:
    r"""Return `text` in NFC, with repaired mojibake, single spaces, lines that end with "\n", and no empty lines.

    UTF-8 that was decoded as windows-1252 ("coraÃ§Ã£o"), even twice, is restored. Control characters, soft hyphens,
    direction marks and lone surrogates are removed.
    """
    lines = (" ".join(_UNSEEN.sub("", line).split()) for line in _ENDS.split(without_mojibake(text)))
    return "\n".join(unicodedata.normalize("NFC", line) for line in lines if line)


def without_mojibake(text: str) -> str:
    """Return `text` with repaired mojibake; lines and indentation are kept."""
    # Line ends first: ftfy would remove those that are control characters. `repair` removes the zero-width spaces.
    text = _HONEST.sub("Ã\u200b", text)
    return "\n".join(map(_fixed, _ENDS.sub("\n", text).split("\n")))


def _fixed(line: str) -> str:
    """Return a line after ftfy, which is only called if it does more than NFC."""
    normal = unicodedata.normalize("NFC", line)
    # Mojibake may appear only in NFC: ftfy goes on after it.
    if is_bad(normal) or (normal != line and is_bad(line)) or _OTHERWISE.search(line):
        return str(ftfy.fix_text(line, CONFIG))
    return normal


def repair_line(text: str | None) -> str | None:
    """Return a repaired text on one line; None if it is empty."""
    return " ".join(repair(text or "").split()) or None


LAYOUT_CHARACTERS = 200
"""Minimum number of characters of a cell that makes its table a layout table, not a data table."""
_PARTS = ("table", "thead", "tbody", "tfoot", "tr", "td", "th")
_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")
_LINES = "//text()[contains(., '\n') and not(ancestor::pre)]"
_LINES_OF_PRE = "//pre//text()[contains(., '\n')]"


def read_html(page: str) -> dict[str, str | None]:
    """Return text and title of a page; the text is empty if Trafilatura finds none."""
    tree = trafilatura.load_html(page)
    if tree is None:  # Trafilatura refuses a fragment of a page
        tree = trafilatura.load_html(f"<html><body>{page}</body></html>")
    if tree is None:
        return {"text": ""}
    # Repair mojibake, whose second characters Trafilatura removes: soft hyphens, fixed spaces, control characters.
    for node in tree.xpath("//text()"):
        if not node.isascii() and is_bad(node):
            _set_text(node, without_mojibake(node))
    title = tree.findtext(".//title")
    # Turn layout tables into blocks, so that their paragraphs are kept.
    layouts = []
    for table in tree.iter("table"):
        cells = [part for part in _own_parts(table) if part.tag in ("td", "th")]
        is_layout = any(len(cell.text_content()) >= LAYOUT_CHARACTERS for cell in cells)
        if is_layout or table.find(".//table") is not None:
            layouts.append(table)
    for table in layouts:
        for part in [table, *_own_parts(table)]:
            part.tag = "div"
    # Remove line ends, which have a meaning only in `pre`; in `pre`, join wrapped lines.
    for node in tree.xpath(_LINES):
        _set_text(node, " ".join(node.splitlines()) + (" " if node.endswith("\n") else ""))
    for node in tree.xpath(_LINES_OF_PRE):
        _set_text(node, "\n".join(unwrap(node.splitlines())))
    extracted = trafilatura.bare_extraction(tree, fast=True, include_comments=False)
    lines = extracted.text.split("\n") if extracted is not None and extracted.text else []
    return {"text": "\n".join(part for line in lines for part in _cells(line)), "title": title}


def _set_text(node: Any, text: str) -> None:
    if node.is_tail:
        node.getparent().tail = text
    else:
        node.getparent().text = text


def _own_parts(table: Any) -> Iterator[Any]:
    """Yield rows and cells of a table, without those of nested tables."""
    waiting = list(table)
    while waiting:
        part = waiting.pop()
        if part.tag in _PARTS and part.tag != "table":
            yield part
            waiting += list(part) if part.tag not in ("td", "th") else []


def _cells(line: str) -> Iterator[str]:
    """Yield a line without the separators of cells from Trafilatura."""
    if not line.startswith("|"):
        yield line
        return
    cells = [cell.replace("\\|", "|").strip() for cell in _BETWEEN_CELLS.split(line)]
    if any(cell.strip("-") for cell in cells):
        yield " ".join(cell for cell in cells if cell)


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
