"""Tables in an HTML page."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from paratune.base.units import NOT_AVAILABLE, format_share
from paratune.reports.figures.canvas import css_colour
from paratune.reports.tables.table import Column, Table, TableCell
from paratune.reports.text import Html, escape, join, tag

_CHANGES = {True: "better", False: "worse"}
_WITH_HYPHEN = re.compile(r"(\b[\d.]+e-\d+)")
_WIDE = 11
"""Tables with more columns are printed in landscape."""


def table_html(table: Table, owners: Mapping[str, str] = {}) -> Html:
    """Return a table in a region that scrolls, with its notes below; in `<details>` if it is closed.

    `owners` has the number in the page of each configuration or run that readers can select, by its name and its runs.
    """
    kind = "text" if table.is_text else "figures grouped" if table.groups else "figures"
    element = tag(
        "table", _head(table, owners), *_bodies(table, owners), class_=kind, data_sortable=table.is_sortable,
        style=f"--columns: {len(table.columns)}",
    )  # fmt: skip
    notes = (tag("p", note, class_="caption") for note in table.notes)
    content = join([scroll(element, table.title, is_wide=len(table.columns) > _WIDE), *notes])
    return tag("details", tag("summary", table.title), content) if table.is_closed else content


def scroll(content: Html, label: str, *, is_wide: bool = False) -> Html:
    """Return a region that readers can scroll by keyboard where the window is too narrow."""
    return tag("div", content, class_="scroll wide" if is_wide else "scroll", tabindex="0", role="region",
               aria_label=label)  # fmt: skip


def line_key(colour: str, dashes: Sequence[float]) -> Html:
    """Return a sample of a line for a legend; `colour` is a colour of the figures."""
    line = tag(
        "line", x1="0", y1="5", x2="34", y2="5", stroke=css_colour(colour), stroke_width="3.4",
        stroke_dasharray=",".join(f"{2 * length:g}" for length in dashes) or None,
    )  # fmt: skip
    return tag("svg", line, viewBox="0 0 34 10", class_="key", aria_hidden="true")


def _head(table: Table, owners: Mapping[str, str]) -> Html:
    headings = (_heading(column, at, table, owners) for at, column in enumerate(table.columns))
    return tag("thead", tag("tr", *headings))


def _heading(column: Column, at: int, table: Table, owners: Mapping[str, str]) -> Html:
    sign = None if column.line_style is None else line_key(*column.line_style)
    label = column.label or tag("span", "", aria_hidden="true")
    is_label = column.is_text and not table.is_text
    return tag(
        "th", sign, label, scope="col", class_="label" if is_label and at else None,
        data_text=table.is_sortable and column.is_text, data_of=owners.get(column.label),
    )  # fmt: skip


def _bodies(table: Table, owners: Mapping[str, str]) -> Iterator[Html]:
    """Yield the body, or one body for each group."""
    lines = [_line(table, position, owners) for position in range(len(table.lines))]
    if not table.groups:
        yield tag("tbody", join(lines))
        return
    starts = [*(start for start, _ in table.groups), len(lines)]
    for (start, end), (_, text) in zip(pairwise(starts), table.groups, strict=True):
        heading = tag("th", text, colspan=len(table.columns), scope="rowgroup")
        yield tag("tbody", join([tag("tr", heading, class_="group"), *lines[start:end]]))


def _line(table: Table, position: int, owners: Mapping[str, str]) -> Html:
    is_marked = position in table.marked
    line = table.lines[position]
    of_columns = [owners.get(column.label) for column in table.columns]
    cells = (
        _cell(table, at, cell, is_marked=is_marked, owner=owner)
        for at, (cell, owner) in enumerate(zip(line, of_columns, strict=True))
    )
    return tag("tr", *cells, data_of=None if any(of_columns) else _owners_of(line, owners))


def _owners_of(line: Sequence[TableCell], owners: Mapping[str, str]) -> str | None:
    """Return the numbers of the owners of a line: those of its first cell with their names or runs."""
    for cell in line:
        numbers = dict.fromkeys(owners[name] for name in (cell.text, *cell.runs) if name in owners)
        if numbers:
            return " ".join(numbers)
    return None


def _unbroken(text: str) -> Html | str:
    """Return the name of a line, whose numbers such as 1e-5 are not broken at the hyphen."""
    pieces = _WITH_HYPHEN.split(text)
    if len(pieces) == 1:
        return text
    spans = (tag("span", piece, class_="unbroken") if at % 2 else escape(piece) for at, piece in enumerate(pieces))
    return Html("".join(spans))


def _cell(table: Table, at: int, cell: TableCell, *, is_marked: bool, owner: str | None) -> Html:
    marks = tag("sup", ",".join(cell.marks)) if cell.marks else None
    text = _unbroken(cell.text) if at == 0 else cell.text
    content = [tag("strong", text) if is_marked else text, marks]
    about = {"title": cell.hover or None, "data_of": owner}
    if at == 0 and cell.link:
        content[0] = tag("a", content[0], href=cell.link)
    if at == 0:
        return tag("th", *content, scope="row", **about)
    if table.columns[at].is_text and not table.is_text:
        return tag("td", *content, class_="label", **about)
    if cell.share is not None:
        shading = f"--share: {cell.share:.3f}"
        return tag("td", *content, tag("small", format_share(cell.share)), class_="heat", style=shading, **about)
    kind = (
        "na" if cell.text == NOT_AVAILABLE or cell.is_open else None if cell.better is None else _CHANGES[cell.better]
    )
    is_number = isinstance(cell.value, int | float) and table.is_sortable and not table.columns[at].is_text
    return tag("td", *content, class_=kind, data_value=f"{cell.value:.12g}" if is_number else None, **about)
