"""A confusion matrix in a terminal, in the fullest form that its width has room for."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from paratune.base.text import plain
from paratune.base.units import format_number, format_share

_GAP = 2
_LEAST_NAME = 12
"""Cells of a terminal that a name needs to be known by, if it is longer."""
_MOST_CONFUSIONS = 20


def confusion_view(names: Sequence[str], counts: Sequence[Sequence[int]], width: int) -> Group:
    """Return the matrix with names on its columns, or with numbers, or else its commonest confusions.

    Args:
        names: Of the classes, in the order of their ids.
        counts: Rows of each true class by predicted class.
        width: Cells of a line of the terminal.
    """
    shown = [plain(name) for name in names]
    longest = max(map(cell_len, shown))
    count_width = max(len(str(count)) for row in counts for count in row)
    if longest + sum(_GAP + max(cell_len(name), count_width) for name in shown) <= width:
        return _matrix("rows: true class, columns: predicted", shown, shown, counts)
    ids = [str(number) for number in range(len(names))]
    room = width - len(ids) * (_GAP + max(count_width, len(ids[-1]))) - len(ids[-1]) - 1
    if room >= min(longest, _LEAST_NAME):
        firsts = [f"{number:>{len(ids[-1])}} {_cut(name, room)}" for number, name in zip(ids, shown, strict=True)]
        return _matrix("rows: true class, columns: predicted, by its number", firsts, ids, counts)
    return _commonest(shown, counts, width)


def _matrix(title: str, firsts: Sequence[str], heads: Sequence[str], counts: Sequence[Sequence[int]]) -> Group:
    table = _table()
    table.add_column("", no_wrap=True)
    for head in heads:
        table.add_column(Text(head), justify="right", no_wrap=True)
    for first, row in zip(firsts, counts, strict=True):
        table.add_row(Text(first), *map(str, row))
    return _titled(title, table)


def _commonest(names: Sequence[str], counts: Sequence[Sequence[int]], width: int) -> Group:
    """Return which class was most often taken for which, with its share of the true class."""
    pairs = [(true, taken) for true in range(len(names)) for taken in range(len(names)) if true != taken]
    confused = sorted((pair for pair in pairs if counts[pair[0]][pair[1]]), key=lambda at: -counts[at[0]][at[1]])
    first = confused[:_MOST_CONFUSIONS]
    title = f"{len(first)} of {len(confused)} kinds of confusion among {len(names)} classes; --json prints the matrix"
    table = _table()
    room = max(_LEAST_NAME, (width - 24) // 2)
    for head, justify in (("true class", "left"), ("predicted", "left"), ("rows", "right"), ("share", "right")):
        table.add_column(head, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for true, taken in first:
        count = counts[true][taken]
        share = format_share(count / sum(counts[true]))
        table.add_row(Text(_cut(names[true], room)), Text(_cut(names[taken], room)), format_number(count), share)
    return _titled(title, table)


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))


def _titled(title: str, table: Table) -> Group:
    # A title of the table itself would be broken at the width of the table.
    return Group(Text(title, style="italic"), table)


def _cut(name: str, room: int) -> str:
    text = Text(name)
    text.truncate(room, overflow="ellipsis")
    return text.plain
