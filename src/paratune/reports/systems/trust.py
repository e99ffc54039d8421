"""Evidence for the runs of a matrix: certificates, and unreadable records."""

from collections.abc import Iterator

from paratune.records.certificate import COLUMNS
from paratune.reports.runs.certificates import find_certificates
from paratune.reports.systems.model import Systems
from paratune.reports.tables.table import Column, Table, TableCell


def certificate_table(systems: Systems) -> Iterator[Table]:
    """Yield the table of certificates next to the runs, with a line for each strategy."""
    runs = [run for member in systems.measured for run in member.runs]
    certificates, notes = find_certificates(runs, ())
    if not certificates and not notes:
        return
    columns = (*(Column(name.capitalize(), name, is_text=True) for name in COLUMNS), Column("Runs", is_text=True))
    lines = tuple(
        (
            *(TableCell(text, runs=member.runs, source=str(member.path)) for text in row),
            TableCell(member.run_names(len(runs)), runs=member.runs),
        )
        for member in certificates
        for row in member.rows
    )
    remarks = [f"{member.how}." for member in certificates] + [
        reason for member in certificates for reason in member.reasons
    ]
    yield Table(
        "certificates", "Certificates: compared with one process", columns, lines, (*dict.fromkeys(remarks), *notes)
    )


def unreadable(systems: Systems) -> Iterator[Table]:
    """Yield the table of finished runs with unreadable records, which other tables leave out."""
    broken = [
        cell_run for cell_run in systems.cell_runs if cell_run.cell.state == "finished" and cell_run.record is None
    ]
    if broken:
        columns = (Column("run", is_text=True), Column("why", is_text=True))
        lines = tuple((TableCell(cell_run.cell.name), TableCell(cell_run.reason or "")) for cell_run in broken)
        title = f"Records that cannot be read: {len(broken)} of {len(systems.cell_runs)}"
        yield Table("unreadable", title, columns, lines)
