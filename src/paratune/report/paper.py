"""A report as a PDF: A4 sheets with its texts, tables and figures, drawn by matplotlib, so that no browser is needed.

Tables are broken between lines, their headings said again on the next sheet; those too wide fall into blocks of columns
beside the same labels. Figures are vectors. Lengths are in inches from the upper left corner.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paratune import __version__
from paratune.base.text import plain
from paratune.report import canvas
from paratune.report.canvas import Drawing, figure_style, place_drawing
from paratune.report.letters import Letters, broken, put_letters, width
from paratune.report.listing import Listing
from paratune.report.paper_tables import Grid, grids, note_of_rest
from paratune.report.tabular import Table

WIDTH, HEIGHT = 8.27, 11.69
ROOM = canvas.WIDTH
LEFT, TOP, BOTTOM = (WIDTH - ROOM) / 2, 0.8, 0.85
_BODY, _SMALL, _HEADING, _TITLE = 9.5, 8.0, 13.0, 19.0
_CODE, _MAX_LISTED = 7.0, 300
"""Letters of listings in points, and the most lines of one."""
_WHOLE = 5.0
_MANY_RUNS = 200
"""From so many runs on, tables and lists are cut: they would be dozens of sheets, and take most of the time."""
_MAX_PARTS, _MAX_LINES = 12, 12
"""Tables of a section, and its paragraphs; lines of a table."""
_MUTED, _RULE = "#555555", "#999999"


@dataclass(frozen=True)
class PaperSection:
    """A part of the report under its heading; a text is a paragraph."""

    heading: str
    parts: Sequence[str | Table | Drawing | Listing]


def is_long(num_runs: int) -> bool:
    """Return whether a report of so many runs has the beginning of its tables on paper."""
    return num_runs >= _MANY_RUNS


def shortened(section: PaperSection) -> PaperSection:
    """Return the first tables and paragraphs of a section, the first lines of each, and notes of where the others are.

    All its figures stay.
    """
    kept: list[str | Table | Drawing | Listing] = []
    num_tables = num_texts = 0
    for part in section.parts:
        num_tables += isinstance(part, Table)
        num_texts += isinstance(part, str)
        if isinstance(part, Drawing | Listing) or (num_tables if isinstance(part, Table) else num_texts) <= _MAX_PARTS:
            kept.append(_cut(part) if isinstance(part, Table) else part)
    for number, word in ((num_tables, "tables"), (num_texts, "paragraphs")):
        if number > _MAX_PARTS:
            kept.append(f"{_MAX_PARTS} of {number:,} {word}; index.html has all of them.")
    return PaperSection(section.heading, kept)


def _cut(table: Table) -> Table:
    """Return the first lines of a table, with a note of where the others are."""
    if len(table.lines) <= _MAX_LINES:
        return table
    note = f"{_MAX_LINES} of {len(table.lines):,} lines; index.html and tables/{table.key}.csv have all of them."
    marked = tuple(at for at in table.marked if at < _MAX_LINES)
    groups = tuple(each for each in table.groups if each[0] < _MAX_LINES)
    return replace(table, lines=table.lines[:_MAX_LINES], notes=(note, *table.notes), marked=marked, groups=groups)


def to_pdf(title: str, lead: Sequence[str], sections: Sequence[PaperSection]) -> bytes:
    """Return a report as a PDF; the same to the byte for the same contents.

    Args:
        title: Of the document.
        lead: Paragraphs below the title: what was trained, and verdicts.
        sections: What follows.
    """
    with figure_style({"pdf.fonttype": 3}):
        sheets = _Sheets()
        sheets.paragraph(title, _TITLE, is_bold=True)
        for text in lead:
            sheets.paragraph(text, _BODY)
        for section in sections:
            sheets.section(section)
        return sheets.written(title)


class _Sheets:
    """The sheets so far, and how far down the last one is filled."""

    def __init__(self) -> None:
        self._figures: list[Any] = []
        self._letters: list[list[Letters]] = []
        self._new()

    def section(self, section: PaperSection) -> None:
        """Put a section below what is there."""
        self._space(0.28)
        # A heading does not stand alone at the foot of a sheet.
        self._keep(0.5 + (_need(section.parts[0]) if section.parts else 0.0))
        self.paragraph(section.heading, _HEADING, is_bold=True)
        for part in section.parts:
            if isinstance(part, Table):
                self._table(part, is_titled=part.title != section.heading)
            elif isinstance(part, Drawing):
                self._drawing(part)
            elif isinstance(part, Listing):
                self._listing(part)
            else:
                self.paragraph(part, _BODY)

    def paragraph(self, text: str, size: float, *, is_bold: bool = False, colour: str = "#000000") -> None:
        """Put a text below what is there."""
        for line in broken(plain(text), ROOM, size, is_bold=is_bold):
            self._keep(size / 72)
            self._y += 1.32 * size / 72
            self._letters[-1].append(Letters(line, LEFT, self._y, size, is_bold, colour))
        self._space(0.4 * size / 72)

    def _listing(self, listing: Listing) -> None:
        """Put a text below what is there, line by line, each as far from the edge as it is indented."""
        self._keep(0.6)
        self._space(0.06)
        self.paragraph(listing.title, _BODY, is_bold=True)
        for line in listing.lines[:_MAX_LISTED]:
            text = line.lstrip()
            indent = min(width("n", _CODE) * (len(line) - len(text)), ROOM / 2)
            for piece in broken(text, ROOM - indent, _CODE):
                self._keep(1.3 * _CODE / 72)
                self._y += 1.3 * _CODE / 72
                self._letters[-1].append(Letters(piece, LEFT + indent, self._y, _CODE))
        if len(listing.lines) > _MAX_LISTED:
            note = f"The first {_MAX_LISTED} of {len(listing.lines):,} lines; index.html has all."
            self.paragraph(note, _SMALL, colour=_MUTED)
        self._space(0.12)

    def _table(self, table: Table, *, is_titled: bool) -> None:
        blocks = grids(table, ROOM)
        for number, grid in enumerate(blocks):
            self._keep(_need_of_grid(grid))
            more = f" ({number + 1} of {len(blocks)})" if len(blocks) > 1 else ""
            if is_titled or more:
                self._space(0.06)
                self.paragraph(table.title + more, _BODY, is_bold=True)
            self._grid(grid)
        for note in (*table.notes, *note_of_rest(table, blocks)):
            self.paragraph(note, _SMALL, colour=_MUTED)
        self._space(0.1)

    def _grid(self, grid: Grid) -> None:
        """Put the lines of a table below each other, on as many sheets as they take, each with the headings on top."""
        self._head(grid)
        for line, height in enumerate(grid.heights):
            if self._y + height > HEIGHT - BOTTOM:
                self._rule(grid)
                self._new()
                self._head(grid)
            self._letters[-1] += grid.letters(line, LEFT, self._y)
            self._y += height
        self._rule(grid)
        self._space(0.08)

    def _head(self, grid: Grid) -> None:
        self._rule(grid)
        self._letters[-1] += grid.head(LEFT, self._y)
        self._y += grid.height_of_head
        self._rule(grid, thickness=0.5)

    def _rule(self, grid: Grid, thickness: float = 0.9) -> None:
        from matplotlib.lines import Line2D

        at = 1 - self._y / HEIGHT
        line = Line2D([LEFT / WIDTH, (LEFT + grid.width) / WIDTH], [at, at], color=_RULE, linewidth=thickness)
        line.set_in_layout(False)
        self._figures[-1].add_artist(line)

    def _drawing(self, drawing: Drawing) -> None:
        if drawing.note is not None:
            self.paragraph(drawing.note, _BODY)
            return
        height = _height_of(drawing)
        if height < drawing.full_height:
            drawing = replace(drawing, height=drawing.height - (drawing.full_height - height))
        self._keep(height + 1.0)
        self._space(0.06)
        self.paragraph(drawing.title, _BODY, is_bold=True)
        place_drawing(self._figures[-1], drawing, LEFT, HEIGHT - self._y - height)
        self._y += height
        self.paragraph(drawing.caption, _SMALL, colour=_MUTED)
        self._space(0.12)

    def _space(self, height: float) -> None:
        if self._y > TOP:
            self._y += height

    def _keep(self, height: float) -> None:
        """Begin another sheet where so much does not fit on this one."""
        if self._y + height > HEIGHT - BOTTOM and self._y > TOP:
            self._new()

    def _new(self) -> None:
        from matplotlib.figure import Figure

        self._figures.append(Figure(figsize=(WIDTH, HEIGHT)))
        self._letters.append([])
        self._y = TOP

    def written(self, title: str) -> bytes:
        """Return the file, with a line at the foot of each sheet."""
        from matplotlib.backends.backend_pdf import PdfPages

        file = io.BytesIO()
        facts = {"Title": plain(title), "Creator": f"paratune {__version__}", "CreationDate": None}
        with PdfPages(file, metadata=facts) as pdf:
            for number, (figure, letters) in enumerate(zip(self._figures, self._letters, strict=True), start=1):
                place, y = f"{number} / {len(self._figures)}", HEIGHT - 0.5
                name = broken(plain(title), ROOM - 1, _SMALL)[0]
                letters.append(Letters(name, LEFT, y, _SMALL, colour=_MUTED))
                letters.append(Letters(place, WIDTH - LEFT - width(place, _SMALL), y, _SMALL, colour=_MUTED))
                put_letters(figure, letters)
                pdf.savefig(figure)
        return file.getvalue()


def _need(part: str | Table | Drawing | Listing) -> float:
    """Return how much room the beginning of a part takes."""
    if isinstance(part, Table):
        return _need_of_grid(grids(part, ROOM)[0])
    return _height_of(part) + 1.0 if isinstance(part, Drawing) else 0.4


def _need_of_grid(grid: Grid) -> float:
    """Return how much of a table stays together: a short one whole, of a long one three lines."""
    lines = grid.heights if sum(grid.heights) < _WHOLE else grid.heights[:3]
    return grid.height_of_head + sum(lines) + 0.5


def _height_of(drawing: Drawing) -> float:
    """Return the height of a figure with its legend, a sheet with its heading, title and caption at most."""
    return min(drawing.full_height, HEIGHT - TOP - BOTTOM - 1.75)
