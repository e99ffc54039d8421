"""Extracts text and title of an HTML page; Trafilatura extracts the text."""

import re
from collections.abc import Iterator
from typing import Any

import trafilatura
from ftfy.badness import is_bad

from paratune.corpus.extract.lines import unwrap, without_mojibake

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
