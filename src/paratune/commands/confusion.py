"""A confusion matrix in a terminal, in the most complete form that fits its width."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from paratune.base.text import plain
from paratune.base.units import format_number, format_share
from paratune.records.confusion import Confusion

_GAP = 2
_MIN_NAME_WIDTH = 12
"""Minimum width in characters of a shortened name."""
_MAX_CONFUSIONS = 20


def confusion_view(names: Sequence[str], confusion: Confusion, width: int) -> Group:
    """Return the matrix with class names on its columns, or with numbers, or only the most frequent confusions.

    Args:
        names: Names of the classes.
        confusion: The matrix.
        width: Width of the terminal in characters.
    """
    shown = [plain(name) for name in names]
    if len(shown) > width:  # no column for each class; a matrix of many classes has too many cells to format
        return _most_frequent(shown, confusion, width)
    classes = range(len(shown))
    counts = [[confusion.counts.get((true, predicted), 0) for predicted in classes] for true in classes]
    longest = max(map(cell_len, shown))
    count_width = max(len(str(count)) for row in counts for count in row)
    if longest + sum(_GAP + max(cell_len(name), count_width) for name in shown) <= width:
        return _matrix("rows: true class, columns: predicted", shown, shown, counts)
    ids = [str(number) for number in range(len(names))]
    space = width - len(ids) * (_GAP + max(count_width, len(ids[-1]))) - len(ids[-1]) - 1
    if space >= min(longest, _MIN_NAME_WIDTH):
        firsts = [f"{number:>{len(ids[-1])}} {_cut(name, space)}" for number, name in zip(ids, shown, strict=True)]
        return _matrix("rows: true class, columns: predicted, by its number", firsts, ids, counts)
    return _most_frequent(shown, confusion, width)


def _matrix(title: str, firsts: Sequence[str], heads: Sequence[str], counts: Sequence[Sequence[int]]) -> Group:
    table = _table()
    table.add_column("", no_wrap=True)
    for head in heads:
        table.add_column(Text(head), justify="right", no_wrap=True)
    for first, row in zip(firsts, counts, strict=True):
        table.add_row(Text(first), *map(str, row))
    return _titled(title, table)


def _most_frequent(names: Sequence[str], confusion: Confusion, width: int) -> Group:
    """Return the most frequent confusions, each with its share of the true class."""
    first = confusion.confused[:_MAX_CONFUSIONS]
    num_kinds = len(confusion.confused)
    title = f"{len(first)} of {num_kinds} kinds of confusion among {len(names)} classes; --json prints the matrix"
    table = _table()
    space = max(_MIN_NAME_WIDTH, (width - 24) // 2)
    for head, justify in (("true class", "left"), ("predicted", "left"), ("rows", "right"), ("share", "right")):
        table.add_column(head, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for true, predicted, count in first:
        share = format_share(count / confusion.row_sums[true])
        table.add_row(Text(_cut(names[true], space)), Text(_cut(names[predicted], space)), format_number(count), share)
    return _titled(title, table)


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))


def _titled(title: str, table: Table) -> Group:
    # rich would wrap a title of the table at the width of the table.
    return Group(Text(title, style="italic"), table)


def _cut(name: str, space: int) -> str:
    text = Text(name)
    text.truncate(space, overflow="ellipsis")
    return text.plain
