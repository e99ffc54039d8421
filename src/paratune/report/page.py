"""The report as one HTML page that needs nothing else: no request, no font from elsewhere, one script of its own."""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from importlib import resources

from paratune import __version__
from paratune.report import page_figures, page_tables
from paratune.report.contents import Contents
from paratune.report.course import HEADING as COURSE
from paratune.report.listing import Listing, listing_html
from paratune.report.model import GENERATOR, Report
from paratune.report.profile_tables import has_profile
from paratune.report.reproduce import HEADING
from paratune.report.section import Part
from paratune.report.slice_tables import HEADING as BY_SLICE
from paratune.report.slice_tables import KIND as SLICES
from paratune.report.tabular import Table
from paratune.report.tabular_page import table_html
from paratune.report.text import Html, escape, join, some_names, tag


def to_html(report: Report, found: Contents) -> str:
    """Return the whole page."""
    sections = list(_sections(report, found))
    content = [_header(report, sections), *(section(*each) for each in sections), _footer(report)]
    # The table with a line a run is wider than that with a column a run while there are few.
    num_columns = max(len(found.report.runs), 9 if "runs" in found.tables else 0)
    return page(report.title, content, num_columns=num_columns, first=sections[0][0])


def page(title: str, content: Sequence[Html], *, num_columns: int, first: str, refresh_s: int | None = None) -> str:
    """Return a page that needs nothing else.

    Args:
        title: Of the document.
        content: What stands in it.
        num_columns: Of its widest table.
        first: Id of what a reader may skip to.
        refresh_s: Seconds after which a browser loads it again; never when None.
    """
    style, script = (_text_of(name) for name in ("style.css", "page.js"))
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
    main = tag(
        "main",
        Html("\n"),
        join(content),
        id="main",
        style=f"--num-runs: {num_columns}",
    )
    skip = tag("a", "Skip to the contents", href=f"#{first}", class_="skip")
    body = tag("body", skip, Html("\n"), main, Html(f"\n<script>{script}</script>"))
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n{body}\n</html>\n'


def content_policy(script: str) -> str:
    """Return what a page says itself may run in it, should our escaping ever fail: one script, told by its SHA-256."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'; "
        "form-action 'none'"
    )


def _text_of(name: str) -> str:
    return resources.files("paratune.report").joinpath(name).read_text(encoding="utf-8")


def _sections(report: Report, found: Contents) -> Iterator[tuple[str, str, Html]]:
    """Yield the id, the heading and the content of each section that has something to say."""
    several = len(report.runs) > 1
    if "verdicts" in found.tables:
        yield "verdicts", "Verdicts", table_html(found.tables["verdicts"])
    if "comparison" in found.tables:
        yield "comparison", "Comparison" if several else "Results", _comparison(report, found)
    if "runs" in found.tables:
        yield "runs", "Every run", table_html(found.tables["runs"])
    if report.certificates:
        yield "certificates", "Certificates", _titled(found, "certificate")
    if "baseline" in found.tables:
        yield "baseline", "Against the baseline", table_html(found.tables["baseline"])
    if report.seed_groups:
        yield "seeds", "Spread over seeds", _titled(found, "seeds")
    if found.loss:
        yield "loss", "Loss", page_figures.loss(found)
    if found.phases:
        yield "phases", "Where a step's time goes", page_figures.phases(found)
    if found.course:
        yield "course", COURSE, join(map(page_figures.figure, found.course))
    if any(has_profile(run) for run in found.report.runs):
        profiles = [_titled(found, kind) for kind in ("operators", "kernels")]
        yield "profile", "Under the profiler", join(profiles)
    yield "memory", "Memory", page_figures.memory(found)
    if not all(run.is_probe for run in found.report.runs):
        yield "quality", "Predictions", page_figures.quality(found)
    if any(found.tables_of(SLICES)):
        yield "slices", BY_SLICE, _titled(found, SLICES)
    if several:
        yield "settings", "Settings that differ", _settings(found)
    yield "machine", "Hardware and software", _machine(found)
    yield "reproduce", HEADING, join(reproduce_html(found.reproduce))
    yield "notes", "Notes", page_tables.notes(report)


def _comparison(report: Report, found: Contents) -> Html:
    text = (
        "Warm-up steps are left out of rates, phases and medians. Rates are totals over totals and count real tokens, "
        "without padding. A phase is the mean over ranks of its total, over the number of measured steps; the five sum "
        "to the mean step. Point at a cell, tap it, or move to it by arrow keys to see the run and the record that it "
        "came from."
    )
    table = table_html(found.tables["comparison"], signs=page_tables.run_keys(report))
    return join([table, tag("p", text, class_="caption")])


def _titled(found: Contents, kind: str) -> Html:
    return join(part for table in found.tables_of(kind) for part in (tag("h3", table.title), table_html(table)))


def _settings(found: Contents) -> Html:
    table = found.tables["settings"]
    if not table.lines:
        return join(tag("p", note) for note in table.notes)
    text = "Point at a value, or tap it, to see the line or the option that it came from."
    return join([table_html(table), tag("p", text, class_="caption")])


def _machine(found: Contents) -> Html:
    """Return hardware and versions; what is the same in all runs is shown once."""
    tables = [found.tables[key] for key in ("hardware", "software")]
    return tag("div", *(tag("section", tag("h3", table.title), table_html(table)) for table in tables), class_="beside")


def reproduce_html(parts: Sequence[Part]) -> Iterator[Html]:
    """Yield the table of facts, and the listings, which open on demand."""
    for part in parts:
        if isinstance(part, Table):
            yield table_html(part)
        elif isinstance(part, Listing):
            yield listing_html(part)


def section(key: str, heading: str, content: Html) -> Html:
    """Return a section of the page under its heading."""
    return tag(
        "section",
        tag("h2", heading, id=f"{key}-heading"),
        Html("\n"),
        content,
        id=key,
        aria_labelledby=f"{key}-heading",
    )


def _header(report: Report, sections: list[tuple[str, str, Html]]) -> Html:
    links = (tag("a", heading, href=f"#{key}") for key, heading, _ in sections)
    return tag(
        "header",
        tag("h1", report.title),
        tag("p", page_tables.subject(report), class_="lead"),
        tag("nav", *links, aria_label="Sections"),
        page_tables.verdict(report),
        page_tables.unfinished(report),
    )


def _footer(report: Report) -> Html:
    made = f"Made by paratune {__version__} from the records of {some_names([run.name for run in report.runs])}. "
    return tag(
        "footer",
        tag("p", escape(made), "Nothing was measured again: each cell names the run and the record it came from."),
    )
