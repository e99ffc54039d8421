"""A report as one HTML page that needs no other file: no request, no external font, one inline script."""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources

from paratune import __version__
from paratune.reports.document import (
    STRONG,
    Listing,
    MarkedText,
    MarkedWord,
    Notice,
    Part,
    QuotedTexts,
    Remarks,
    ReportDocument,
    ReportSection,
    Selection,
    Statement,
    StatementBox,
    signed,
)
from paratune.reports.figures import canvas
from paratune.reports.figures.canvas import Drawing, Key, css_colour, page_figure
from paratune.reports.tables.html import line_key, scroll, table_html
from paratune.reports.tables.table import Table
from paratune.reports.text import GENERATOR, Html, escape, join, tag

_MOST_COLUMNS = 9
"""Columns of a table that the width of the page still follows."""


def document_html(document: ReportDocument) -> str:
    """Return a report as a page."""
    width = max((min(len(table.columns), _MOST_COLUMNS) for table in document.tables), default=1)
    owners = document.selection.numbers if document.selection is not None else {}
    sections = (section_html(section, owners) for section in document.sections)
    footer = tag("footer", tag("p", document.footer))
    first = document.sections[0].key if document.sections else "main"
    return page(document.title, [_header(document), *sections, footer], num_columns=width, first=first)


def page(title: str, content: Sequence[Html], *, num_columns: int, first: str, refresh_s: int | None = None) -> str:
    """Return a page that needs no other file.

    Args:
        title: Title of the document.
        content: Parts of the page.
        num_columns: Columns of its widest table.
        first: Id of the element that the skip link leads to.
        refresh_s: Seconds after which a browser reloads the page; never when None.
    """
    style, script = _resource("style.css"), "".join(map(_resource, ("page.js", "selection.js", "start.js")))
    head = join(
        [
            Html('<meta charset="utf-8">'),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{content_policy(script)}">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html(f'<meta name="generator" content="{GENERATOR}">'),
            Html("" if refresh_s is None else f'<meta http-equiv="refresh" content="{refresh_s:d}">'),
            tag("title", title),
            Html(f"<style>\n{style}</style>"),
        ]
    )
    main = tag("main", Html("\n"), join(content), id="main", style=f"--num-columns: {num_columns}")
    skip = tag("a", "Skip to the contents", href=f"#{first}", class_="skip")
    body = tag("body", skip, Html("\n"), main, Html(f"\n<script>{script}</script>"))
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n{body}\n</html>\n'


