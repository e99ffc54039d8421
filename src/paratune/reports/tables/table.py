"""`Table`: columns and lines of cells, each cell with its text, its value and the runs that it was computed from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from paratune.base.units import NOT_AVAILABLE, format_as

CHOSEN = "* "
"""Prefix of the name of a chosen line."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    label: str
    """Heading for readers, with the unit."""
    key: str = ""
    """Name in CSV and JSON, with the unit last; the label when empty."""
    is_text: bool = False
    """Whether the column contains names instead of numbers."""
    is_repeated: bool = False
    """Whether each block of a divided table repeats the column, as it repeats the names of the lines."""

    @property
    def name(self) -> str:
        return self.key or self.label


@dataclass(frozen=True)
class TableCell:
    """A cell of a table."""

    text: str
    value: Any = None
    """Unrounded value in the unit of the column's key; None when it is unknown or the cell has only text."""
    runs: tuple[str, ...] = ()
    """Names of the runs that the value was computed from."""
    source: str = ""
    """Fields of the run records that the value comes from, and the computation."""
    marks: tuple[str, ...] = ()
    """Letters of the notes below the table that apply to this cell."""
    deviation: float | None = None
    """Sample standard deviation over the runs, in the unit of the value; None for fewer than two runs."""
    change_percent: float | None = None
    """Change against the value of the baseline."""
    better: bool | None = None
    """Whether a change is an improvement; None: cannot tell."""
    interval: tuple[float, float] | None = None
    """Limits of the confidence interval of the value."""
    share: float | None = None
    """Part of its row, 0 to 1: pages shade the cell by it."""
    link: str = ""
    """File beside the page to which the first cell of a line leads in a page."""

    @property
    def is_known(self) -> bool:
        """Whether the cell has a value, or a text other than n/a."""
        return self.value is not None or self.text != NOT_AVAILABLE

    @property
    def is_open(self) -> bool:
        """Whether the cell has a change for which the verdict is "cannot tell": formats with colours show it grey."""
        return self.change_percent is not None and self.better is None

    @property
    def shown(self) -> str:
        """The text with its marks, for formats without superscripts."""
        return f"{self.text} [{','.join(self.marks)}]" if self.marks else self.text

    @property
    def hover(self) -> str:
        """Runs and source, for the tooltip of the cell."""
        names = ", ".join(self.runs[:8]) + (f" and {len(self.runs) - 8} more" if len(self.runs) > 8 else "")
        return ": ".join(filter(None, [names, self.source]))


@dataclass(frozen=True)
class Table:
    """A table."""

    key: str
    """Unique in a report: the id in a page and the name of the files."""
    title: str
    columns: tuple[Column, ...]
    lines: tuple[tuple[TableCell, ...], ...]
    notes: tuple[str, ...] = ()
    marked: tuple[int, ...] = ()
    """Positions of highlighted lines."""
    groups: tuple[tuple[int, str], ...] = ()
    """Headings between lines: position of the first line of each group, and heading."""
    is_closed: bool = False
    """Whether a page shows the lines only on request."""

    @property
    def is_text(self) -> bool:
        """Whether no column contains numbers."""
        return self.num_labels == len(self.columns)

    @property
    def is_sortable(self) -> bool:
        """Whether a page lets readers sort the lines: there are several, without groups."""
        return len(self.lines) > 1 and not self.groups and not self.is_text

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
        numeric = [index for index, column in enumerate(self.columns) if not column.is_text]
        return numeric[0] if numeric else len(self.columns)

    @property
    def repeated(self) -> tuple[int, ...]:
        """Columns that each block of a divided table repeats: those that identify a line, and those marked so."""
        extra = (at for at, column in enumerate(self.columns) if column.is_repeated)
        return tuple(dict.fromkeys([*range(self.num_names), *extra]))

    @property
    def num_names(self) -> int:
        """Number of leading columns that together identify a line."""
        most = max(1, self.num_labels - self.is_text)
        for count in range(1, most):
            names = {tuple(cell.text.removeprefix(CHOSEN) for cell in line[:count]) for line in self.lines}
            if len(names) == len(self.lines):
                return count
        return most

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as in report.json: a line is a mapping from column names to cells."""
        names = [column.name for column in self.columns]
        return {
            "key": self.key,
            "title": self.title,
            "columns": [{"name": column.name, "label": column.label} for column in self.columns],
            "rows": [{name: _cell_dict(cell) for name, cell in zip(names, line, strict=True)} for line in self.lines],
            "notes": list(self.notes),
        }


def _cell_dict(cell: TableCell) -> dict[str, Any]:
    """Return the fields of a cell that are known."""
    fields = {
        "value": cell.value,
        "standard_deviation": cell.deviation,
        "change_percent": cell.change_percent,
        "better": cell.better,
        "interval": None if cell.interval is None else list(cell.interval),
        "runs": list(cell.runs),
        "source": cell.source,
        "marks": list(cell.marks),
    }
    return {"text": cell.text, **{key: value for key, value in fields.items() if value not in (None, [], "")}}


def with_varying_columns(table: Table) -> Table:
    """Return a table of figures without the columns that say nothing new; notes have their values.

    These are columns that are equal in all lines, and measures that are another one in all lines. The columns that
    identify the lines, those with marks, and at least one other stay.
    """
    if table.is_text or len(table.lines) < 2:
        return table
    columns = [tuple(line[at] for line in table.lines) for at in range(len(table.columns))]
    kept: list[int] = []
    same, repeated = [], []
    for at, cells in enumerate(columns):
        column, texts = table.columns[at], [cell.shown for cell in cells]
        is_measure = bool(column.key) and not column.is_text
        first = next((old for old in kept if [cell.shown for cell in columns[old]] == texts), at)
        if at < table.num_names or any(cell.marks for cell in cells):
            kept.append(at)
        elif len(set(texts)) == 1:
            same += [f"{column.label}: {texts[0]}"] if cells[0].is_known else []
        elif first < at and is_measure and table.columns[first].key:
            repeated.append(f"{column.label} is {table.columns[first].label} in all lines.")
        else:
            kept.append(at)
    if len(kept) in (len(columns), table.num_names):
        return table
    notes = [f"In all lines: {'; '.join(same)}."] if same else []
    return replace(
        table,
        columns=tuple(table.columns[at] for at in kept),
        lines=tuple(tuple(line[at] for at in kept) for line in table.lines),
        notes=(*notes, *repeated, *table.notes),
    )


Heading = str | tuple[str, str] | Column
"""A column: its label, or its label and key, or itself."""
Row = Sequence[str | TableCell]
"""The cells of a line, or their texts."""


def facts_table(
    key: str, title: str, facts: Mapping[str, Mapping[str, str]], runs: Mapping[str, tuple[str, ...]]
) -> Table:
    """Return a table with a line for each fact and a column for each entry of `facts`, all from run.json.

    `facts` has the facts of each column by their names, and `runs` the names of its runs, by label of the column.
    """
    names = dict.fromkeys(fact for column in facts.values() for fact in column)
    rows: list[Row] = [
        [fact, *(TableCell(facts[label].get(fact, NOT_AVAILABLE), None, runs[label], "run.json") for label in facts)]
        for fact in names
    ]
    return make_table(key, title, [("", "fact"), *facts], rows, 1 + len(facts))


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
