"""Tables of `paratune.report.tabular` in a page."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

from paratune.base.units import NOT_AVAILABLE
from paratune.report.tabular import Column, Table, TableCell
from paratune.report.text import Html, join, tag

_SIDES = {True: "better", False: "worse"}
_WIDE = 9
"""More columns than this are printed across the paper."""


def table_html(table: Table, *, signs: Mapping[int, Html] | None = None, is_closed: bool = False) -> Html:
    """Return a table in a region that scrolls, with its notes below.

    Args:
        table: The table.
        signs: What stands before the names of columns, by their position.
        is_closed: Whether it opens on demand, under its title.
    """
    kind = "text" if table.is_text else "figures grouped" if table.groups else "figures"
    element = tag(
        "table", _head(table, signs or {}), *_bodies(table), class_=kind, data_sortable=table.is_sortable,
        style=f"--columns: {len(table.columns)}",
    )  # fmt: skip
    notes = [tag("p", note, class_="caption") for note in table.notes]
    shown = scroll(element, table.title, is_wide=len(table.columns) > _WIDE)
    if is_closed:
        return tag("details", tag("summary", table.title), join([shown, *notes]))
    return join([shown, *notes])


def scroll(table: Html, label: str, *, is_wide: bool = False) -> Html:
    """Return a table in a region that scrolls by keyboard where the window is too narrow."""
    return tag("div", table, class_="scroll wide" if is_wide else "scroll", tabindex="0", role="region",
               aria_label=label)  # fmt: skip


def _head(table: Table, signs: Mapping[int, Html]) -> Html:
    names = (_heading(column, at, table, signs.get(at)) for at, column in enumerate(table.columns))
    return tag("thead", tag("tr", *names))


def _heading(column: Column, at: int, table: Table, sign: Html | None) -> Html:
    label = column.label or tag("span", "", aria_hidden="true")
    is_label = column.is_text and not table.is_text
    return tag(
        "th", sign, label, scope="col", class_="label" if is_label and at else None,
        data_text=table.is_sortable and column.is_text,
    )  # fmt: skip


def _bodies(table: Table) -> Iterator[Html]:
    """Yield the body, or one a group."""
    lines = [_line(table, position) for position in range(len(table.lines))]
    if not table.groups:
        yield tag("tbody", join(lines))
        return
    starts = [*(start for start, _ in table.groups), len(lines)]
    for (start, end), (_, text) in zip(pairwise(starts), table.groups, strict=True):
        heading = tag("th", text, colspan=len(table.columns), scope="rowgroup")
        yield tag("tbody", join([tag("tr", heading, class_="group"), *lines[start:end]]))


def _line(table: Table, position: int) -> Html:
    is_marked = position in table.marked
    return tag("tr", *(_cell(table, at, entry, is_marked=is_marked) for at, entry in enumerate(table.lines[position])))


def _cell(table: Table, at: int, entry: TableCell, *, is_marked: bool) -> Html:
    marks = tag("sup", ",".join(entry.marks)) if entry.marks else None
    shown = [tag("strong", entry.text) if is_marked else entry.text, marks]
    about = {"title": entry.hover or None, "data_run": " ".join(entry.runs) or None}
    if at == 0:
        return tag("th", *shown, scope="row", **about)
    if table.columns[at].is_text and not table.is_text:
        return tag("td", *shown, class_="label", **about)
    kind = "na" if entry.text == NOT_AVAILABLE else None if entry.better is None else _SIDES[entry.better]
    is_number = isinstance(entry.value, int | float) and table.is_sortable and not table.columns[at].is_text
    return tag("td", *shown, class_=kind, data_value=f"{entry.value:.12g}" if is_number else None, **about)
