"""What says whether runs can be believed: certificates beside them, and records that cannot be read."""

from collections.abc import Iterator

from paratune.records.certificate import COLUMNS
from paratune.report.certificates import find_certificates
from paratune.report.systems.model import Systems
from paratune.report.tabular import Column, Table, TableCell


def certificate_table(systems: Systems) -> Iterator[Table]:
    """Yield the table of certificates that lie beside the runs, a line a strategy."""
    runs = [run for one in systems.measured for run in one.runs]
    found, notes = find_certificates(runs, ())
    if not found and not notes:
        return
    columns = (*(Column(name.capitalize(), name, is_text=True) for name in COLUMNS), Column("Runs", is_text=True))
    lines = tuple(
        (
            *(TableCell(text, runs=one.runs, source=str(one.path)) for text in row),
            TableCell(one.whose(len(runs)), runs=one.runs),
        )
        for one in found
        for row in one.rows
    )
    said = [f"{one.how}." for one in found] + [reason for one in found for reason in one.reasons]
    yield Table(
        "certificates", "Certificates: compared with one process", columns, lines, (*dict.fromkeys(said), *notes)
    )


def unreadable(systems: Systems) -> Iterator[Table]:
    """Yield the table of finished runs whose records cannot be read, and so are in no table of systems."""
    broken = [each for each in systems.cell_runs if each.cell.state == "finished" and each.record is None]
    if broken:
        columns = (Column("run", is_text=True), Column("why", is_text=True))
        lines = tuple((TableCell(each.cell.name), TableCell(each.reason or "")) for each in broken)
        title = f"Records that cannot be read: {len(broken)} of {len(systems.cell_runs)}"
        yield Table("unreadable", title, columns, lines)
