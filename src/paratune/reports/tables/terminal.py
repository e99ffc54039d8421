"""Tables in a terminal: a table that is too wide is divided into blocks of columns, one below the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from paratune.base.text import plain
from paratune.reports.tables.table import Table
from paratune.reports.text import shorten_all

_GAP = 2
_HEADING_WIDTH = 22
"""Longest word of a heading over numbers, such as the name of a run; at 80 columns two runs fit side by side."""


@dataclass(frozen=True)
class TerminalParts:
    """Tables and texts that `rich.console.Console.print` prints; texts of records literally, never as markup."""

    parts: Sequence[Table | Text | Padding]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, part in enumerate(self.parts):
            is_table = isinstance(part, Table)
            yield from [Text()] * (is_table and number > 0 and isinstance(self.parts[number - 1], Table))
            yield from rich_table(part, options.max_width) if isinstance(part, Table) else [part]


def rich_table(table: Table, width: int) -> Iterator[RichTable | Text]:
    """Yield title, columns and notes of a table for a terminal of this width; texts of records appear literally."""
    table = _with_short_headings(table)
    if table.title:
        yield Text(plain(table.title), style="bold")
    blocks = _blocks(table, width)
    for number, columns in enumerate(blocks):
        yield from [Text()] * (number > 0)
        yield _block(_known_lines(table, columns) if len(blocks) > 1 else table, columns, width)
    for note in table.notes:
        yield Text(plain(note), style="dim")


def _with_short_headings(table: Table) -> Table:
    """Return the table with shortened words in the headings over numbers, where a word is too long."""
    numeric = table.columns[table.num_labels :]
    headings = [plain(column.label).split(" ") for column in numeric]
    long = list(dict.fromkeys(word for words in headings for word in words if cell_len(word) > _HEADING_WIDTH))
    short = dict(zip(long, shorten_all(long, _HEADING_WIDTH), strict=True))
    labels = [" ".join(short.get(word, word) for word in words) for words in headings]
    columns = (replace(column, label=label) for column, label in zip(numeric, labels, strict=True))
    return replace(table, columns=(*table.columns[: table.num_labels], *columns))


def _blocks(table: Table, width: int) -> list[list[int]]:
    """Return the columns of each block; each block starts with the columns that identify the lines."""
    if table.is_text:
        return [list(range(len(table.columns)))]
    repeated = list(table.repeated)
    widths = [_least_width(table, at) for at in range(len(table.columns))]
    space = width + _GAP - sum(widths[at] + _GAP for at in repeated)
    blocks: list[list[int]] = []
    left = 0
    for at in (at for at in range(len(table.columns)) if at not in repeated):
        if not blocks or widths[at] + _GAP > left:
            blocks.append([*repeated])
            left = space
        blocks[-1].append(at)
        left -= widths[at] + _GAP
    return blocks or [repeated]


def _known_lines(table: Table, columns: Sequence[int]) -> Table:
    """Return the lines in which a cell of the columns is known, besides those that each block repeats."""
    shown = [at for at in columns if at not in table.repeated]
    known = [at for at, line in enumerate(table.lines) if any(line[at].is_known and line[at].text for at in shown)]
    marked = tuple(new for new, old in enumerate(known) if old in table.marked)
    return replace(table, lines=tuple(table.lines[at] for at in known), marked=marked)


def _least_width(table: Table, at: int) -> int:
    """Return the width of a column whose heading may be wrapped between words."""
    words = plain(table.header[at]).split()
    return max(cell_len(text) for text in (*words, *(plain(row[at]) for row in table.rows), ""))


def _block(table: Table, columns: list[int], width: int) -> RichTable:
    """Return headings and lines of some columns."""
    # Rich narrows the widest columns first when space is short, and would wrap numbers before headings.
    wrapped = [_least_width(table, at) for at in columns]
    whole = [max(least, cell_len(plain(table.header[at]))) for least, at in zip(wrapped, columns, strict=True)]
    space = width - _GAP * (len(columns) - 1)
    widths = next((widths for widths in (whole, wrapped) if sum(widths) <= space), [None] * len(columns))
    rich = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for at, fixed in zip(columns, widths, strict=True):
        justify: JustifyMethod = "left" if at < table.num_labels else "right"
        rich.add_column(Text(plain(table.header[at])), justify=justify, overflow="fold", width=fixed)
    for position, row in enumerate(table.rows):
        rich.add_row(*(Text(plain(row[at])) for at in columns), style="bold" if position in table.marked else None)
    return rich
