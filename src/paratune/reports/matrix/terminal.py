"""The tables of a matrix in a terminal."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from paratune.base.text import plain
from paratune.reports.document import StatementBox
from paratune.reports.matrix.document import matrix_sections
from paratune.reports.matrix.outcomes import SweepReport
from paratune.reports.tables.table import Table, TableCell
from paratune.reports.tables.terminal import rich_table
from paratune.reports.text import some_names


@dataclass(frozen=True)
class TerminalSweep:
    """A matrix that rich can print; texts of records are printed literally, never as markup."""

    report: SweepReport

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sections = matrix_sections(self.report)
        for box in (box for section in sections for box in section.boxes if box.has_signs):
            yield from _statements(box)
        for section in (section for section in sections if section.is_short):
            for table in section.tables:
                yield from rich_table(by_reason(table) if table.key == "missing" else table, options.max_width)


def _statements(box: StatementBox) -> Iterator[Text]:
    """Yield a line for each statement, and an empty line."""
    if box.title:
        yield Text(box.title, style="bold")
    for statement in box.statements:
        style = {True: "green", False: "bold yellow", None: "dim"}[statement.is_good]
        yield (
            Text(f"{statement.sign} ", style=style)
            .append(f"{plain(statement.label)}: ", style="bold")
            .append(plain(statement.text), style="not bold")
        )
    yield Text()


def terminal_sweep(report: SweepReport) -> TerminalSweep:
    """Return the tables as an object that `rich.console.Console.print` prints."""
    return TerminalSweep(report)


def by_reason(table: Table) -> Table:
    """Return the table of missing runs with a line for each reason; the report names all runs."""
    names: dict[str, list[str]] = {}
    for name, reason in table.rows:
        names.setdefault(reason, []).append(name)
    lines = tuple((TableCell(some_names(runs, 3)), TableCell(reason)) for reason, runs in names.items())
    return replace(table, lines=lines)
