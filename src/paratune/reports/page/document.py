"""A report as one HTML page that needs no other file: no request, no external font, one inline script."""

import base64
import hashlib
from collections.abc import Iterator
from importlib import resources
from itertools import groupby

from paratune import __version__
from paratune.base.units import format_share
from paratune.reports.document import (
    STRONG,
    Listing,
    MarkedText,
    Notice,
    Part,
    Remarks,
    ReportDocument,
    ReportSection,
    StatementBox,
    signed,
)
from paratune.reports.figures import canvas
from paratune.reports.figures.canvas import Drawing, page_figure
from paratune.reports.tables.table import Table, TableCell
from paratune.reports.text import GENERATOR, Html, escape, join, tag

_MANY, _LONG = 8, 30
"""Tables of more columns are without those that are equal in all lines; of more lines, without groups, they scroll."""
_SIGNS = {True: ("good", "shown"), False: ("bad", "a problem"), None: ("open", "cannot tell")}
"""Class and words for screen readers of the sign of a statement."""


def document_html(document: ReportDocument) -> str:
    """Return a report as a page."""
    lead, *others = document.lead or ("",)
    header = tag(
        "header", tag("h1", document.title), tag("p", lead, class_="lead"),
        *(tag("p", text, class_="caption") for text in others), *map(_notice, document.notices),
    )  # fmt: skip
    links = (tag("a", section.heading, href=f"#{section.key}") for section in document.sections)
    nav = tag("nav", *links, aria_label="Sections") if len(document.sections) > 2 else Html("")
    sections = [section_html(section) for section in document.sections]
    first = document.sections[0].key if document.sections else "main"
    # The first section is the conclusion: the list of the others is below it.
    content = [header, *sections[:1], nav, *sections[1:], tag("footer", tag("p", document.footer))]
    folder = resources.files("paratune.reports.page")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "page.js"))
    # The policy allows one script, by its SHA-256, and protects readers if the escaping of a text fails.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'; "
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="{GENERATOR}">
{tag("title", document.title)}
<style>
{style}</style>
</head>
<body>{tag("a", "Skip to the contents", href=f"#{first}", class_="skip")}
<main id="main">
{join(content)}</main>
<script>{script}</script></body>
</html>
"""


def made_by(source: str = "") -> str:
    """Return the sentence that names the version of paratune and the source of the report."""
    return f"Made by paratune {__version__}{f' from {source}' if source else ''}."


def section_html(section: ReportSection) -> Html:
    """Return a section of the page under its heading; one that is not short opens on request, and for print.

    Parts are side by side where they fit.
    """
    content = tag("div", Html("\n"), join(_parts(section)), class_="parts", id=section.key)
    heading = tag("h2", section.heading)
    if section.is_short:
        return tag("section", heading, Html("\n"), content)
    # A link to the contents opens the element around them.
    return tag("details", tag("summary", heading), content, class_="section")


def _parts(section: ReportSection) -> Iterator[Html]:
    """Yield the parts of a section; a title that equals its heading is left out.

    Figures that follow each other share a place, which is beside a narrow table.
    """
    for are_figures, parts in groupby(section.parts, lambda part: isinstance(part, Drawing)):
        if are_figures:
            figures = (tag("div", _heading(part, section), _part(part), class_="figure") for part in parts)
            yield tag("div", *figures, class_="drawings")
            continue
        for part in parts:
            if isinstance(part, Table | MarkedText) and part.is_closed:
                yield tag("div", tag("details", tag("summary", part.title), _part(part)), class_="part whole")
            else:
                kind = "part" if isinstance(part, Table) else "part whole"
                yield tag("div", _heading(part, section), _part(part), class_=kind)


def _heading(part: Part, section: ReportSection) -> Html | None:
    title = part.title if isinstance(part, Table | MarkedText | Drawing) else ""
    return tag("h3", title) if title not in ("", section.heading) else None


def _part(part: Part) -> Html:
    match part:
        case Table():
            return _table(part)
        case Drawing():
            return _figure(part)
        case Listing():
            lines = Html("\n".join(map(escape, part.lines)))
            text = tag("pre", lines, tabindex="0", role="region", aria_label=part.title)
            return tag("details", tag("summary", part.title), text)
        case MarkedText():
            return _marked(part)
        case Notice():
            return _notice(part)
        case Remarks():
            pairs = ((None, text) if isinstance(text, str) else (text[0], tag("p", text[1])) for text in part.texts)
            items = (tag("li", about and tag("p", about, class_="caption"), text) for about, text in pairs)
            return tag("ul", *items, class_="plain") if part.texts else tag("p", "None.")
        case StatementBox():
            return _statements(part)
        case str():
            return tag("p", part)


def _notice(notice: Notice) -> Html:
    items = tag("ul", *(tag("li", item) for item in notice.items)) if notice.items else None
    return tag("div", tag("p", notice.text), items, class_=f"notice{' warn' if notice.is_warning else ''}", role="note")


def _statements(box: StatementBox) -> Html:
    """Return statements; those with a title open on request, and are open if one of them is a problem."""
    rows = []
    for statement in box.statements:
        kind, words = _SIGNS[statement.is_good]
        sign = tag("span", statement.sign, class_="sign", role="img", aria_label=words)
        link = tag("a", statement.evidence_name, href=f"#{statement.evidence}") if statement.evidence else None
        text = tag("dd", statement.text, Html(" ") if link else None, link)
        rows.append(tag("div", tag("dt", sign, statement.label), text, class_=kind))
    items = tag("dl", *rows)
    if not box.title:
        return tag("div", items, class_="box")
    bad = sum(statement.is_good is False for statement in box.statements)
    title = f"{box.title} ({bad} of {len(box.statements)} are problems)" if bad else box.title
    return tag("details", tag("summary", title), items, class_="box", open=bad > 0)


def _marked(text: MarkedText) -> Html:
    """Return a text whose words are marked by their effects.

    A word that raises the output has a solid line below it, one that lowers it a dashed line; strong ones have a sign.
    """
    content: list[Html | str] = []
    for word in text.words:
        breaks = min(2, word.before.count("\n"))
        content.append(Html("<br>" * breaks) if breaks else word.before)
        strength = text.strength(word)
        sign = tag("sup", "+" if strength > 0 else "\u2212", aria_hidden="true") if abs(strength) >= STRONG else None
        kind = "raises" if strength > 0 else "lowers"
        tip, style = f"{kind} the output: {signed(word.effect)}", f"--strength: {abs(strength):.2f}"
        content.append(tag("span", word.text, sign, class_=kind, title=tip, style=style) if strength else word.text)
    return tag("p", *content, class_="marked")


def _figure(drawing: Drawing) -> Html:
    """Return a figure in a region that scrolls on narrow windows; a message where it cannot be drawn."""
    if drawing.note is not None:
        return tag("p", drawing.note, class_="notice")
    if (missing := canvas.can_draw()) is not None:
        content = tag("p", f"No figure: {missing}. The tables contain the values of all figures.", class_="notice")
    else:
        content = _scroll(page_figure(drawing), f"Figure: {drawing.title}")
    return tag("figure", content, tag("figcaption", drawing.caption))


def _scroll(content: Html, label: str, kinds: str = "") -> Html:
    """Return a region that readers can scroll by keyboard where the window is too narrow."""
    return tag("div", content, class_=f"scroll{kinds}", tabindex="0", role="region", aria_label=label)


def _table(table: Table) -> Html:
    """Return a table in a region that scrolls, with its notes below."""
    table = table.varying() if len(table.columns) > _MANY else table
    headings = (
        tag("th", column.label or tag("span", "", aria_hidden="true"), scope="col", class_=_kind(table, at),
            data_text=table.is_sortable and column.is_text)
        for at, column in enumerate(table.columns)
    )  # fmt: skip
    groups = dict(table.groups)
    bodies: list[list[Html]] = []
    for position, line in enumerate(table.lines):
        if position in groups or not bodies:
            bodies.append([])
        if position in groups:
            head = tag("th", groups[position], colspan=len(table.columns), scope="rowgroup")
            bodies[-1].append(tag("tr", head, class_="group"))
        cells = (_cell(table, at, cell, position in table.marked) for at, cell in enumerate(line))
        bodies[-1].append(tag("tr", *cells))
    element = tag(
        "table", tag("thead", tag("tr", *headings)), *(tag("tbody", join(rows)) for rows in bodies or [[]]),
        class_="text" if table.is_text else "figures grouped" if groups else "figures",
        data_sortable=table.is_sortable, style=f"--columns: {len(table.columns)}",
    )  # fmt: skip
    region = _scroll(element, table.title, " long" * (len(table.lines) > _LONG and not groups))
    return join([region, *(tag("p", note, class_="caption") for note in table.notes)])


def _kind(table: Table, at: int) -> str | None:
    """Return the class of a column of names beside numbers, which is not the first one."""
    return "label" if at and table.columns[at].is_text and not table.is_text else None


def _cell(table: Table, at: int, cell: TableCell, is_marked: bool) -> Html:
    text = tag("strong", cell.text) if is_marked else escape(cell.text)
    marks = tag("sup", ",".join(cell.marks)) if cell.marks else None
    title, kind = cell.hover or None, _kind(table, at)
    if at == 0:
        return tag("th", tag("a", text, href=cell.link) if cell.link else text, marks, scope="row", title=title)
    if kind is None and cell.share is not None:
        share = tag("small", format_share(cell.share))
        return tag("td", text, marks, share, class_="heat", style=f"--share: {cell.share:.3f}", title=title)
    is_grey = cell.is_open or not cell.is_known
    kind = kind or ("na" if is_grey else {True: "better", False: "worse", None: None}[cell.better])
    is_number = table.is_sortable and isinstance(cell.value, int | float) and not table.columns[at].is_text
    return tag("td", text, marks, class_=kind, data_value=f"{cell.value:.12g}" if is_number else None, title=title)
