"""A report as PDF: Typst typesets `template.typ`, which receives the contents as JSON.

Texts are JSON strings, which Typst never reads as markup. Figures are vectors: the SVG of the report.
"""

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.errors import require
from paratune.reports.document import (
    Listing,
    MarkedText,
    Notice,
    Part,
    Remarks,
    ReportDocument,
    StatementBox,
)
from paratune.reports.figures.canvas import Drawing
from paratune.reports.tables.table import Table

_MAX_LINES, _MAX_LISTED_LINES = 40, 300
"""Lines of a table, and of a listing; index.html has all of them."""
_ROOM = 7 * 72
"""Points: width of the text."""
_SIZES = (8.0, 7.0, 6.0, 5.5)
"""Letters of tables, in points; a table that is too wide for the smallest is divided."""
_LETTER = 0.66
"""Width of a letter of DejaVu Sans by its size: the mean of digits and small letters, rounded up."""
_TEXT_WIDTH, _LEAST_TEXT = 24, 12
"""Letters of a cell of text from which it may be broken, beside numbers and beside other texts."""
_COLOURS = {True: "good", False: "bad", None: ""}


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
        "parts": [part for notice in document.notices for part in _part(notice, "")],
        "sections": [
            {
                "heading": plain(section.heading),
                "parts": [item for part in section.parts for item in _part(part, section.heading)],
            }
            for section in document.sections
        ],
    }
    template = resources.files("paratune.reports.pdf").joinpath("template.typ").read_bytes()
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    # Only fonts of matplotlib: with those of the machine, equal contents would give other bytes elsewhere.
    pdf = typst.compile(
        template, font_paths=[str(fonts)], ignore_system_fonts=True, sys_inputs={"contents": json.dumps(contents)}
    )
    return bytes(pdf)


def _part(part: Part, heading: str) -> Iterator[dict[str, Any]]:
    """Yield a part of a section as `template.typ` reads it; a title that equals the heading is left out."""
    title = "" if not isinstance(part, Table | Drawing) or part.title == heading else plain(part.title)
    match part:
        case Table():
            yield _table(part, title)
        case Drawing(note=None):
            yield {"kind": "figure", "title": title, "caption": plain(part.caption), "svg": part.svg}
        case Drawing(note=note):
            yield _text(note or "")
        case Listing():
            more = f"The first {_MAX_LISTED_LINES} of {len(part.lines):,} lines; index.html has all."
            note = more if len(part.lines) > _MAX_LISTED_LINES else ""
            lines = part.lines[:_MAX_LISTED_LINES]
            yield {"kind": "listing", "title": plain(part.title), "lines": lines, "note": note}
        case Notice():
            yield {"kind": "notice", "text": plain(part.text), "items": [plain(item) for item in part.items]}
        case MarkedText():
            yield _text(f"{part.title}: {part.plain_text}")
        case Remarks():
            yield from (_text(text if isinstance(text, str) else ": ".join(text)) for text in part.texts)
        case StatementBox():
            rows = []
            for item in part.statements:
                text = f"{item.text} ({item.evidence_name})" if item.evidence else item.text
                rows.append([item.sign, _COLOURS[item.is_good] or "muted", plain(item.label), plain(text)])
            yield {"kind": "statements", "title": plain(part.title), "rows": rows}
        case str():
            yield _text(part)


def _text(text: str) -> dict[str, Any]:
    return {"kind": "text", "text": plain(text)}


def _table(table: Table, title: str) -> dict[str, Any]:
    """Return the first lines of a table without columns of equal values, in blocks of columns that fit the page.

    Numbers are never broken; texts have the rest of the line.
    """
    table = table.varying().first(_MAX_LINES)
    most = _LEAST_TEXT if table.is_text else _TEXT_WIDTH
    letters = []
    for at, column in enumerate(table.columns):
        widest = max((len(row[at]) for row in table.rows), default=0)
        word = min(14, max(map(len, column.label.split()), default=0))
        letters.append(max(word, min(widest, most) if column.is_text else widest))
    for size in _SIZES:
        blocks = table.blocks([width + 2 for width in letters], _ROOM / (_LETTER * size) + 2)
        if len(blocks) == 1:
            break
    return {
        "kind": "table",
        "title": title,
        "notes": [plain(note) for note in table.notes],
        "size": size,
        "blocks": blocks,
        "columns": [
            {"label": plain(column.label), "is_text": column.is_text, "width": width * _LETTER * size}
            for column, width in zip(table.columns, letters, strict=True)
        ],
        "rows": [
            [
                (plain(cell.shown), "muted" if cell.is_open or not cell.is_known else _COLOURS[cell.better])
                for cell in line
            ]
            for line in table.lines
        ],
        "marked": list(table.marked),
        "groups": {str(at): plain(text) for at, text in table.groups},
    }
