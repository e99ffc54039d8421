"""`Table`: columns and lines of cells, each cell with its text, its value and the runs that it was computed from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from paratune.base.units import NOT_AVAILABLE, format_as

CHOSEN = "* "  # prefix of the name of a chosen line


@dataclass(frozen=True)
class Column:
    """A column of a table: names if `is_text`, else numbers."""

    label: str  # heading for readers, with the unit
    key: str = ""  # name in CSV and JSON, with the unit last; the label when empty
    is_text: bool = False

    @property
    def name(self) -> str:
        return self.key or self.label


@dataclass(frozen=True)
class TableCell:
    """A cell of a table."""

    text: str
    value: Any = None  # unrounded, in the unit of the column's key; None: unknown, or only text
    runs: tuple[str, ...] = ()  # names of the runs that the value was computed from
    source: str = ""  # fields of the run records, and the computation
    marks: tuple[str, ...] = ()  # letters of the notes below the table that apply to this cell
    deviation: float | None = None  # sample standard deviation over at least two runs
    change_percent: float | None = None  # against the value of the baseline
    better: bool | None = None  # whether a change is an improvement; None: cannot tell
    interval: tuple[float, float] | None = None  # confidence interval of the value
    share: float | None = None  # part of its row, 0 to 1: pages shade the cell by it
    link: str = ""  # file beside the page to which the first cell of a line leads

    @property
    def is_known(self) -> bool:
        """Whether the cell has a value, or a text other than n/a."""
        return self.value is not None or self.text != NOT_AVAILABLE

    @property
    def colour(self) -> str:
        """Why the cell has a colour: "better", "worse", or "na" if it is unknown or its change is undecided."""
        if not self.is_known or (self.change_percent is not None and self.better is None):
            return "na"
        return {True: "better", False: "worse", None: ""}[self.better]

    @property
    def shown(self) -> str:
        """The text with its marks, for formats without superscripts."""
        return f"{self.text} [{','.join(self.marks)}]" if self.marks else self.text

    def as_dict(self) -> dict[str, Any]:
        """Return the text and the known fields, as in report.json."""
        fields = {
            "value": self.value, "standard_deviation": self.deviation, "change_percent": self.change_percent,
            "better": self.better, "interval": self.interval and list(self.interval), "runs": list(self.runs),
            "source": self.source, "marks": list(self.marks),
        }  # fmt: skip
        return {"text": self.text, **{key: value for key, value in fields.items() if value not in (None, [], "")}}


@dataclass(frozen=True)
class Table:
    """A table."""

    key: str  # unique in a report: the id in a page and the name of the files
    title: str
    columns: tuple[Column, ...]
    lines: tuple[tuple[TableCell, ...], ...]
    notes: tuple[str, ...] = ()
    marked: tuple[int, ...] = ()  # positions of highlighted lines
    groups: tuple[tuple[int, str], ...] = ()  # headings: position of the first line of each group, and text
    is_closed: bool = False  # a page shows the lines only on request

    @property
    def is_text(self) -> bool:
        """Whether no column contains numbers."""
        return self.num_labels == len(self.columns)

    @property
    def header(self) -> tuple[str, ...]:
        return tuple(column.label for column in self.columns)

    @cached_property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The texts of all cells, with their marks."""
        return tuple(tuple(cell.shown for cell in line) for line in self.lines)

    @property
    def num_labels(self) -> int:
        """Number of leading columns that contain names."""
        return next((at for at, column in enumerate(self.columns) if not column.is_text), len(self.columns))

    @cached_property
    def num_names(self) -> int:
        """Number of leading columns that together identify a line: each block of a divided table repeats them."""
        most = max(1, self.num_labels - self.is_text)
        for count in range(1, most):
            names = {tuple(cell.text.removeprefix(CHOSEN) for cell in line[:count]) for line in self.lines}
            if len(names) == len(self.lines):
                return count
        return most

    def blocks(self, widths: Sequence[float], room: float) -> list[list[int]]:
        """Return the columns of blocks that fit a room, as far as they can."""
        names = [*range(self.num_names)]
        if sum(widths) <= room:
            return [[*range(len(widths))]]
        blocks: list[list[int]] = []
        left = 0.0
        for at in range(self.num_names, len(widths)):
            if not blocks or widths[at] > left:
                blocks.append([*names])
                left = room - sum(widths[: self.num_names])
            blocks[-1].append(at)
            left -= widths[at]
        return blocks or [names]

    def first(self, most: int) -> "Table":
        """Return the first lines, with a note where the others are."""
        if len(self.lines) <= most:
            return self
        note = f"{most} of {len(self.lines):,} lines; index.html and report.json have all of them."
        groups = tuple(group for group in self.groups if group[0] < most)
        return replace(self, lines=self.lines[:most], groups=groups, notes=(note, *self.notes))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as in report.json: a line is a mapping from column names to cells."""
        names = [column.name for column in self.columns]
        return {
            "key": self.key,
            "title": self.title,
            "columns": [{"name": column.name, "label": column.label} for column in self.columns],
            "rows": [{name: cell.as_dict() for name, cell in zip(names, line, strict=True)} for line in self.lines],
            "notes": list(self.notes),
        }

    def varying(self) -> "Table":
        """Return a table of figures without the columns that tell nothing new; notes have their values.

        These are columns that are equal in all lines, and measures that are another one in all lines. The columns that
        identify the lines, those with marks, and at least one other stay.
        """
        if self.is_text or len(self.lines) < 2:
            return self
        texts = list(zip(*self.rows, strict=True))
        kept: list[int] = []
        same, notes = [], []
        for at, column in enumerate(self.columns):
            twin = next((old for old in kept if texts[old] == texts[at] and self.columns[old].key), None)
            if at >= self.num_names and not any(line[at].marks for line in self.lines):
                if len(set(texts[at])) == 1:
                    same += [f"{column.label}: {texts[at][0]}"] if self.lines[0][at].is_known else []
                    continue
                if twin is not None and column.key and not column.is_text:
                    notes.append(f"{column.label} is {self.columns[twin].label} in all lines.")
                    continue
            kept.append(at)
        if len(kept) in (len(self.columns), self.num_names):
            return self
        notes = [f"In all lines: {'; '.join(same)}."] * bool(same) + notes
        lines = tuple(tuple(line[at] for at in kept) for line in self.lines)
        return replace(self, columns=tuple(self.columns[at] for at in kept), lines=lines, notes=(*notes, *self.notes))


Heading = str | tuple[str, str] | Column  # a column: its label, or its label and key, or itself
Row = Sequence[str | TableCell]  # the cells of a line, or their texts


def make_table(
    key: str, title: str, header: Iterable[Heading], rows: Iterable[Row], num_labels: int = 1,
    notes: Iterable[str] = (), marked: Iterable[int] = (), *, groups: Iterable[tuple[int, str]] = (),
    is_closed: bool = False,
) -> Table:  # fmt: skip
    """Return a table from short forms of its columns and cells; the first `num_labels` columns contain names."""
    columns: list[Column] = []
    for at, heading in enumerate(header):
        label, name = (heading, "") if isinstance(heading, str | Column) else heading
        columns.append(label if isinstance(label, Column) else Column(label, name, is_text=at < num_labels))
    lines = tuple(tuple(TableCell(cell) if isinstance(cell, str) else cell for cell in row) for row in rows)
    return Table(key, title, tuple(columns), lines, tuple(notes), tuple(marked), tuple(groups), is_closed)


def number_cell(value: float | None, form: str) -> TableCell:
    """Return the cell of a number with its text in a format such as ".2f"; n/a for None."""
    return TableCell(format_as(value, form), value)
