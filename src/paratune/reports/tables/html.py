"""Tables in an HTML page."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from paratune.base.units import NOT_AVAILABLE, format_share
from paratune.reports.tables.table import Table, TableCell, with_varying_columns
from paratune.reports.text import Html, escape, join, tag

_CHANGES = {True: "better", False: "worse", None: None}
_WITH_HYPHEN = re.compile(r"(\b[\d.]+e-\d+)")
_MANY, _WIDE, _LONG = 8, 11, 30
"""Tables of more columns are without those that say nothing new; of more still, they are printed in landscape. Tables
of more lines, without groups, scroll in a page."""


def table_html(table: Table) -> Html:
    """Return a table in a region that scrolls, with its notes below; in `<details>` if it is closed."""
    table = with_varying_columns(table) if len(table.columns) > _MANY else table
    kind = "text" if table.is_text else "figures grouped" if table.groups else "figures"
    element = tag(
        "table", tag("thead", tag("tr", *(_heading(table, at) for at in range(len(table.columns))))), *_bodies(table),
        class_=kind, data_sortable=table.is_sortable, style=f"--columns: {len(table.columns)}",
    )  # fmt: skip
    notes = (tag("p", note, class_="caption") for note in table.notes)
    is_long, is_wide = len(table.lines) > _LONG and not table.groups, len(table.columns) > _WIDE
    content = join([scroll(element, table.title, ("wide",) * is_wide + ("long",) * is_long), *notes])
    return tag("details", tag("summary", table.title), content) if table.is_closed else content


def scroll(content: Html, label: str, kinds: Sequence[str] = ()) -> Html:
    """Return a region that readers can scroll by keyboard where the window is too narrow."""
    return tag("div", content, class_=" ".join(["scroll", *kinds]), tabindex="0", role="region", aria_label=label)


def _heading(table: Table, at: int) -> Html:
    column = table.columns[at]
    label = column.label or tag("span", "", aria_hidden="true")
    kind = "label" if column.is_text and not table.is_text and at else None
    return tag("th", label, scope="col", class_=kind, data_text=table.is_sortable and column.is_text)


def _bodies(table: Table) -> Iterator[Html]:
    """Yield the body, or one body for each group."""
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
    return tag("tr", *(_cell(table, at, cell, is_marked) for at, cell in enumerate(table.lines[position])))


def _unbroken(text: str) -> Html | str:
    """Return the name of a line, whose numbers such as 1e-5 are not broken at the hyphen."""
    pieces = _WITH_HYPHEN.split(text)
    spans = (tag("span", piece, class_="unbroken") if at % 2 else escape(piece) for at, piece in enumerate(pieces))
    return Html("".join(spans)) if len(pieces) > 1 else text


def _cell(table: Table, at: int, cell: TableCell, is_marked: bool) -> Html:
    marks = tag("sup", ",".join(cell.marks)) if cell.marks else None
    text = _unbroken(cell.text) if at == 0 else cell.text
    content = [tag("strong", text) if is_marked else text, marks]
    if at == 0:
        content[0] = tag("a", content[0], href=cell.link) if cell.link else content[0]
        return tag("th", *content, scope="row", title=cell.hover or None)
    if table.columns[at].is_text and not table.is_text:
        return tag("td", *content, class_="label", title=cell.hover or None)
    if cell.share is not None:
        share = tag("small", format_share(cell.share))
        return tag("td", *content, share, class_="heat", style=f"--share: {cell.share:.3f}", title=cell.hover or None)
    kind = "na" if cell.text == NOT_AVAILABLE or cell.is_open else _CHANGES[cell.better]
    is_number = isinstance(cell.value, int | float) and table.is_sortable and not table.columns[at].is_text
    value = f"{cell.value:.12g}" if is_number else None
    return tag("td", *content, class_=kind, data_value=value, title=cell.hover or None)
