"""A report as one HTML page that needs no other file: no request, no external font, one inline script."""

import base64
import hashlib
from collections.abc import Iterator, Sequence
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
    Statement,
    StatementBox,
    signed,
)
from paratune.reports.figures import canvas
from paratune.reports.figures.canvas import Drawing, page_figure
from paratune.reports.tables.html import scroll, table_html
from paratune.reports.tables.table import Table
from paratune.reports.text import GENERATOR, Html, escape, join, tag


def document_html(document: ReportDocument) -> str:
    """Return a report as a page."""
    lead, *others = document.lead or ("",)
    links = (tag("a", section.heading, href=f"#{section.key}") for section in document.sections)
    header = tag(
        "header",
        tag("h1", document.title),
        tag("p", lead, class_="lead"),
        *(tag("p", text, class_="caption") for text in others),
        *map(_notice, document.notices),
    )
    nav = tag("nav", *links, aria_label="Sections") if len(document.sections) > 2 else Html("")
    first, *rest = [*map(section_html, document.sections), Html("")]
    footer = tag("footer", tag("p", document.footer))
    start = document.sections[0].key if document.sections else "main"
    # The first section is the conclusion: the list of the others is below it.
    return page(document.title, [header, first, nav, *rest, footer], first=start)


def page(title: str, content: Sequence[Html], *, first: str, refresh_s: int | None = None) -> str:
    """Return a page that needs no other file.

    Args:
        title: Title of the document.
        content: Parts of the page.
        first: Id of the element that the skip link leads to.
        refresh_s: Seconds after which a browser reloads the page; never when None.
    """
    style, script = _resource("style.css"), _resource("page.js")
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
    main = tag("main", Html("\n"), join(content), id="main")
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


def _resource(name: str) -> str:
    return resources.files("paratune.reports.page").joinpath(name).read_text(encoding="utf-8")


def _parts(section: ReportSection) -> Iterator[Html]:
    """Yield the parts of a section; a title that equals its heading is left out.

    Figures that follow each other share a place, which is beside a narrow table.
    """
    figures: list[Html] = []
    for part in [*section.parts, None]:
        if figures and not isinstance(part, Drawing):
            yield tag("div", *figures, class_="drawings")
            figures = []
        if part is not None:
            content, kind, title = _part(part)
            has_title = title not in ("", section.heading)
            shown = tag("div", tag("h3", title) if has_title else None, content, class_=kind)
            if isinstance(part, Drawing):
                figures.append(shown)
            else:
                yield shown


def _part(part: Part) -> tuple[Html, str, str]:
    """Return a part, the class of its place, and its title if it does not show it itself."""
    match part:
        case Table():
            return table_html(part), "part whole" if part.is_closed else "part", "" if part.is_closed else part.title
        case Drawing():
            return figure_html(part), "figure", part.title
        case Listing():
            lines = Html("\n".join(map(escape, part.lines)))
            text = tag("pre", lines, tabindex="0", role="region", aria_label=part.title)
            return tag("details", tag("summary", part.title), text), "part whole", ""
        case MarkedText():
            return _marked(part), "part whole", "" if part.is_closed else part.title
        case Notice():
            return _notice(part), "part whole", ""
        case Remarks():
            return tag("ul", *(tag("li", text) for text in part.texts), class_="plain"), "part whole", ""
        case StatementBox():
            return _statements(part), "part whole", ""
        case QuotedTexts():
            items = (tag("li", tag("p", about, class_="caption"), tag("p", text)) for about, text in part.rows)
            return tag("ul", *items, class_="plain") if part.rows else tag("p", "None."), "part whole", ""
        case str():
            return tag("p", part), "part whole", ""


def _notice(notice: Notice) -> Html:
    items = tag("ul", *(tag("li", item) for item in notice.items)) if notice.items else None
    return tag("div", tag("p", notice.text), items, class_=f"notice{' warn' if notice.is_warning else ''}", role="note")


_SIGNS = {True: ("good", "shown"), False: ("bad", "a problem"), None: ("open", "cannot tell")}
"""Class and words for screen readers of the sign of a statement."""


def _statements(box: StatementBox) -> Html:
    """Return statements; those with a title open on request, and are open if one of them is a problem."""
    items = tag("dl", *(_statement(statement, has_sign=box.has_signs) for statement in box.statements))
    if not box.title:
        return tag("div", items, class_="box")
    bad = sum(statement.is_good is False for statement in box.statements) if box.has_signs else 0
    title = f"{box.title} ({bad} of {len(box.statements)} are problems)" if bad else box.title
    return tag("details", tag("summary", title), items, class_="box", open=bad > 0)


def _statement(statement: Statement, *, has_sign: bool) -> Html:
    kind, words = _SIGNS[statement.is_good]
    sign = tag("span", statement.sign, class_="sign", role="img", aria_label=words) if has_sign else None
    link = tag("a", statement.evidence_name, href=f"#{statement.evidence}") if statement.evidence else None
    text = tag("dd", statement.text, Html(" ") if link else None, link)
    return tag("div", tag("dt", sign, statement.label), text, class_=kind if has_sign else None)


def _marked(text: MarkedText) -> Html:
    """Return a text whose words are marked by their effects; in `<details>` if it is closed.

    A word that raises the output has a solid line below it, one that lowers it a dashed line; strong ones have a sign.
    """
    content = tag("p", *(part for word in text.words for part in _word(text, word)), class_="marked")
    return tag("details", tag("summary", text.title), content) if text.is_closed else content


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


def figure_html(drawing: Drawing) -> Html:
    """Return a figure in a region that scrolls on narrow windows; a message where it cannot be drawn."""
    if drawing.note is not None:
        return tag("p", drawing.note, class_="notice")
    if (missing := canvas.can_draw()) is not None:
        text = f"No figure: {missing}. The tables contain the values of all figures."
        content = tag("p", text, class_="notice")
    else:
        content = scroll(page_figure(drawing), f"Figure: {drawing.title}")
    return tag("figure", content, tag("figcaption", drawing.caption))
