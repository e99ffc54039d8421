"""The one type of table that every format writes: cells with their text, their value, and the runs they came from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

CHOSEN = "* "
"""Stands before the name of a line that is chosen."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    label: str
    """As readers see it, with the unit."""
    key: str = ""
    """In CSV and JSON, the unit last; the label when empty."""
    is_text: bool = False
    """Whether it holds names rather than figures."""

    @property
    def name(self) -> str:
        return self.key or self.label


@dataclass(frozen=True)
class TableCell:
    """A cell of a table."""

    text: str
    value: Any = None
    """Unrounded, in the unit of the column's key; None where it is unknown, or the cell is text alone."""
    runs: tuple[str, ...] = ()
    """Names of the runs that it was computed from."""
    source: str = ""
    """Where in their records it stands, and how it was computed."""
    marks: tuple[str, ...] = ()
    """Letters of notes below the table that hold for this cell."""
    deviation: float | None = None
    """Sample standard deviation over the runs, in the unit of the value; None of fewer than two."""
    change_percent: float | None = None
    """Of the value against that of the baseline."""
    better: bool | None = None
    """Of a change: whether it is to the better side."""
    interval: tuple[float, float] | None = None
    """Of the value: the limits of its confidence interval."""

    @property
    def shown(self) -> str:
        """The text with its marks, for formats without raised letters."""
        return f"{self.text} [{','.join(self.marks)}]" if self.marks else self.text

    @property
    def hover(self) -> str:
        """What a reader sees who points at the cell: runs and source."""
        some = ", ".join(self.runs[:8]) + (f" and {len(self.runs) - 8} more" if len(self.runs) > 8 else "")
        return ": ".join(filter(None, [some, self.source]))


@dataclass(frozen=True)
class Table:
    """A table."""

    key: str
    """Unique in a report: the id in a page, the name of a file."""
    title: str
    columns: tuple[Column, ...]
    lines: tuple[tuple[TableCell, ...], ...]
    notes: tuple[str, ...] = ()
    marked: tuple[int, ...] = ()
    """Positions of lines to set off."""
    groups: tuple[tuple[int, str], ...] = ()
    """Headings between lines: the position of the first line of each, and its text."""

    @property
    def is_text(self) -> bool:
        """Whether no column holds figures."""
        return self.num_labels == len(self.columns)

    @property
    def is_sortable(self) -> bool:
        """Whether an order of the lines by a column says something: there are several, of one kind."""
        return len(self.lines) > 1 and not self.groups and not self.is_text

    @property
    def header(self) -> tuple[str, ...]:
        return tuple(column.label for column in self.columns)

    @cached_property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The texts of all cells, with their marks."""
        return tuple(tuple(entry.shown for entry in line) for line in self.lines)

    @property
    def num_labels(self) -> int:
        """First columns, which are names; figures stand behind them."""
        figures = [at for at, column in enumerate(self.columns) if not column.is_text]
        return figures[0] if figures else len(self.columns)

    @property
    def num_names(self) -> int:
        """First columns that stand beside every block of a table that is too wide: as many as tell the lines apart."""
        most = max(1, self.num_labels - self.is_text)
        for count in range(1, most):
            # The star of what is chosen tells no line from another.
            names = {tuple(entry.text.removeprefix(CHOSEN) for entry in line[:count]) for line in self.lines}
            if len(names) == len(self.lines):
                return count
        return most

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, as in report.json: a line is a mapping of the columns' names to cells."""
        names = [column.name for column in self.columns]
        return {
            "key": self.key,
            "title": self.title,
            "columns": [{"name": column.name, "label": column.label} for column in self.columns],
            "rows": [
                {name: _entry_dict(entry) for name, entry in zip(names, line, strict=True)} for line in self.lines
            ],
            "notes": list(self.notes),
        }


def _entry_dict(entry: TableCell) -> dict[str, Any]:
    """Return a cell with what is known of it."""
    parts = {
        "value": entry.value,
        "standard_deviation": entry.deviation,
        "change_percent": entry.change_percent,
        "better": entry.better,
        "interval": None if entry.interval is None else list(entry.interval),
        "runs": list(entry.runs),
        "source": entry.source,
        "marks": list(entry.marks),
    }
    return {"text": entry.text, **{key: value for key, value in parts.items() if value not in (None, [], "")}}


def table_of_texts(
    key: str, title: str, header: Sequence[str], rows: Iterable[Sequence[str | TableCell]], num_labels: int,
    notes: Iterable[str] = (), marked: Iterable[int] = (),
) -> Table:  # fmt: skip
    """Return a table whose cells are mostly texts alone.

    Args:
        key: Its key.
        title: Its title.
        header: Labels of the columns.
        rows: Cells, or the texts of them.
        num_labels: First columns, which hold names.
        notes: Below it.
        marked: Positions of lines to set off.
    """
    columns = tuple(Column(label, is_text=at < num_labels) for at, label in enumerate(header))
    lines = tuple(tuple(TableCell(cell) if isinstance(cell, str) else cell for cell in row) for row in rows)
    return Table(key, title, columns, lines, tuple(notes), tuple(marked))
