"""A matrix of runs as a PDF."""

from paratune.report.paper import PaperSection, is_long, shortened, to_pdf
from paratune.report.sweep.content import sections_of
from paratune.report.sweep.export import made, subject, title
from paratune.report.sweep.outcomes import SweepReport


def sweep_pdf(report: SweepReport) -> bytes:
    """Return the report as a PDF; of a matrix of many runs, the first lines of its tables."""
    sections = [PaperSection(each.heading, each.parts) for each in sections_of(report)]
    if is_long(len(report.outcomes)):
        sections = [shortened(each) for each in sections]
    return to_pdf(title(report), [subject(report), made(report)], sections)
