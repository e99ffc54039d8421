"""Reads the runs of a matrix; a damaged record does not affect the other runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paratune import records
from paratune.base.text import plain
from paratune.errors import CheckpointError
from paratune.records.sweep import CellRecord
from paratune.reports.runs.read import RunRecord, read_record
from paratune.reports.systems.measures import check_numbers


@dataclass(frozen=True)
class CellRun:
    """One run of a matrix."""

    cell: CellRecord
    folder: Path
    record: RunRecord | None
    """Record without events; None for an unfinished or unreadable run."""
    reason: str | None
    """Reason why there is no record."""


def read_cell_runs(cells: Sequence[CellRecord], folders: Sequence[Path]) -> tuple[CellRun, ...]:
    """Read the finished runs of a matrix, without their events.

    Args:
        cells: Of its record.
        folders: Of their runs.
    """
    return tuple(_read(cell, folder) for cell, folder in zip(cells, folders, strict=True))


def _read(cell: CellRecord, folder: Path) -> CellRun:
    if cell.state != "finished":
        state = "not trained yet" if cell.state == "pending" else cell.state
        return CellRun(cell, folder, None, f"{state}: {cell.reason}" if cell.reason else state)
    if not records.is_finished(folder):
        return CellRun(cell, folder, None, f"{records.SUMMARY_FILE} is missing: the run was not finished, or moved")
    try:
        record = read_record(folder, cell.name)
        check_numbers(record)
        return CellRun(cell, folder, record, None)
    except CheckpointError as error:
        return CellRun(cell, folder, None, plain(error))
