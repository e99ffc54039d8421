"""The report of runs in a terminal."""

from collections.abc import Iterator
from dataclasses import replace

from rich.text import Text

from paratune.base.text import plain
from paratune.reports.run.model import Report
from paratune.reports.run.tables import MAX_RUNS, changes, comparison, every_run
from paratune.reports.runs.profile_tables import has_profile, profile_tables
from paratune.reports.systems.judging import verdict_table
from paratune.reports.tables.table import Table
from paratune.reports.tables.terminal import TerminalParts
from paratune.reports.text import shorten

_MAX_OPERATORS = 8
"""Operators of each run; the files have more."""
_KERNEL_WIDTH = 56


def terminal_table(report: Report) -> TerminalParts:
    """Return the report as an object that `rich.console.Console.print` prints."""
    return TerminalParts([*_tables(report), *_remarks(report)])


def _tables(report: Report) -> Iterator[Table]:
    yield from verdict_table(report.verdicts, report.verdict_notes)
    if len(report.runs) > MAX_RUNS:
        yield every_run(report)
    else:
        yield replace(comparison(report), title="")
        for run in filter(has_profile, report.runs):
            yield from map(_first_lines, profile_tables(run, "operators"))
    if report.against is not None:
        yield changes(report.against)


def _first_lines(table: Table) -> Table:
    """Return the first lines of a table of a profile, with shortened names of kernels."""
    lines = table.lines[:_MAX_OPERATORS]
    return replace(
        table, lines=tuple((replace(name, text=shorten(name.text, _KERNEL_WIDTH)), *cells) for name, *cells in lines)
    )


def _remarks(report: Report) -> Iterator[Text]:
    if len(report.runs) > 1:
        style = "bold yellow" if report.sameness.verdict in {"different", "unknown"} else "green"
        yield Text(plain(report.sameness.sentence), style=style)
    for certificate in report.certificates:
        style = "green" if certificate.verdict == "holds" else "bold yellow"
        runs = certificate.run_names(len(report.runs))
        yield Text(plain(f"Certificate ({runs}): {certificate.sentence} {certificate.path}"), style=style)
    for run in report.unfinished:
        yield Text(f"Not shown: {plain(run.name)} ({plain(run.folder)}): {plain(run.reason)}", style="yellow")
    for note in report.notes:
        yield Text(plain(note), style="dim")
