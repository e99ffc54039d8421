"""Tables of `paratune.report.tabular` in a page."""

from paratune.report.page_tables import head_row, scroll
from paratune.report.tabular import Entry, Table
from paratune.report.text import Html, join, tag
from paratune.units import NOT_AVAILABLE

_SIDES = {True: "better", False: "worse"}


def table_html(table: Table) -> Html:
    """Return a table in a region that scrolls, with its notes below."""
    rows = []
    for position, line in enumerate(table.lines):
        cells = (_cell(table, at, entry, is_marked=position in table.marked) for at, entry in enumerate(line))
        rows.append(tag("tr", *cells))
    kind = "text" if table.num_labels == len(table.columns) else "figures"
    head = _head(table) if kind == "figures" else head_row(table.header)
    notes = [tag("p", note, class_="caption") for note in table.notes]
    return join([scroll(tag("table", head, tag("tbody", join(rows)), class_=kind), table.title), *notes])


def _head(table: Table) -> Html:
    # Columns are at least as wide as the words of their names.
    sides = ("overflow-wrap: break-word", "overflow-wrap: break-word; text-align: left")
    names = (tag("th", column.label, scope="col", style=sides[column.is_text]) for column in table.columns)
    return tag("thead", tag("tr", *names))


def _cell(table: Table, at: int, entry: Entry, *, is_marked: bool) -> Html:
    marks = tag("sup", ",".join(entry.marks)) if entry.marks else None
    shown = [tag("strong", entry.text) if is_marked else entry.text, marks]
    about = {"title": entry.hover or None, "data_run": " ".join(entry.runs) or None}
    if at == 0:
        return tag("th", *shown, scope="row", **about)
    if table.columns[at].is_text:
        return tag("td", *shown, style="text-align: left", **about)
    kind = "na" if entry.text == NOT_AVAILABLE else None if entry.better is None else _SIDES[entry.better]
    return tag("td", *shown, class_=kind, **about)
