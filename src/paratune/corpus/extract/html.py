"""Text, title, licence and robots of a page: Trafilatura finds the text, what it does not look at is read here."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

import trafilatura

from paratune.corpus.extract.wrapped import unwrap

LAYOUT_CHARACTERS = 200
"""Characters of a cell from which on a table places text on a page, and is no table of data."""
_PARTS = ("table", "thead", "tbody", "tfoot", "tr", "td", "th")
_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")
_LICENCE = "//*[self::a or self::link][@rel and @href]"
_LINES = "//text()[contains(., '\n') and not(ancestor::pre)]"
_LINES_OF_PRE = "//pre//text()[contains(., '\n')]"
_ROBOTS = "//meta[@name and @content]"


def read_html(page: str, url: str) -> dict[str, str | None]:
    """Return text, title, licence and robots of a page; the text is empty where Trafilatura finds none.

    Args:
        page: Decoded.
        url: Of the page; the address of the licence may be relative to it.
    """
    tree = trafilatura.load_html(page)
    if tree is None:  # a piece of a page, which Trafilatura refuses
        tree = trafilatura.load_html(f"<html><body>{page}</body></html>")
    if tree is None:
        return {"text": ""}
    known = {"title": tree.findtext(".//title"), "licence": _licence(tree, url), "robots": _robots(tree)}
    _open_layout_tables(tree)
    _join_lines(tree)
    found = trafilatura.bare_extraction(tree, fast=True, include_comments=False)
    lines = found.text.split("\n") if found is not None and found.text else []
    return {"text": "\n".join(part for line in lines for part in _cells(line)), **known}


def _licence(tree: Any, url: str) -> str | None:
    """Return the first address that a link of the page calls its licence."""
    for link in tree.xpath(_LICENCE):
        if "license" in link.get("rel").lower().split():
            try:
                return str(urljoin(url, link.get("href").strip()))
            except ValueError:  # no address at all
                continue
    return None


def _robots(tree: Any) -> str | None:
    said = [each.get("content") for each in tree.xpath(_ROBOTS) if each.get("name").strip().lower() == "robots"]
    return ", ".join(said) or None


def _open_layout_tables(tree: Any) -> None:
    """Turn tables that place text on a page, as was done before style sheets, into blocks, so that paragraphs stay."""
    tables = [table for table in tree.iter("table") if _is_layout(table)]
    for table in tables:
        for part in [table, *_own_parts(table)]:
            part.tag = "div"


def _join_lines(tree: Any) -> None:
    """Take the line ends out of the source, which mean nothing but in `pre`; there, those that a width has forced."""
    for found in tree.xpath(_LINES):
        _put(found, " ".join(found.splitlines()) + (" " if found.endswith("\n") else ""))
    for found in tree.xpath(_LINES_OF_PRE):
        _put(found, "\n".join(unwrap(found.splitlines())))


def _put(found: Any, text: str) -> None:
    """Put a text where another was found."""
    if found.is_tail:
        found.getparent().tail = text
    else:
        found.getparent().text = text


def _is_layout(table: Any) -> bool:
    return table.find(".//table") is not None or any(
        len(cell.text_content()) >= LAYOUT_CHARACTERS for cell in _own_parts(table) if cell.tag in ("td", "th")
    )


def _own_parts(table: Any) -> Iterator[Any]:
    """Yield rows and cells of a table, without those of tables in it."""
    waiting = list(table)
    while waiting:
        part = waiting.pop()
        if part.tag in _PARTS and part.tag != "table":
            yield part
            waiting += list(part) if part.tag not in ("td", "th") else []


def _cells(line: str) -> Iterator[str]:
    """Yield a line without the strokes that Trafilatura draws between cells."""
    if not line.startswith("|"):
        yield line
        return
    cells = [cell.replace("\\|", "|").strip() for cell in _BETWEEN_CELLS.split(line)]
    if any(cell.strip("-") for cell in cells):
        yield " ".join(cell for cell in cells if cell)
