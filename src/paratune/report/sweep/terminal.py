"""The tables of a matrix in a terminal."""

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult

from paratune.report.sweep.content import sections_of
from paratune.report.sweep.outcomes import SweepReport
from paratune.report.tabular_terminal import rich_table


@dataclass(frozen=True)
class TerminalSweep:
    """A matrix that rich can print; all texts of records are taken literally, never as markup."""

    report: SweepReport

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in (table for section in sections_of(self.report) if section.is_short for table in section.tables):
            yield from rich_table(table, options.max_width)


def terminal_sweep(report: SweepReport) -> TerminalSweep:
    """Return the tables as something that `rich.console.Console.print` takes."""
    return TerminalSweep(report)
