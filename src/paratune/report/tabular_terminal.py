"""A table of a report in a terminal: as many columns beside each other as fit, the others below."""

from collections.abc import Iterator, Sequence

from rich.table import Table as RichTable
from rich.text import Text

from paratune.report.tabular import Table
from paratune.text import plain

_GAP = 2


def rich_table(table: Table, width: int) -> Iterator[RichTable | Text]:
    """Yield title, columns and notes of a table; all texts of records are taken literally, never as markup.

    Args:
        table: The table.
        width: Cells of a line of the terminal.
    """
    if table.title:
        yield Text(plain(table.title), style="bold")
    for number, columns in enumerate(_blocks(table, width)):
        yield from [Text()] * (number > 0)
        yield _rich(table, columns, width)
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
    return max(len(text) for text in (*words, *(plain(row[at]) for row in table.rows), ""))


def _rich(table: Table, columns: list[int], width: int) -> RichTable:
    # Rich takes from the widest columns first where a line is short, and would break figures rather than headers.
    broken = [_width(table, at) for at in columns]
    whole = [max(each, len(plain(table.header[at]))) for each, at in zip(broken, columns, strict=True)]
    gaps = _GAP * (len(columns) - 1)
    widths: Sequence[int | None] = broken if sum(broken) + gaps <= width < sum(whole) + gaps else [None] * len(columns)
    rich = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for at, wide in zip(columns, widths, strict=True):
        rich.add_column(
            Text(plain(table.header[at])),
            justify="left" if at < table.num_labels else "right",
            overflow="fold",
            width=wide,
        )
    for position, row in enumerate(table.rows):
        rich.add_row(*(Text(plain(row[at])) for at in columns), style="bold" if position in table.marked else None)
    return rich
