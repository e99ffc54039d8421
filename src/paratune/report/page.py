"""The report as one HTML page that needs nothing else: no script, no request, no font from elsewhere."""

from collections.abc import Iterator, Sequence
from importlib import resources

from paratune import __version__
from paratune.report import page_figures, page_tables
from paratune.report.model import GENERATOR, Report
from paratune.report.text import Html, escape, join, tag

CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""The page says itself that nothing in it may run or load, should our escaping ever fail."""


def to_html(report: Report) -> str:
    """Return the whole page."""
    sections = list(_sections(report))
    content = [_header(report, sections), *(section(*each) for each in sections), _footer(report)]
    return page(report.title, content, num_columns=len(report.runs), first="comparison")


def page(title: str, content: Sequence[Html], *, num_columns: int, first: str) -> str:
    """Return a page that needs nothing else.

    Args:
        title: Of the document.
        content: What stands in it.
        num_columns: Of its widest table.
        first: Id of what a reader may skip to.
    """
    style = resources.files("paratune.report").joinpath("style.css").read_text(encoding="utf-8")
    head = join(
        [
            Html('<meta charset="utf-8">'),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_POLICY}">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html(f'<meta name="generator" content="{GENERATOR}">'),
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
    body = tag("body", tag("a", "Skip to the table", href=f"#{first}", class_="skip"), Html("\n"), main)
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n{body}\n</html>\n'


def _sections(report: Report) -> Iterator[tuple[str, str, Html]]:
    """Yield the id, the heading and the content of each section that has something to say."""
    several = len(report.runs) > 1
    yield "comparison", "Comparison" if several else "Results", page_tables.comparison(report)
    if report.certificates:
        yield "certificates", "Certificates", page_tables.certificates(report)
    if report.against is not None:
        yield "baseline", "Against the baseline", page_tables.changes(report.against)
    if report.seed_groups:
        yield "seeds", "Spread over seeds", page_tables.seeds(report)
    yield "loss", "Loss", page_figures.loss(report)
    yield "phases", "Where a step's time goes", page_figures.phases(report)
    yield "memory", "Memory", page_figures.memory(report)
    yield "quality", "Predictions", page_figures.quality(report)
    if several:
        yield "settings", "Settings that differ", page_tables.settings(report)
    yield "machine", "Hardware and software", page_tables.machine(report)
    yield "notes", "Notes", page_tables.notes(report)


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
    made = f"Made by paratune {__version__} from the records of {', '.join(run.name for run in report.runs)}. "
    return tag(
        "footer",
        tag("p", escape(made), "Nothing was measured again: each cell names the run and the record it came from."),
    )
