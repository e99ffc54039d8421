"""The state of each cell of a matrix, its changed settings, and the cells that run now."""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from paratune import __version__, hardware, records
from paratune.base.grouping import grouped
from paratune.base.secrets import hide_in_words, hide_secrets
from paratune.base.text import listing
from paratune.base.units import counted
from paratune.config.layers import read_text
from paratune.config.plain import differences, one_line
from paratune.errors import CheckpointError
from paratune.hardware.environment import UNSET
from paratune.records.run_folder import is_in_use
from paratune.records.sweep import (
    SWEEP_FILE,
    Axis,
    CellRecord,
    SweepRecord,
    cell_run_folder,
    compared_settings,
    holds_sweep,
    read_sweep,
    trained_with,
)
from paratune.sweeps.axes import ENV
from paratune.sweeps.cell import IN_USE, Cell, teachers_first
from paratune.sweeps.matrix import Matrix


@dataclass(frozen=True)
class SweepPlan:
    """All cells, and the record of the matrix."""

    cells: tuple[Cell, ...]
    """In the order of the file."""
    record: SweepRecord

    def in_order(self) -> list[Cell]:
        """Return the cells in the order in which they run."""
        at = {name: number for number, name in enumerate(self.record.order)}
        return sorted(self.cells, key=lambda cell: at[cell.name])

    def to_train(self, names: Collection[str], *, retry_failed: bool) -> list[Cell]:
        """Return the cells of these names that are to be trained, in their order."""
        return [cell for cell in self.in_order() if cell.name in names and cell.runs(retry_failed=retry_failed)]

    def counts(self, names: Collection[str]) -> str:
        """Return the number of the runs of these names in each state, in words."""
        states = [cell.shown_state for cell in self.cells if cell.name in names]
        num_runs = {state: states.count(state) for state in dict.fromkeys(states)}
        return f"{counted(len(states), 'run')} ({', '.join(f'{count} {state}' for state, count in num_runs.items())})"


def plan_of(matrix: Matrix, cells: Sequence[Cell], command: Sequence[str]) -> SweepPlan:
    """Compare valid cells with the content of their folder, and refuse a folder of something else; write nothing."""
    before = _before(matrix.folder)
    old_cells = {cell.name: cell for cell in before.cells} if before else {}
    cells = tuple(_with_changed_teachers([_planned(matrix, cell, old_cells.get(cell.name)) for cell in cells]))
    names = {cell.name for cell in cells}
    past = [name for name in dict.fromkeys([*before.past, *old_cells] if before else ()) if name not in names]
    return SweepPlan(
        cells,
        replace(
            matrix.record,
            created=before.created if before else now(),
            matrix_text=hide_secrets(read_text(matrix.source)),
            command=tuple(hide_in_words(command)),
            directory=str(Path.cwd()),
            version=__version__,
            code=hardware.code_version(),
            cells=tuple(cell.record for cell in cells),
            past=tuple(name for name in past if cell_run_folder(matrix.folder, name).exists()),
            order=tuple(cell.name for cell in teachers_first(in_order(cells, matrix.name, matrix.record.axes))),
            listed=tuple(name for name in before.listed if name in names) if before else (),
            looks=before.looks if before else (),
            rounds=before.rounds if before else None,
        ),
    )


def in_order(cells: Sequence[Cell], matrix: str, axes: Sequence[Axis]) -> tuple[Cell, ...]:
    """Return cells in the order in which they run: one block after the other, each with one run of every configuration.

    Each block has its own random order, so that a drift of the machine, as it warms or others use it, affects all
    configurations alike. A place in it follows from the names of matrix and run alone: another call has the same order,
    and a new value of an axis leaves the order of the others unchanged.
    """
    draws = {cell.name: hashlib.sha256(f"{matrix}/{cell.name}".encode()).hexdigest() for cell in cells}
    return tuple(sorted(cells, key=lambda cell: (block_of(cell.record, axes), draws[cell.name])))


def block_of(cell: CellRecord, axes: Sequence[Axis]) -> tuple[int, ...]:
    """Return the number of the repeat and of each seed: runs with the same ones are a block."""
    return (cell.repeat, *(list(axis.values).index(cell.values[axis.label]) for axis in axes if axis.is_seed))


