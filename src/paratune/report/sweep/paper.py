"""A matrix of runs as a PDF."""

from dataclasses import replace

from paratune.report.paper import PaperSection, to_pdf
from paratune.report.section import Part
from paratune.report.sweep.content import sections_of
from paratune.report.sweep.export import subject, title
from paratune.report.sweep.outcomes import SweepReport
from paratune.report.tabular import Table

MANY_RUNS = 200
"""From so many runs on, tables of the paper are cut: they would be dozens of pages, and take most of the time."""
MAX_LINES = 12


def sweep_pdf(report: SweepReport) -> bytes:
    """Return the report as a PDF; of a matrix of many runs, the first lines of its tables."""
    is_cut = len(report.outcomes) >= MANY_RUNS
    sections = [
        PaperSection(each.heading, tuple(_cut(part) if is_cut else part for part in each.parts))
        for each in sections_of(report)
    ]
    return to_pdf(title(report), [subject(report)], sections)


def _cut(part: Part) -> Part:
    """Return the first lines of a table, with a note of where the others are; a figure as it is."""
    if not isinstance(part, Table) or len(part.lines) <= MAX_LINES:
        return part
    note = f"{MAX_LINES} of {len(part.lines):,} lines; index.html and tables/{part.key}.csv have all of them."
    marked = tuple(at for at in part.marked if at < MAX_LINES)
    groups = tuple(each for each in part.groups if each[0] < MAX_LINES)
    return replace(part, lines=part.lines[:MAX_LINES], notes=(note, *part.notes), marked=marked, groups=groups)
