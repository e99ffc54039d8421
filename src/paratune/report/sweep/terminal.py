"""The tables of a matrix in a terminal."""

from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, RenderResult

from paratune.report.sweep.content import sections_of
from paratune.report.sweep.outcomes import SweepReport
from paratune.report.tabular import Table, TableCell
from paratune.report.tabular_terminal import rich_table
from paratune.report.text import some_names


@dataclass(frozen=True)
class TerminalSweep:
    """A matrix that rich can print; all texts of records are taken literally, never as markup."""

    report: SweepReport

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in (table for section in sections_of(self.report) if section.is_short for table in section.tables):
            yield from rich_table(by_reason(table) if table.key == "missing" else table, options.max_width)


def terminal_sweep(report: SweepReport) -> TerminalSweep:
    """Return the tables as something that `rich.console.Console.print` takes."""
    return TerminalSweep(report)


def by_reason(table: Table) -> Table:
    """Return the table of missing runs with a line for each reason; the report names all runs of it."""
    names: dict[str, list[str]] = {}
    for name, reason in table.rows:
        names.setdefault(reason, []).append(name)
    lines = tuple((TableCell(some_names(runs, 3)), TableCell(reason)) for reason, runs in names.items())
    return replace(table, lines=lines)
