"""A report as PDF: Typst typesets `template.typ`, which receives the contents as JSON.

Texts are JSON strings, which Typst never reads as markup. Figures are vectors: the SVG of the report.
"""

import json
from importlib import resources
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.errors import require
from paratune.reports.document import (
    STRONG,
    Listing,
    MarkedText,
    Notice,
    Part,
    Remarks,
    ReportDocument,
    StatementBox,
    signed,
)
from paratune.reports.figures.canvas import Drawing
from paratune.reports.tables.table import Table

_MAX_LINES, _MAX_LISTED_LINES = 40, 300  # lines of a table, and of a listing; index.html has all of them
_ROOM = 7 * 72  # points: width of the text
_SIZES = (8.0, 7.0, 6.0, 5.5, 7.0)
"""Letters of tables, in points: the first in which a table fits, or the last, in which a wider one is divided."""
_LETTER = 0.66  # width of a letter of DejaVu Sans by its size: the mean of digits and small letters, rounded up
_TEXT_WIDTH, _LEAST_TEXT = 24, 12
"""Letters of a cell of text from which it may be broken, beside numbers and beside other texts."""


def document_pdf(document: ReportDocument) -> bytes:
    """Return a report as PDF; equal contents give equal bytes.

    Raises:
        MissingDependency: typst or matplotlib, whose fonts are used, is not installed.
    """
    typst = require("typst", extra="plots")
    matplotlib = require("matplotlib", extra="plots")
    sections = [
        {**vars(section), "parts": [_part(part, section.heading) for part in section.parts]}
        for section in document.sections
    ]
    notices = [_part(notice, "") for notice in document.notices]
    contents = {"title": document.title, "lead": document.lead, "parts": notices, "sections": sections}
    template = resources.files("paratune.reports.pdf").joinpath("template.typ").read_bytes()
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    # Only fonts of matplotlib: with those of the machine, equal contents would give other bytes elsewhere.
    pdf = typst.compile(
        template,
        font_paths=[str(fonts)],
        ignore_system_fonts=True,
        sys_inputs={"contents": json.dumps(_plain(contents))},
    )
    return bytes(pdf)


def _plain(value: Any) -> Any:
    """Return JSON values whose texts have no control characters; an SVG has none."""
    if isinstance(value, dict):
        return {key: item if key == "svg" else _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return plain(value) if isinstance(value, str) else value


def _part(part: Part, heading: str) -> dict[str, Any]:
    """Return a part of a section as `template.typ` reads it; a title that equals the heading is left out."""
    title = "" if not isinstance(part, Table | Drawing) or part.title == heading else part.title
    match part:
        case Table():
            return _table(part, title)
        case Drawing(note=None):
            return {"kind": "figure", "title": title, "caption": part.caption, "svg": part.svg}
        case Drawing(note=note):
            return {"kind": "texts", "texts": [note]}
        case Listing():
            more = f"The first {_MAX_LISTED_LINES} of {len(part.lines):,} lines; index.html has all."
            note = more if len(part.lines) > _MAX_LISTED_LINES else ""
            return {"kind": "listing", "title": part.title, "lines": part.lines[:_MAX_LISTED_LINES], "note": note}
        case Notice():
            return {"kind": "notice", "text": part.text}
        case MarkedText():
            words = zip(part.words, part.strengths, strict=True)
            marks = (f" [{signed(word.effect)}]" if abs(strength) >= STRONG else "" for word, strength in words)
            texts = (f"{word.before and ' '}{word.text}{mark}" for word, mark in zip(part.words, marks, strict=True))
            return {"kind": "texts", "texts": [f"{part.title}: {''.join(texts)}"]}
        case Remarks():
            remarks = [text if isinstance(text, str) else ": ".join(text) for text in part.texts]
            return {"kind": "texts", "texts": remarks}
        case StatementBox():
            colours = {True: "better", False: "worse", None: "na"}
            rows = [
                (item.sign, colours[item.is_good], item.label, item.text, item.evidence) for item in part.statements
            ]
            return {"kind": "statements", "title": part.title, "rows": rows}
        case str():
            return {"kind": "texts", "texts": [part]}


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
    columns = [
        {"label": column.label, "is_text": column.is_text, "width": width * _LETTER * size}
        for column, width in zip(table.columns, letters, strict=True)
    ]
    return {
        "kind": "table", "title": title, "notes": table.notes, "size": size, "blocks": blocks, "columns": columns,
        "rows": [[(cell.shown, cell.colour) for cell in line] for line in table.lines], "marked": table.marked,
        "groups": {str(at): text for at, text in table.groups},
    }  # fmt: skip
