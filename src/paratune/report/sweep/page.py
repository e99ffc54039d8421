"""A matrix of runs as one HTML page that needs nothing else."""

from paratune import __version__
from paratune.report.page import page, section
from paratune.report.sweep.export import subject, title
from paratune.report.sweep.outcomes import SweepReport
from paratune.report.sweep.tables import runs, tables
from paratune.report.tabular_page import table_html
from paratune.report.text import Html, join, tag


def to_html(report: SweepReport) -> str:
    """Return the whole page."""
    shown = [*tables(report), runs(report)]
    main, *groups = [table for table in shown if table.key not in ("missing", "runs")]
    sections = [("chosen", main.title, table_html(main))]
    heading = "All candidates" if report.record.select_per else "Candidates"
    inside = join(part for table in groups for part in (tag("h3", table.title), table_html(table)))
    sections.append(("candidates", heading, inside))
    sections += [(table.key, table.title, table_html(table)) for table in shown if table.key in ("missing", "runs")]
    widest = max(len(table.header) for table in shown)
    content = [_header(report, sections), *(section(*each) for each in sections), _footer(report)]
    return page(title(report), content, num_columns=min(widest, 9), first="chosen")


def _header(report: SweepReport, sections: list[tuple[str, str, Html]]) -> Html:
    missing = len(report.outcomes) - report.num_finished
    warning = tag("p", f"{missing} of {len(report.outcomes)} runs have no scores: see Without scores.")
    return tag(
        "header",
        tag("h1", title(report)),
        tag("p", subject(report), class_="lead"),
        tag("nav", *(tag("a", heading, href=f"#{key}") for key, heading, _ in sections), aria_label="Sections"),
        tag("div", warning, class_="verdict warn", role="note") if missing else None,
    )


def _footer(report: SweepReport) -> Html:
    made = f"Made by paratune {__version__} from sweep.json and the records of the runs in {report.folder}. "
    return tag("footer", tag("p", made, "Nothing was measured again."))
