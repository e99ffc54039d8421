"""A confusion matrix in a terminal: the whole matrix if it fits its width, else the most frequent confusions."""

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
    """Return the matrix, or the most frequent confusions, each with its share of the true class.

    Args:
        names: Names of the classes.
        confusion: The matrix.
        width: Width of the terminal in characters.
    """
    shown = [plain(name) for name in names]
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    most = len(str(max(confusion.counts.values(), default=0)))
    if max(map(cell_len, shown)) + sum(_GAP + max(cell_len(name), most) for name in shown) <= width:
        table.add_column("", no_wrap=True)
        for name in shown:
            table.add_column(Text(name), justify="right", no_wrap=True)
        for true, name in enumerate(shown):
            counts = (confusion.counts.get((true, predicted), 0) for predicted in range(len(shown)))
            table.add_row(Text(name), *map(str, counts))
        return _titled("rows: true class, columns: predicted", table)
    first = confusion.confused[:_MAX_CONFUSIONS]
    space = max(_MIN_NAME_WIDTH, (width - 24) // 2)
    table.add_column("true class", no_wrap=True)
    table.add_column("predicted", no_wrap=True)
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for true, predicted, count in first:
        share = format_share(count / confusion.row_sums[true])
        table.add_row(_cut(shown[true], space), _cut(shown[predicted], space), format_number(count), share)
    total = len(confusion.confused)
    return _titled(f"{len(first)} of {total} kinds of confusion among {len(shown)} classes; --json has all", table)


def _titled(title: str, table: Table) -> Group:
    # rich would wrap a title of the table at the width of the table.
    return Group(Text(title, style="italic"), table)


def _cut(name: str, space: int) -> Text:
    text = Text(name)
    text.truncate(space, overflow="ellipsis")
    return text
