"""Evidence for the runs of a matrix: certificates, and unreadable records."""

from collections.abc import Iterator

from paratune.records.certificate import COLUMNS
from paratune.reports.runs.certificates import find_certificates
from paratune.reports.systems.model import Systems
from paratune.reports.tables.table import Heading, Table, TableCell, make_table


def certificate_table(systems: Systems) -> Iterator[Table]:
    """Yield the table of certificates next to the runs, with a line for each strategy."""
    runs = [run for member in systems.measured for run in member.runs]
    certificates, notes = find_certificates(runs, ())
    if not certificates and not notes:
        return
    rows = [
        (
            *(TableCell(text, runs=member.runs, source=str(member.path)) for text in row),
            TableCell(member.run_names(len(runs)), runs=member.runs),
        )
        for member in certificates
        for row in member.rows
    ]
    columns: list[Heading] = [*((name.capitalize(), name) for name in COLUMNS), "Runs"]
    remarks = [f"{member.how}." for member in certificates]
    remarks += [reason for member in certificates for reason in member.reasons]
    title, notes = "Certificates: compared with one process", (*dict.fromkeys(remarks), *notes)
    yield make_table("certificates", title, columns, rows, len(columns), notes)


def unreadable(systems: Systems) -> Iterator[Table]:
    """Yield the table of finished runs with unreadable records, which other tables leave out."""
    broken = [
        cell_run for cell_run in systems.cell_runs if cell_run.cell.state == "finished" and cell_run.record is None
    ]
    if broken:
        rows = ((cell_run.cell.name, cell_run.reason or "") for cell_run in broken)
        title = f"Records that cannot be read: {len(broken)} of {len(systems.cell_runs)}"
        yield make_table("unreadable", title, ("run", "why"), rows, 2)
