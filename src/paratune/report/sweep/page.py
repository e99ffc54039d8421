"""A matrix of runs as one HTML page that needs nothing else."""

from paratune import __version__
from paratune.report.page import page, section
from paratune.report.page_tables import head_row, scroll
from paratune.report.sweep.export import subject, title
from paratune.report.sweep.outcomes import SweepReport
from paratune.report.sweep.tables import Table, runs, tables
from paratune.report.text import Html, join, tag
from paratune.units import NOT_AVAILABLE


def to_html(report: SweepReport) -> str:
    """Return the whole page."""
    shown = [*tables(report), runs(report)]
    main, *groups = [table for table in shown if table.key not in ("missing", "runs")]
    sections = [("chosen", main.title, _content(main))]
    heading = "All candidates" if report.record.select_per else "Candidates"
    inside = join(part for table in groups for part in (tag("h3", table.title), _content(table)))
    sections.append(("candidates", heading, inside))
    sections += [(table.key, table.title, _content(table)) for table in shown if table.key in ("missing", "runs")]
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


def _content(table: Table) -> Html:
    rows = [
        tag(
            "tr",
            *(_cell(table, at, text, is_marked=position in table.marked) for at, text in enumerate(row)),
        )
        for position, row in enumerate(table.rows)
    ]
    kind = "text" if table.num_labels == len(table.header) else "figures"
    head = _head(table) if kind == "figures" else head_row(table.header)
    notes = [tag("p", note, class_="caption") for note in table.notes]
    return join([scroll(tag("table", head, tag("tbody", join(rows)), class_=kind), table.title), *notes])


def _head(table: Table) -> Html:
    # Columns are at least as wide as the words of their names.
    sides = ("overflow-wrap: break-word; text-align: left", "overflow-wrap: break-word")
    names = (tag("th", name, scope="col", style=sides[at >= table.num_labels]) for at, name in enumerate(table.header))
    return tag("thead", tag("tr", *names))


def _cell(table: Table, at: int, text: str, *, is_marked: bool) -> Html:
    shown = tag("strong", text) if is_marked else text
    if at == 0:
        return tag("th", shown, scope="row")
    if at < table.num_labels:
        return tag("td", shown, style="text-align: left")
    return tag("td", shown, class_="na" if text == NOT_AVAILABLE else None)


def _footer(report: SweepReport) -> Html:
    made = f"Made by paratune {__version__} from sweep.json and the records of the runs in {report.folder}. "
    return tag("footer", tag("p", made, "Nothing was measured again."))
