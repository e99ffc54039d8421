"""A report of runs as a PDF."""

from collections.abc import Iterator

from paratune.report.canvas import Drawing
from paratune.report.contents import Contents
from paratune.report.course import HEADING as COURSE
from paratune.report.model import Report
from paratune.report.page_tables import shown_notes, subject
from paratune.report.paper import PaperSection, is_long, shortened, to_pdf
from paratune.report.reproduce import HEADING
from paratune.report.slice_tables import HEADING as BY_SLICE
from paratune.report.slice_tables import KIND as SLICES
from paratune.report.tabular import Table


def run_pdf(report: Report, found: Contents) -> bytes:
    """Return the report as a PDF; of many runs, the first tables of each kind, and the first lines of each."""
    lead = [subject(report)]
    if len(report.runs) > 1:
        lead.append(report.sameness.sentence)
    sections = list(_sections(report, found))
    if is_long(len(report.runs)):
        sections = [shortened(each) for each in sections]
    return to_pdf(report.title, lead, sections)


def _sections(report: Report, found: Contents) -> Iterator[PaperSection]:
    """Yield what the page has, in its order."""
    tables = found.tables
    for key in ("unfinished", "verdicts", "comparison", "runs"):
        if key in tables:
            yield PaperSection(tables[key].title, [tables[key]])
    if report.certificates:
        yield PaperSection("Certificates", list(found.tables_of("certificate")))
    if "baseline" in tables:
        yield PaperSection(tables["baseline"].title, [tables["baseline"]])
    if report.seed_groups:
        yield PaperSection("Spread over seeds", list(found.tables_of("seeds")))
    if found.loss:
        yield PaperSection("Loss", [*found.loss, *found.tables_of("losses")])
    if found.phases:
        yield PaperSection("Where a step's time goes", [*found.phases, tables["phases"]])
    if found.course:
        yield PaperSection(COURSE, found.course)
    if profiles := [*found.tables_of("operators"), *found.tables_of("kernels")]:
        yield PaperSection("Under the profiler", profiles)
    if found.memory:
        yield PaperSection("Memory", [*found.memory, tables["memory"]])
    predictions: list[Drawing | Table | str] = [*found.predictions.values(), *found.missing.values()]
    predictions += [*found.tables_of("errors"), *found.tables_of("confusion")]
    if predictions:
        yield PaperSection("Predictions", predictions)
    if slices := list(found.tables_of(SLICES)):
        yield PaperSection(BY_SLICE, slices)
    if "settings" in tables:
        yield PaperSection(tables["settings"].title, [tables["settings"]])
    yield PaperSection("Hardware and software", [tables["hardware"], tables["software"]])
    yield PaperSection("Notes", shown_notes(report))
    yield PaperSection(HEADING, found.reproduce)
