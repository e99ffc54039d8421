"""A table of a report in a terminal: as many columns beside each other as fit, the others below."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from paratune.base.text import plain
from paratune.report.tabular import Table

_GAP = 2


@dataclass(frozen=True)
class _Lines:
    """Lines of a table none of whose cells is broken: a Rich table looks for breaks in each, which takes far longer."""

    table: Table
    columns: Sequence[int]
    widths: Sequence[int]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bold = console.get_style("bold")
        marked, groups = set(self.table.marked), dict(self.table.groups)
        for position, row in enumerate(self.table.rows):
            if position in groups:
                yield Segment(plain(groups[position]), console.get_style("bold"))
                yield Segment.line()
            cells = (self._padded(plain(row[at]), at, wide) for at, wide in zip(self.columns, self.widths, strict=True))
            yield Segment((" " * _GAP).join(cells), bold if position in marked else None)
            yield Segment.line()

    def _padded(self, text: str, at: int, wide: int) -> str:
        room = " " * (wide - cell_len(text))
        return text + room if at < self.table.num_labels else room + text


def rich_table(table: Table, width: int) -> Iterator[RichTable | Text | _Lines]:
    """Yield title, columns and notes of a table; all texts of records are taken literally, never as markup.

    Args:
        table: The table.
        width: Cells of a line of the terminal.
    """
    if table.title:
        yield Text(plain(table.title), style="bold")
    for number, columns in enumerate(_blocks(table, width)):
        yield from [Text()] * (number > 0)
        yield from _rich(table, columns, width)
    for note in table.notes:
        yield Text(plain(note), style="dim")
    yield Text()


def _blocks(table: Table, width: int) -> list[list[int]]:
    """Return the columns that fit beside each other behind those that tell the lines apart, which all blocks have."""
    if table.is_text:
        return [list(range(len(table.header)))]
    labels = list(range(table.num_names))
    widths = [_width(table, at) for at in range(len(table.header))]
    room = width + _GAP - sum(widths[at] + _GAP for at in labels)
    blocks: list[list[int]] = []
    left = 0
    for at in range(len(labels), len(table.header)):
        if not blocks or widths[at] + _GAP > left:
            blocks.append([*labels])
            left = room
        blocks[-1].append(at)
        left -= widths[at] + _GAP
    return blocks


def _width(table: Table, at: int) -> int:
    """Return the width of a column whose header may be broken between words."""
    words = plain(table.header[at]).split()
    return max(cell_len(text) for text in (*words, *(plain(row[at]) for row in table.rows), ""))


def _rich(table: Table, columns: list[int], width: int) -> Iterator[RichTable | _Lines]:
    """Yield the names of some columns, and the lines below them."""
    # Rich takes from the widest columns first where a line is short, and would break figures rather than headers.
    broken = [_width(table, at) for at in columns]
    whole = [max(each, cell_len(plain(table.header[at]))) for each, at in zip(broken, columns, strict=True)]
    room = width - _GAP * (len(columns) - 1)
    fit = next((widths for widths in (whole, broken) if sum(widths) <= room), None)
    rich = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for number, at in enumerate(columns):
        rich.add_column(
            Text(plain(table.header[at])),
            justify="left" if at < table.num_labels else "right",
            overflow="fold",
            width=None if fit is None else fit[number],
        )
    if fit is not None:
        yield from (rich, _Lines(table, columns, fit))
        return
    groups = dict(table.groups)
    for position, row in enumerate(table.rows):
        if position in groups:
            rich.add_row(Text(plain(groups[position])), style="bold")
        rich.add_row(*(Text(plain(row[at])) for at in columns), style="bold" if position in table.marked else None)
    yield rich
