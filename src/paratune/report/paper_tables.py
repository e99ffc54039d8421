"""How a table stands on paper: the width of its columns, where texts break, and which columns stand beside each other.

Lengths are in inches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE
from paratune.report.letters import Letters, broken, width
from paratune.report.table_files import FOLDER
from paratune.report.tabular import Column, Table, TableCell

_SIZES = (8.0, 7.5, 7.0, 6.5)
"""Points, the first that fits."""
_GAP, _PAD = 0.15, 0.055
_LEADING = 1.28
_MAX_HEAD = 1.0
"""Names of columns of figures are broken to this width."""
_LEAST_TEXT = 0.9
_MAX_LINES, _MAX_BLOCKS = 200, 8
_MAX_TURNED = 12
"""Lines of a table that may be beside each other instead."""
_COLOURS = {True: "#00664f", False: "#a33e00"}


@dataclass(frozen=True)
class Grid:
    """A table, or a block of its columns, as wide as the paper at most."""

    table: Table
    columns: tuple[int, ...]
    widths: tuple[float, ...]
    size: float

    @property
    def width(self) -> float:
        return sum(self.widths) + _GAP * (len(self.widths) - 1)

    @cached_property
    def _heads(self) -> list[list[str]]:
        names = (plain(self.table.columns[at].label) for at in self.columns)
        return [broken(name, room, self.size, is_bold=True) for name, room in zip(names, self.widths, strict=True)]

    @property
    def height_of_head(self) -> float:
        return self._height(max(map(len, self._heads)))

    @cached_property
    def _lines(self) -> list[list[list[str]]]:
        """The lines of each cell of each line of the table."""
        return [self._cells(position) for position in range(min(len(self.table.lines), _MAX_LINES))]

    @cached_property
    def heights(self) -> list[float]:
        """Of each line, with the heading above it."""
        groups = dict(self.table.groups)
        return [
            self._height(max(map(len, cells))) + (self._group_height if position in groups else 0.0)
            for position, cells in enumerate(self._lines)
        ]

    def head(self, x: float, y: float) -> Iterator[Letters]:
        """Yield the names of the columns; `x`, `y` is the upper left corner."""
        most = max(map(len, self._heads))
        for number, lines in enumerate(self._heads):
            yield from self._put(lines, number, x, y + self._step * (most - len(lines)), is_bold=True)

    def letters(self, position: int, x: float, y: float) -> Iterator[Letters]:
        """Yield the texts of a line; `x`, `y` is its upper left corner."""
        group = dict(self.table.groups).get(position)
        if group is not None:
            y += self._group_height
            text = broken(plain(group), self.width, self.size, is_bold=True)[0]
            yield Letters(text, x, y - _PAD, self.size, is_bold=True)
        for number, (at, lines) in enumerate(zip(self.columns, self._lines[position], strict=True)):
            entry = self.table.lines[position][at]
            colour = "#777777" if entry.text == NOT_AVAILABLE else "#000000"
            if entry.better is not None:
                colour = _COLOURS[entry.better]
            is_bold = position in self.table.marked
            yield from self._put(lines, number, x, y, is_bold=is_bold, colour=colour)

    def _put(
        self, lines: Sequence[str], number: int, x: float, y: float, *, is_bold: bool, colour: str = "#000000"
    ) -> Iterator[Letters]:
        start = x + sum(self.widths[:number]) + _GAP * number
        for row, text in enumerate(lines):
            shift = 0.0
            if not self.table.columns[self.columns[number]].is_text:
                shift = self.widths[number] - width(text, self.size, is_bold=is_bold)
            at = y + _PAD + self._step * row + 0.95 * self.size / 72
            yield Letters(text, start + shift, at, self.size, is_bold, colour)

    def _cells(self, position: int) -> list[list[str]]:
        is_bold = position in self.table.marked
        entries = (self.table.lines[position][at] for at in self.columns)
        return [
            broken(plain(entry.shown), room, self.size, is_bold=is_bold)
            for entry, room in zip(entries, self.widths, strict=True)
        ]

    @property
    def _step(self) -> float:
        return _LEADING * self.size / 72

    @property
    def _group_height(self) -> float:
        return self._step + 2.2 * _PAD

    def _height(self, num_lines: int) -> float:
        return num_lines * self._step + 1.4 * _PAD


def grids(table: Table, room: float) -> list[Grid]:
    """Return a table as it fits into so much room: whole, in smaller letters, with broken texts, or in blocks."""
    every = tuple(range(len(table.columns)))
    for size in _SIZES:
        natural = [_natural(table, at, size) for at in every]
        widths = _fitted(table, natural, room)
        if widths is not None:
            return [Grid(table, every, widths, size)]
    blocks = _blocks(table, room, _SIZES[0])[:_MAX_BLOCKS]
    return _turned_grids(table, room, len(blocks)) or blocks


def _turned_grids(table: Table, room: float, most: int) -> list[Grid]:
    """Return a table with its lines beside each other, where that takes fewer blocks of columns than `most`, else none.

    Each column of figures becomes a line, behind its name; a table of a few configurations then fits on the paper.
    """
    if table.is_text or table.groups or most < 2 or not 1 < len(table.lines) <= _MAX_TURNED:
        return []
    turned = _turned(table)
    every = tuple(range(len(turned.columns)))
    for size in _SIZES:
        widths = _fitted(turned, [_natural(turned, at, size) for at in every], room)
        if widths is not None:
            return [Grid(turned, every, widths, size)]
    blocks = _blocks(turned, room, _SIZES[0])
    return blocks if len(blocks) < most else []


def _turned(table: Table) -> Table:
    """Return a table whose lines are the columns of another one; names of several columns are joined."""
    names = [
        ", ".join(dict.fromkeys(entry.shown for entry in line[: table.num_names] if entry.text)) for line in table.lines
    ]
    first = ", ".join(column.label for column in table.columns[: table.num_names])
    columns = (Column(first, is_text=True), *map(Column, names))
    rest = range(table.num_names, len(table.columns))
    lines = tuple((TableCell(table.columns[at].label), *(line[at] for line in table.lines)) for at in rest)
    return Table(table.key, table.title, columns, lines)


def note_of_rest(table: Table, shown: Sequence[Grid]) -> Iterator[str]:
    """Yield what is left out on paper, and where it stands."""
    if shown and shown[0].table is not table:  # turned: its lines are the columns
        columns = {at for grid in shown for at in grid.columns}
        if len(columns) <= len(table.lines):
            yield f"The first {len(columns) - 1} of {len(table.lines)} lines; {FOLDER}/{table.key}.csv has all."
        return
    columns = {at for grid in shown for at in grid.columns}
    where = f"{FOLDER}/{table.key}.csv has all"
    if len(columns) < len(table.columns):
        yield f"The first {len(columns)} of {len(table.columns)} columns; {where}."
    if len(table.lines) > _MAX_LINES:
        yield f"The first {_MAX_LINES} of {len(table.lines):,} lines; {where}."


def _natural(table: Table, at: int, size: float) -> float:
    """Return how wide a column is when no cell is broken."""
    column = table.columns[at]
    name = plain(column.label)
    words = max((width(word, size, is_bold=True) for word in name.split()), default=0.0)
    head = width(name, size, is_bold=True)
    bold = bool(table.marked)
    cells = [width(plain(line[at].shown), size, is_bold=bold) for line in table.lines[:_MAX_LINES]]
    return max([head if column.is_text else max(words, min(head, _MAX_HEAD)), *cells]) + 0.01


def _fitted(table: Table, natural: Sequence[float], room: float) -> tuple[float, ...] | None:
    """Return widths whose sum fits, texts broken where that is enough; None where it is not."""
    room -= _GAP * (len(natural) - 1)
    if sum(natural) <= room:
        return tuple(natural)
    texts = [at for at in range(len(natural)) if table.columns[at].is_text]
    left = room - sum(each for at, each in enumerate(natural) if at not in texts)
    widths = list(natural)
    # Narrow texts keep their width; the wide ones share what is left by how much they hold.
    while texts and left > 0:
        share = left / sum(natural[at] for at in texts)
        kept = [at for at in texts if natural[at] <= max(_LEAST_TEXT, share * natural[at])]
        if not kept:
            found = {at: share * natural[at] for at in texts}
            if min(found.values()) < min(_LEAST_TEXT, room / len(natural)):
                return None
            return tuple(found.get(at, each) for at, each in enumerate(widths))
        left -= sum(natural[at] for at in kept)
        texts = [at for at in texts if at not in kept]
    return None


def _label_widths(natural: Sequence[float], room: float) -> dict[int, float]:
    """Return the widths of columns of text that stand in each block, the widest narrowed until they fit."""
    widths = list(natural)
    while sum(widths) > room and max(widths) > room / len(widths) + 1e-6:
        widest = max(range(len(widths)), key=widths.__getitem__)
        widths[widest] = max(room / len(widths), widths[widest] - (sum(widths) - room))
    return dict(enumerate(widths))


def _blocks(table: Table, room: float, size: float) -> list[Grid]:
    """Return blocks of columns, each behind the first ones, which tell the lines apart."""
    labels = range(table.num_names)
    widths = _label_widths([_natural(table, at, size) for at in labels], 0.45 * room)
    beside = room - sum(widths.values()) - _GAP * len(labels)
    blocks: list[list[int]] = []
    left = 0.0
    for at in range(len(labels), len(table.columns)):
        widths[at] = min(_natural(table, at, size), beside)
        if not blocks or widths[at] > left:
            blocks.append([*labels])
            left = beside
        blocks[-1].append(at)
        left -= widths[at] + _GAP
    return [Grid(table, tuple(block), tuple(widths[at] for at in block), size) for block in blocks]