def now() -> str:
    """Return the present time in the format of records."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def check_unchanged(matrix: Matrix, cells: Sequence[Cell]) -> None:
    """Refuse to train runs again that the matrix has changed since.

    Raises:
        CheckpointError: Names all such runs, and what differs.
    """
    by_differences = grouped((cell.changed, cell.name) for cell in cells if cell.changed)
    if not by_differences:
        return
    lines = [f"{matrix.folder} has runs that {matrix.source} has changed since:"]
    for changes, names in by_differences.items():
        lines += [f"  {listing(names, 3)}:", *(f"    {change}" for change in changes)]
    lines += [
        "nothing was changed: change name: to start another matrix, or use --overwrite to delete these runs and train "
        "them again"
    ]
    raise CheckpointError("\n".join(lines), code="sweep.changed")


def _before(folder: Path) -> SweepRecord | None:
    """Return the record of the matrix in a folder; None where the folder is free."""
    if holds_sweep(folder):
        return read_sweep(folder)
    is_dir = folder.is_dir()
    if (folder.exists() and not is_dir) or (is_dir and any(path.name[0] != "." for path in folder.iterdir())):
        found = f"a folder with files and no matrix of runs ({SWEEP_FILE} is missing)" if is_dir else "a file"
        message = f"{folder} is {found}; nothing in it was changed: change name: or folder: of the matrix"
        raise CheckpointError(message, code="run.folder_taken", folder=folder)
    return None


def _planned(matrix: Matrix, cell: Cell, old: CellRecord | None) -> Cell:
    """Return a cell with its state, from the record of the matrix and the run in its folder."""
    record = replace(cell.described(), attempts=old.attempts if old else ())
    before = old if old is not None and old.fingerprint == record.fingerprint else None
    folder = cell_run_folder(matrix.folder, cell.name)
    is_begun, in_use = (folder / records.RUN_FILE).exists(), is_in_use(folder)
    changed = tuple(_changes(folder, cell)) if is_begun else ()
    if not changed and records.is_finished(folder):  # also a run of another machine that is impossible on this one
        record = replace(record, state="finished")
    elif cell.impossible is not None:
        record, changed = replace(record, state="skipped", reason=cell.impossible), ()
    elif changed:
        pass
    elif before is not None and before.state == "failed" and not in_use:
        record = replace(record, state="failed", reason=before.reason, exit_code=before.exit_code)
    elif is_begun and in_use:
        record = replace(record, state="interrupted", reason=IN_USE)
    elif is_begun:
        # A run that another program started, such as a job of a cluster: no sweep has recorded how it ended.
        failure = None if record.attempts else records.failure_of(folder)
        reason = before.reason if before and before.reason != IN_USE else None  # the process that trained it has ended
        reason = failure or reason or "interrupted before its end"
        record = replace(record, state="interrupted" if failure is None else "failed", reason=reason)
    return replace(cell, record=record, changed=changed, is_begun=is_begun)


def _with_changed_teachers(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the cells; a run that was trained with a teacher whose settings have changed has changed, too."""
    changed = {cell.name for cell in cells if cell.changed}
    while more := {cell.name for cell in cells if changed & {*cell.record.teachers}} - changed:
        changed |= more
    for cell in cells:
        old = next((name for name in cell.record.teachers if name in changed), None)
        if old is None or not cell.is_begun or cell.changed or cell.record.state == "skipped":
            yield cell
        else:
            record = replace(cell.record, state="pending", reason=None)
            yield replace(cell, record=record, changed=(f"distil.teacher: {old} has other settings now",))


def _changes(folder: Path, cell: Cell) -> Iterator[str]:
    assert cell.loaded is not None
    config, num_processes, variables = trained_with(folder, cell.record.environment)
    before = {**compared_settings(config), "nproc": num_processes}
    after = {**compared_settings(cell.loaded.values), "nproc": cell.record.num_processes}
    for key, old, new in differences(before, after):
        yield f"{key}: {one_line(old)} then, {one_line(new)} now"
    for name, text in variables.items():
        old, new = (UNSET if value is None else value for value in (text, cell.record.environment[name]))
        if old != new:
            yield f"{ENV}.{name}: {old} then, {new} now"
