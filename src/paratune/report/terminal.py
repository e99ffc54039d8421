"""The comparison in a terminal: as many runs beside each other as fit, the others below; of many each is a line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from paratune.base.text import plain
from paratune.report.baseline import Against
from paratune.report.model import Report
from paratune.report.profile_tables import has_profile, profile_tables
from paratune.report.rows import ReportRow
from paratune.report.run_tables import MAX_RUNS, every_run
from paratune.report.run_verdicts import tables_of_verdicts
from paratune.report.tabular import Table as TableOfReport
from paratune.report.tabular_terminal import rich_table
from paratune.report.text import shorten, shorten_all

_NAME_WIDTH = 28
_GAP = 2
_MAX_OPERATORS = 8
"""Of each run; files have more."""


@dataclass(frozen=True)
class TerminalReport:
    """A report that rich can print; all texts of runs are taken literally, never as markup."""

    report: Report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in tables_of_verdicts(self.report):
            yield from rich_table(table, options.max_width)
        if len(self.report.runs) > MAX_RUNS:
            yield from rich_table(every_run(self.report), options.max_width)
        else:
            yield from self._comparison(options.max_width)
            for run in filter(has_profile, self.report.runs):
                for profile in profile_tables(run, "operators"):
                    yield from rich_table(_first_lines(profile), options.max_width)
        if self.report.against is not None:
            yield from _changes(self.report.against)
        yield from _remarks(self.report)

    def _comparison(self, width: int) -> Iterator[Table | Text]:
        rows = self.report.shown_rows
        first = max((len(row.label) for row in rows), default=0) + 2
        for columns in _blocks(self.report, rows, width - first):
            # A row that says nothing of these runs only lengthens the table.
            known = [row for row in rows if any(row.cells[position].says_something for position in columns)]
            yield _table(self.report, known, columns)
            yield Text()


def _first_lines(table: TableOfReport) -> TableOfReport:
    """Return a table of a profile as short as a terminal needs it; names of kernels are cut."""
    chosen = table.lines[:_MAX_OPERATORS]
    lines = ((replace(name, text=shorten(name.text, 2 * _NAME_WIDTH)), *rest) for name, *rest in chosen)
    return replace(table, lines=tuple(lines))


def terminal_table(report: Report) -> TerminalReport:
    """Return the comparison table as something that `rich.console.Console.print` takes."""
    return TerminalReport(report)


def _blocks(report: Report, rows: Sequence[ReportRow], room: int) -> Iterator[range]:
    """Yield the positions of runs that fit beside each other."""
    start, used = 0, 0
    for position, name in enumerate(_names(report)):
        widest = max((len(plain(row.cells[position].text)) for row in rows), default=0)
        width = max(widest, len(name)) + _GAP
        if used and used + width > room:
            yield range(start, position)
            start, used = position, 0
        used += width
    yield range(start, len(report.runs))


def _names(report: Report) -> list[str]:
    return shorten_all([run.name for run in report.runs], _NAME_WIDTH)


def _table(report: Report, rows: Sequence[ReportRow], columns: range) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    names = _names(report)
    for position in columns:
        table.add_column(Text(names[position]), justify="right", overflow="fold")
    group = None
    for row in rows:
        if row.group != group:
            table.add_row(Text(row.group, style="bold dim"), style=None)
            group = row.group
        table.add_row(Text(f"  {plain(row.label)}"), *(Text(plain(row.cells[position].text)) for position in columns))
    return table


def _changes(found: Against) -> Iterator[Table | Text]:
    """Yield a table for each run: the baseline's figure, its own, the change."""
    for position, first in enumerate(found.rows[0].changes if found.rows else ()):
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        table.add_column("", no_wrap=True)
        for name in (found.baseline, first.run, "change"):
            table.add_column(Text(shorten(name, _NAME_WIDTH)), justify="right", overflow="fold")
        group = None
        for row in found.rows:
            if row.group != group:
                table.add_row(Text(row.group, style="bold dim"))
                group = row.group
            one = row.changes[position]
            style = "" if one.better is None else "green" if one.better else "red"
            cells = Text(plain(row.figure)), Text(plain(one.figure)), Text(one.text, style=style)
            table.add_row(Text(f"  {plain(row.label)}"), *cells)
        yield table
        yield Text()


def _remarks(report: Report) -> Iterator[Text]:
    for footnote in report.footnotes:
        yield Text(footnote, style="dim")
    if len(report.runs) > 1:
        style = "bold yellow" if report.sameness.verdict in {"different", "unknown"} else "green"
        yield Text(plain(report.sameness.sentence), style=style)
    for one in report.certificates:
        style = "green" if one.verdict == "holds" else "bold yellow"
        yield Text(plain(f"Certificate ({one.whose(len(report.runs))}): {one.sentence} {one.path}"), style=style)
    for run in report.unfinished:
        yield Text(f"Not shown: {plain(run.name)} ({plain(run.folder)}): {plain(run.reason)}", style="yellow")
    for note in report.notes:
        yield Text(plain(note), style="dim")
