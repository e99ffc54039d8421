"""A report as PDF: Typst typesets `template.typ`, which receives the contents as JSON.

Texts are JSON strings, which Typst never reads as markup. Figures are vectors: the SVG of the report.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE
from paratune.errors import MissingDependency, require
from paratune.reports.document import (
    Listing,
    MarkedText,
    Notice,
    Part,
    QuotedTexts,
    Remarks,
    ReportDocument,
    ReportSection,
    StatementBox,
)
from paratune.reports.figures.canvas import Drawing
from paratune.reports.tables.table import Table, TableCell, with_varying_columns

_MAX_PARTS, _MAX_LINES, _MAX_LISTED_LINES = 12, 40, 300
"""Tables and texts of a section, lines of a table, and lines of a listing; index.html has all of them."""
_ROOM, _GAP = 7 * 72, 11
"""Points: width of the text, and space between columns."""
_SIZES = (8.0, 7.0, 6.0, 5.5)
"""Letters of tables, in points; a table that is too wide for the smallest is divided."""
_LETTER = 0.66
"""Width of a letter of DejaVu Sans by its size: the mean of digits and small letters, rounded up."""
_TEXT_WIDTH, _LEAST_TEXT = 24, 12
"""Letters of a cell of text from which it may be broken, beside numbers and beside other texts."""
_COLOURS = {True: "good", False: "bad", None: ""}


def can_typeset() -> bool:
    """Return whether the packages that a PDF needs are installed."""
    try:
        require("typst", extra="plots")
        require("matplotlib", extra="plots")
    except MissingDependency:
        return False
    return True


def document_pdf(document: ReportDocument) -> bytes:
    """Return a report as PDF; equal contents give equal bytes.

    Raises:
        MissingDependency: typst or matplotlib, whose fonts are used, is not installed.
    """
    typst = require("typst", extra="plots")
    matplotlib = require("matplotlib", extra="plots")
    contents = {
        "title": plain(document.title),
        "lead": [plain(text) for text in document.lead],
        "parts": [_notice(notice) for notice in document.notices],
        "sections": [
            {"heading": plain(section.heading), "parts": list(_parts(section))} for section in document.sections
        ],
    }
    template = resources.files("paratune.reports.pdf").joinpath("template.typ").read_bytes()
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    # Only fonts of matplotlib: with those of the machine, equal contents would give other bytes elsewhere.
    pdf = typst.compile(
        template, font_paths=[str(fonts)], ignore_system_fonts=True, sys_inputs={"contents": json.dumps(contents)}
    )
    return bytes(pdf)


def _parts(section: ReportSection) -> Iterator[dict[str, Any]]:
    """Yield the parts of a section as `template.typ` reads them: all figures, the first tables and texts."""
    counts = {"tables": 0, "paragraphs": 0}
    for part in section.parts:
        if kind := "tables" if isinstance(part, Table) else "paragraphs" if isinstance(part, str) else "":
            counts[kind] += 1
        if not kind or counts[kind] <= _MAX_PARTS:
            yield from _part(part, section.heading)
    for kind, count in counts.items():
        if count > _MAX_PARTS:
            yield _text(f"{_MAX_PARTS} of {count:,} {kind}; index.html has all of them.")


def _part(part: Part, heading: str) -> Iterator[dict[str, Any]]:
    match part:
        case Table():
            yield _table(part, title="" if part.title == heading else plain(part.title))
        case Drawing():
            if part.note is not None:
                yield _text(part.note)
            else:
                title = "" if part.title == heading else plain(part.title)
                yield {"kind": "figure", "title": title, "caption": plain(part.caption), "svg": part.svg}
        case Listing():
            lines = part.lines[:_MAX_LISTED_LINES]
            more = f"The first {_MAX_LISTED_LINES} of {len(part.lines):,} lines; index.html has all."
            note = more if len(lines) < len(part.lines) else ""
            yield {"kind": "listing", "title": plain(part.title), "lines": lines, "note": note}
        case Notice():
            yield _notice(part)
        case MarkedText():
            yield _text(f"{part.title}: {part.plain_text}")
        case Remarks():
            yield from map(_text, part.texts)
        case StatementBox():
            yield {"kind": "statements", "title": plain(part.title), "rows": [*_statements(part)]}
        case QuotedTexts():
            yield from (_text(f"{about}: {text}") for about, text in part.rows)
        case str():
            yield _text(part)


def _notice(notice: Notice) -> dict[str, Any]:
    return {"kind": "notice", "text": plain(notice.text), "items": [plain(item) for item in notice.items]}


def _statements(box: StatementBox) -> Iterator[list[str]]:
    """Yield sign, its colour, subject and text of each statement."""
    for statement in box.statements:
        sign = [statement.sign, _COLOURS[statement.is_good] or "muted"] if box.has_signs else ["", ""]
        text = f"{statement.text} ({statement.evidence_name})" if statement.evidence else statement.text
        yield [*sign, plain(statement.label), plain(text)]


def _text(text: str) -> dict[str, Any]:
    return {"kind": "text", "text": plain(text)}


def _table(table: Table, title: str) -> dict[str, Any]:
    """Return the first lines of a table without columns of equal values, in blocks of columns that fit the page."""
    table = with_varying_columns(table)
    notes = [plain(note) for note in table.notes]
    if len(table.lines) > _MAX_LINES:
        notes.insert(0, f"{_MAX_LINES} of {len(table.lines):,} lines; index.html and report.json have all of them.")
        groups = tuple(group for group in table.groups if group[0] < _MAX_LINES)
        table = replace(table, lines=table.lines[:_MAX_LINES], groups=groups)
    blocks, size = _layout(table)
    fits = len(blocks) > 1 or sum(_width(table, at, _ROOM) for at in blocks[0]) * _LETTER * size < _ROOM - _GAP
    widths = [_width(table, at, _TEXT_WIDTH if fits else 80) * _LETTER * size for at in range(len(table.columns))]
    return {
        "kind": "table",
        "title": title,
        "notes": notes,
        "size": size,
        "blocks": [
            {
                "header": [plain(table.columns[at].label) for at in columns],
                "texts": [table.columns[at].is_text for at in columns],
                # Numbers are never broken; texts have the rest of the line.
                "widths": [0 if fits and table.columns[at].is_text else widths[at] for at in columns],
                "is_flexible": [not fits and table.columns[at].is_text for at in columns],
                "rows": [[_cell(line[at]) for at in columns] for line in table.lines],
            }
            for columns in blocks
        ],
        "marked": list(table.marked),
        "groups": {str(at): plain(text) for at, text in table.groups},
    }


def _layout(table: Table) -> tuple[Sequence[Sequence[int]], float]:
    """Return the columns of each block, each with the columns that identify the lines, and the size of the letters."""
    widths = [_width(table, at, _LEAST_TEXT if table.is_text else _TEXT_WIDTH) for at in range(len(table.columns))]
    for size in _SIZES:
        if sum(widths) * _LETTER * size + _GAP * (len(widths) - 1) <= _ROOM:
            return [range(len(widths))], size
    names = [at for at in table.repeated if at < len(widths)]
    left = _ROOM / (_LETTER * size) - sum(widths[at] + 2 for at in names)
    blocks: list[list[int]] = []
    free = 0.0
    for at in (at for at in range(len(widths)) if at not in names):
        if not blocks or widths[at] + 2 > free:
            blocks.append([*names])
            free = left
        blocks[-1].append(at)
        free -= widths[at] + 2
    return blocks, size


def _width(table: Table, at: int, most: int = _TEXT_WIDTH) -> int:
    """Return the letters of a column that stay in a line: all of numbers, at most `most` of texts."""
    column = table.columns[at]
    widest = max((len(line[at].shown) for line in table.lines), default=0)
    words = max(map(len, column.label.split()), default=0)
    return max(min(words, 14), min(widest, most) if column.is_text else widest)


def _cell(cell: TableCell) -> list[str]:
    """Return text and colour of a cell."""
    return [plain(cell.shown), "muted" if cell.text == NOT_AVAILABLE or cell.is_open else _COLOURS[cell.better]]
