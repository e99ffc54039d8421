"""The tables of a matrix in a terminal."""

from collections.abc import Iterator
from dataclasses import replace

from rich.text import Text

from paratune.base.grouping import grouped
from paratune.base.text import plain
from paratune.reports.document import StatementBox
from paratune.reports.matrix.document import matrix_sections
from paratune.reports.matrix.outcomes import SweepReport
from paratune.reports.tables.table import Table, TableCell
from paratune.reports.tables.terminal import TerminalParts
from paratune.reports.text import some_names


def terminal_sweep(report: SweepReport) -> TerminalParts:
    """Return the conclusions and tables as an object that `rich.console.Console.print` prints."""
    sections = matrix_sections(report)
    boxes = [box for section in sections for box in section.boxes if box.has_signs]
    tables = [table for section in sections if section.is_short for table in section.tables]
    short = (by_reason(table) if table.key == "missing" else table for table in tables)
    return TerminalParts([*(text for box in boxes for text in _statements(box)), *short])


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


def by_reason(table: Table) -> Table:
    """Return the table of missing runs with a line for each reason; the report names all runs."""
    names = grouped((reason, name) for name, reason in table.rows)
    lines = tuple((TableCell(some_names(runs, 3)), TableCell(reason)) for reason, runs in names.items())
    return replace(table, lines=lines)
