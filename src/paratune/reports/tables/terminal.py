"""Tables in a terminal: a table that is too wide is divided into blocks of columns, one below the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
            if isinstance(part, Table):
                yield from [Text()] * (number > 0 and isinstance(self.parts[number - 1], Table))
                yield from rich_table(part, options.max_width)
            else:
                yield part


def rich_table(table: Table, width: int) -> Iterator[RichTable | Text]:
    """Yield title, columns and notes of a table for a terminal of this width; texts of records appear literally."""
    headings = [plain(label).split() for label in table.header]
    words = {word for label in headings[table.num_labels :] for word in label if cell_len(word) > _HEADING_WIDTH}
    short = dict(zip(words, shorten_all([*words], _HEADING_WIDTH), strict=True))
    headings = [[short.get(word, word) for word in label] for label in headings]
    # Rich narrows the widest columns first when space is short, and would wrap numbers before headings.
    widths = [
        max(cell_len(text) for text in (*label, *(plain(row[at]) for row in table.rows), ""))
        for at, label in enumerate(headings)
    ]
    if table.title:
        yield Text(plain(table.title), style="bold")
    spaced = [least + _GAP for least in widths]
    blocks = [list(range(len(widths)))] if table.is_text else table.blocks(spaced, width + _GAP)
    for number, columns in enumerate(blocks):
        yield from [Text()] * (number > 0)
        whole = [max(widths[at], cell_len(" ".join(headings[at]))) for at in columns]
        space = width - _GAP * (len(columns) - 1)
        wrapped = [widths[at] for at in columns]
        fixed = next((fitting for fitting in (whole, wrapped) if sum(fitting) <= space), [None] * len(columns))
        rich = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for at, least in zip(columns, fixed, strict=True):
            side: JustifyMethod = "left" if at < table.num_labels else "right"
            rich.add_column(Text(" ".join(headings[at])), justify=side, overflow="fold", width=least)
        own = [at for at in columns if at >= table.num_names]
        for position, line in enumerate(table.lines):
            # A block leaves out the lines of which it has no value.
            if len(blocks) == 1 or any(line[at].is_known and line[at].text for at in own):
                style = "bold" if position in table.marked else None
                rich.add_row(*(Text(plain(line[at].shown)) for at in columns), style=style)
        yield rich
    for note in table.notes:
        yield Text(plain(note), style="dim")
