"""A report as PDF: Typst typesets `template.typ`, which receives the contents as JSON.

Texts are JSON strings, which Typst never reads as markup. Figures are vectors: the SVG files of the report.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from paratune.reports.figures.canvas import FOLDER, Drawing
from paratune.reports.tables.table import Row, Table, TableCell, make_table, with_varying_columns

MANY_RUNS = 200
"""Reports of so many runs have only the first lines of their tables; all lines would fill dozens of pages."""
_MAX_PARTS, _MAX_LINES = 12, 12
"""Tables and paragraphs of a section, and lines of a table, in a report of many runs."""
_MAX_TABLE_LINES, _MAX_LISTED_LINES, _MAX_TRANSPOSED = 200, 300, 12
_COLOURS = {True: "good", False: "bad", None: ""}


def can_typeset() -> bool:
    """Return whether the packages that a PDF needs are installed."""
    try:
        require("typst", extra="plots")
        require("matplotlib", extra="plots")
    except MissingDependency:
        return False
    return True


def document_pdf(document: ReportDocument, figures: Mapping[str, str | bytes], *, num_runs: int) -> bytes:
    """Return a report as PDF; equal contents give equal bytes.

    Args:
        document: The report.
        figures: The figures of the report as SVG, by the names of their files.
        num_runs: Runs of the report; `MANY_RUNS` or more shorten the tables.

    Raises:
        MissingDependency: typst or matplotlib, whose fonts are used, is not installed.
    """
    typst = require("typst", extra="plots")
    matplotlib = require("matplotlib", extra="plots")
    sections = [shorten_section(section) if num_runs >= MANY_RUNS else section for section in document.sections]
    contents = {
        "title": plain(document.title),
        "lead": [plain(text) for text in document.lead],
        "parts": [part for notice in document.notices for part in _notice(notice)],
        "sections": [
            {"heading": plain(section.heading), "parts": list(_parts(section, figures))} for section in sections
        ],
    }
    template = resources.files("paratune.reports.pdf").joinpath("template.typ").read_bytes()
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    # Only fonts of matplotlib: with those of the machine, equal contents would give other bytes elsewhere.
    pdf = typst.compile(
        template, font_paths=[str(fonts)], ignore_system_fonts=True, sys_inputs={"contents": json.dumps(contents)}
    )
    return bytes(pdf)


def shorten_section(section: ReportSection) -> ReportSection:
    """Return a section with its first tables and texts and the first lines of each; notes name the full files.

    All figures and listings stay.
    """
    kinds: dict[str, Callable[[Part], bool]] = {
        "tables": lambda part: isinstance(part, Table),
        "paragraphs": lambda part: isinstance(part, str),
    }
    parts: list[Part] = []
    counts = dict.fromkeys(kinds, 0)
    for part in section.parts:
        kind = next((name for name, is_kind in kinds.items() if is_kind(part)), None)
        if kind is not None:
            counts[kind] += 1
        if kind is None or counts[kind] <= _MAX_PARTS:
            parts.append(_first_lines(part, _MAX_LINES) if isinstance(part, Table) else part)
    for kind, count in counts.items():
        if count > _MAX_PARTS:
            parts.append(f"{_MAX_PARTS} of {count:,} {kind}; index.html has all of them.")
    return replace(section, parts=tuple(parts))


def _first_lines(table: Table, count: int) -> Table:
    """Return the first lines of a table, with a note that names the file with all of them."""
    if len(table.lines) <= count:
        return table
    note = f"{count} of {len(table.lines):,} lines; index.html and tables/{table.key}.csv have all of them."
    marked = tuple(at for at in table.marked if at < count)
    groups = tuple(group for group in table.groups if group[0] < count)
    return replace(table, lines=table.lines[:count], notes=(note, *table.notes), marked=marked, groups=groups)


def _parts(section: ReportSection, figures: Mapping[str, str | bytes]) -> Iterator[dict[str, Any]]:
    """Yield the parts of a section as `template.typ` reads them."""
    for part in section.parts:
        if isinstance(part, Table):
            yield _table(_first_lines(part, _MAX_TABLE_LINES), is_titled=part.title != section.heading)
        elif isinstance(part, Drawing):
            if part.note is not None:
                yield _text(part.note)
            elif (svg := figures.get(f"{FOLDER}/{part.key}.svg")) is not None:
                image = svg if isinstance(svg, str) else svg.decode()
                yield {"kind": "figure", "title": plain(part.title), "caption": plain(part.caption), "svg": image}
        elif isinstance(part, Listing):
            lines, note = part.lines[:_MAX_LISTED_LINES], ""
            if len(part.lines) > _MAX_LISTED_LINES:
                note = f"The first {_MAX_LISTED_LINES} of {len(part.lines):,} lines; index.html has all."
            yield {"kind": "listing", "title": plain(part.title), "lines": lines, "note": note}
        elif isinstance(part, Notice):
            yield from _notice(part)
        elif isinstance(part, MarkedText):
            yield _text(f"{part.title}: {part.plain_text}")
        elif isinstance(part, Remarks):
            yield from map(_text, part.texts)
        elif isinstance(part, StatementBox):
            yield _statements(part)
        elif isinstance(part, QuotedTexts):
            yield from (_text(f"{about}: {text}") for about, text in part.rows)
        else:
            yield _text(part)


def _notice(notice: Notice) -> Iterator[dict[str, Any]]:
    yield {"kind": "notice", "text": plain(notice.text), "items": [plain(item) for item in notice.items]}


def _statements(box: StatementBox) -> dict[str, Any]:
    rows = [
        [
            [statement.sign, _COLOURS[statement.is_good] or "muted"] if box.has_signs else ["", ""],
            plain(statement.label),
            plain(f"{statement.text} ({statement.evidence_name})" if statement.evidence else statement.text),
        ]
        for statement in box.statements
    ]
    return {"kind": "statements", "title": plain(box.title), "rows": rows}


def _text(text: str) -> dict[str, Any]:
    return {"kind": "text", "text": plain(text)}


def _table(table: Table, *, is_titled: bool) -> dict[str, Any]:
    """Return a table without the columns that are equal in all lines.

    With its transposition where few lines make that possible, for a page that is too narrow.
    """
    table = with_varying_columns(table)
    transposed = None
    if not table.is_text and not table.groups and 1 < len(table.lines) <= _MAX_TRANSPOSED:
        names = [", ".join(dict.fromkeys(cell.shown for cell in line[: table.num_names])) for line in table.lines]
        labels = [column.label for column in table.columns]
        header = (", ".join(labels[: table.num_names]), *names)
        rows: list[Row] = [
            [labels[at], *(line[at] for line in table.lines)] for at in range(table.num_names, len(labels))
        ]
        transposed = _grid(make_table("", "", header, rows), repeated=[0])
    return {
        "kind": "table",
        "title": plain(table.title) if is_titled else "",
        "notes": [plain(note) for note in table.notes],
        "grid": _grid(table, table.repeated),
        "transposed": transposed,
    }


def _grid(table: Table, repeated: Sequence[int]) -> dict[str, Any]:
    return {
        "header": [plain(column.label) for column in table.columns],
        "texts": [column.is_text for column in table.columns],
        "rows": [[_cell(cell) for cell in line] for line in table.lines],
        "repeated": list(repeated),
        "marked": list(table.marked),
        "groups": [[at, plain(text)] for at, text in table.groups],
    }


def _cell(cell: TableCell) -> list[str]:
    """Return text and colour of a cell."""
    return [plain(cell.shown), "muted" if cell.text == NOT_AVAILABLE or cell.is_open else _COLOURS[cell.better]]
