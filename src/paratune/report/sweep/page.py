"""A matrix of runs as one HTML page that needs nothing else."""

from collections.abc import Iterator

from paratune import __version__
from paratune.base.units import counted
from paratune.report.listing import Listing, listing_html
from paratune.report.page import page, section
from paratune.report.page_figures import figure
from paratune.report.section import ReportSection
from paratune.report.sweep.content import sections_of
from paratune.report.sweep.export import made, subject, title
from paratune.report.sweep.outcomes import SweepReport
from paratune.report.tabular import Table
from paratune.report.tabular_page import table_html
from paratune.report.text import Html, join, tag


def to_html(report: SweepReport) -> str:
    """Return the whole page."""
    found = sections_of(report)
    content = [(each.key, each.heading, join(_parts(each))) for each in found]
    widest = max(len(table.columns) for each in found for table in each.tables)
    whole = [_header(report, content), *(section(*each) for each in content), _footer(report)]
    return page(title(report), whole, num_columns=min(widest, 9), first=content[0][0])


def _parts(found: ReportSection) -> Iterator[Html]:
    """Yield tables, each under its title unless that is the heading of the section, and figures."""
    for part in found.parts:
        if isinstance(part, Table):
            if part.title != found.heading:
                yield tag("h3", part.title)
            yield table_html(part)
        elif isinstance(part, Listing):
            yield listing_html(part)
        else:
            yield tag("h3", part.title)
            yield figure(part)


def _header(report: SweepReport, sections: list[tuple[str, str, Html]]) -> Html:
    missing = len(report.outcomes) - report.num_finished
    have = "has" if missing == 1 else "have"
    warning = tag(
        "p", f"{missing} of {counted(len(report.outcomes), 'run')} {have} no results: see Runs that are missing."
    )
    return tag(
        "header",
        tag("h1", title(report)),
        tag("p", subject(report), class_="lead"),
        tag("p", made(report), class_="caption"),
        tag("nav", *(tag("a", heading, href=f"#{key}") for key, heading, _ in sections), aria_label="Sections"),
        tag("div", warning, class_="verdict warn", role="note") if missing else None,
    )


def _footer(report: SweepReport) -> Html:
    made = f"Made by paratune {__version__} from sweep.json and the records of the runs in {report.folder}. "
    return tag("footer", tag("p", made, "Nothing was measured again."))