def content_policy(script: str) -> str:
    """Return the content security policy of a page: it allows one script, identified by its SHA-256.

    The policy protects readers if the escaping of a text fails.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'; "
        "form-action 'none'"
    )


def made_by(source: str = "") -> str:
    """Return the sentence that names the version of paratune and the source of the report."""
    return f"Made by paratune {__version__}{f' from {source}' if source else ''}."


def section_html(section: ReportSection, owners: Mapping[str, str] = {}) -> Html:
    """Return a section of the page under its heading; `owners` as in `table_html`."""
    content = join(_parts(section.parts, owners, section.heading))
    if section.is_beside:
        content = tag("div", *(_section_of_group(parts, owners) for parts in _groups(section)), class_="beside")
    heading = tag("h2", section.heading, id=f"{section.key}-heading")
    return tag("section", heading, Html("\n"), content, id=section.key, aria_labelledby=f"{section.key}-heading")


def _resource(name: str) -> str:
    return resources.files("paratune.reports.page").joinpath(name).read_text(encoding="utf-8")


def _header(document: ReportDocument) -> Html:
    lead, *others = document.lead or ("",)
    links = (tag("a", section.heading, href=f"#{section.key}") for section in document.sections)
    return tag(
        "header",
        tag("h1", document.title),
        tag("p", lead, class_="lead"),
        *(tag("p", text, class_="caption") for text in others),
        tag("nav", *links, aria_label="Sections"),
        *map(_notice, document.notices),
        *([] if document.selection is None else [_selection(document.selection)]),
    )


def _groups(section: ReportSection) -> list[list[Part]]:
    """Return the parts that stay together side by side: a closed table belongs to the part before it."""
    groups: list[list[Part]] = []
    for part in section.parts:
        if groups and isinstance(part, Table) and part.is_closed:
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def _section_of_group(parts: Sequence[Part], owners: Mapping[str, str]) -> Html:
    is_matrix = isinstance(parts[0], Table) and any(cell.share is not None for line in parts[0].lines for cell in line)
    return tag("section", join(_parts(parts, owners)), class_="matrix" if is_matrix else None)


def _parts(parts: Iterable[Part], owners: Mapping[str, str], heading: str = "") -> Iterator[Html]:
    """Yield the parts of a section; a title that equals its heading is left out."""
    for part in parts:
        if isinstance(part, Table):
            if part.title not in ("", heading) and not part.is_closed:
                yield tag("h3", part.title)
            yield table_html(part, owners)
        elif isinstance(part, Drawing):
            yield from [tag("h3", part.title, data_of=owners.get(part.owner))] * (part.title != heading)
            yield figure_html(part, owners)
        elif isinstance(part, Listing):
            yield _listing(part)
        elif isinstance(part, MarkedText):
            yield from [tag("h3", part.title)] * (not part.is_closed)
            yield _marked(part)
        elif isinstance(part, Notice):
            yield _notice(part)
        elif isinstance(part, Remarks):
            yield tag("ul", *(tag("li", text) for text in part.texts), class_="plain")
        elif isinstance(part, StatementBox):
            yield _statements(part)
        elif isinstance(part, QuotedTexts):
            items = (tag("li", tag("p", about, class_="caption"), tag("p", text)) for about, text in part.rows)
            yield tag("ul", *items, class_="plain") if part.rows else tag("p", "None.")
        else:
            yield tag("p", part)


def _notice(notice: Notice) -> Html:
    items = tag("ul", *(tag("li", item) for item in notice.items)) if notice.items else None
    return tag("div", tag("p", notice.text), items, class_=f"notice{' warn' if notice.is_warning else ''}", role="note")


_SIGNS = {True: ("good", "shown"), False: ("bad", "a problem"), None: ("open", "cannot tell")}
"""Class and words for screen readers of the sign of a statement."""


def _statements(box: StatementBox) -> Html:
    title = tag("h3", box.title) if box.title else None
    items = (_statement(statement, has_sign=box.has_signs) for statement in box.statements)
    return tag("div", title, tag("dl", *items), class_="box" if box.title else "box lead-box")


def _statement(statement: Statement, *, has_sign: bool) -> Html:
    kind, words = _SIGNS[statement.is_good]
    sign = tag("span", statement.sign, class_="sign", role="img", aria_label=words) if has_sign else None
    link = tag("a", statement.evidence_name, href=f"#{statement.evidence}") if statement.evidence else None
    text = tag("dd", statement.text, Html(" ") if link else None, link)
    return tag("div", tag("dt", sign, statement.label), text, class_=kind if has_sign else None)


def _listing(listing: Listing) -> Html:
    """Return a listing as an element that opens on request."""
    lines = Html("\n".join(map(escape, listing.lines)))
    text = tag("pre", lines, tabindex="0", role="region", aria_label=listing.title)
    return tag("details", tag("summary", listing.title), text)


def _marked(text: MarkedText) -> Html:
    """Return a text whose words are marked by their effects; in `<details>` if it is closed.

    A word that raises the output has a solid line below it, one that lowers it a dashed line; strong ones have a sign.
    """
    content = tag("p", *(part for word in text.words for part in _word(text, word)), class_="marked")
    return tag("details", tag("summary", text.title), content) if text.is_closed else join([content])


def _word(text: MarkedText, word: MarkedWord) -> list[Html | str]:
    space: Html | str = word.before
    if "\n" in word.before:
        space = Html("<br>" * min(2, word.before.count("\n")))
    strength = text.strength(word)
    if not strength:
        return [space, word.text]
    kind = "raises" if strength > 0 else "lowers"
    sign = tag("sup", "+" if strength > 0 else "\u2212", aria_hidden="true") if abs(strength) >= STRONG else None
    shown = f"{kind} the output: {signed(word.effect)}"
    return [space, tag("span", word.text, sign, class_=kind, title=shown, style=f"--strength: {abs(strength):.2f}")]


def _selection(selection: Selection) -> Html:
    """Return the controls that select configurations or runs, hidden without JavaScript, and the note for print."""
    heading = tag("summary", tag("strong", f"Select {selection.kind}: "), tag("span", class_="state"))
    words = tag("input", type="search", id="selection-words", autocomplete="off", spellcheck="false")
    buttons = (
        tag("button", f"Select {which}", type="button", data_select=which, class_="small") for which in ("all", "none")
    )
    checks = (
        tag("label", tag("input", type="checkbox", checked=True), f" {entry.label}") for entry in selection.entries
    )
    controls = tag(
        "div", tag("label", "Names with the words ", words), Html(" "), *buttons, class_="controls",
    )  # fmt: skip
    names = tag("fieldset", tag("legend", selection.kind.capitalize()), *checks)
    box = tag(
        "details", heading, controls, names, id="selection", class_="selection", data_kind=selection.kind, hidden=True
    )
    note = tag("p", id="selection-note", class_="notice", role="status", data_note=selection.note, hidden=True)
    return join([box, note])


def figure_html(drawing: Drawing, owners: Mapping[str, str] = {}) -> Html:
    """Return a figure in a region that scrolls on narrow windows; a message where it cannot be drawn.

    `owners` has the number in the page of each configuration or run that readers can select.
    """
    if drawing.note is not None:
        return tag("p", drawing.note, class_="notice")
    missing = canvas.can_draw()
    if missing is not None:
        content = tag("p", f"No figure: {missing}. The tables contain the values of all figures.", class_="notice")
    else:
        content = scroll(page_figure(drawing, prefix=drawing.key, owners=owners), f"Figure: {drawing.title}")
    keys = (tag("li", _sample(key), key.label, data_of=_owners_of(key, owners)) for key in drawing.legend)
    legend = tag("ul", *keys, class_="legend") if drawing.legend else None
    caption = tag("figcaption", drawing.caption)
    return tag("figure", legend, content, caption, data_of=owners.get(drawing.owner))


def _owners_of(key: Key, owners: Mapping[str, str]) -> str | None:
    return " ".join(owners[name] for name in (key.label, *key.owners) if name in owners) or None


def _sample(key: Key) -> Html:
    """Return a sample of a line or of an area for the legend."""
    if key.is_area:
        faint = f"; opacity: {key.alpha:g}" if key.alpha < 1 else ""
        return tag("span", class_="swatch", style=f"background: {css_colour(key.colour)}{faint}")
    return _marker(key) if key.marker else line_key(key.colour, key.dashes)


_SHAPES: dict[str, tuple[str, dict[str, str]]] = {
    "o": ("circle", {"cx": "6", "cy": "6", "r": "4.2"}),
    "s": ("rect", {"x": "2", "y": "2", "width": "8", "height": "8"}),
    "D": ("path", {"d": "M6 1 11 6 6 11 1 6z"}),
}


def _marker(key: Key) -> Html:
    """Return a sample of a point for the legend."""
    name, place = _SHAPES[key.marker]
    colour = css_colour(key.colour)
    shape = tag(name, **place, fill="none" if key.is_hollow else colour, stroke=colour, stroke_width="1.6")
    return tag("svg", shape, viewBox="0 0 12 12", class_="key point", aria_hidden="true")
