"""Compares the cells of a matrix with their folders, runs them, and lists their commands.

A run and a listed command write into the folder of the matrix, where `paratune sweep` and `paratune report` read its
record.
"""

import hashlib
import math
import re
import shlex
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paratune import __version__, hardware, records
from paratune.base import atomic
from paratune.base.grouping import grouped
from paratune.base.secrets import hide_in_words, hide_secrets
from paratune.base.text import listing, plain
from paratune.base.units import counted, utc_now
from paratune.config.layers import read_text
from paratune.config.load import show_text
from paratune.config.plain import differences, one_line
from paratune.errors import (
    EXIT_HUNG,
    EXIT_LAUNCH,
    EXIT_OK,
    EXIT_OUT_OF_MEMORY,
    EXIT_STOPPED,
    CheckpointError,
    os_error_as,
)
from paratune.hardware.environment import UNSET
from paratune.records.run_folder import is_in_use, locked_folder
from paratune.records.sweep import (
    CONFIGS_FOLDER,
    LOGS_FOLDER,
    SWEEP_FILE,
    Axis,
    CellRecord,
    State,
    SweepRecord,
    cell_run_folder,
    compared_settings,
    read_sweep,
    trained_with,
    write_sweep,
)
from paratune.sweeps.axes import ENV, for_a_run
from paratune.sweeps.cell import IN_USE, Cell, why_skipped
from paratune.sweeps.matrix import Matrix

WAIT_S = 120.0
"""Longest wait for a run that an earlier, killed sweep started: it saves a checkpoint and ends."""
_MAY_PASS = (EXIT_LAUNCH, EXIT_OUT_OF_MEMORY, EXIT_HUNG)
"""Exit codes with a cause outside the run: a killed or lost process, memory that others use, a hang."""
_MAX_REASON = 500

PROGRAM = "paratune"

Start = Callable[[Sequence[str], Path, Mapping[str, str | None]], int]
"""Function that runs `paratune ARGUMENTS` with its output appended to a file and with variables (None unsets one), and
returns the exit code."""


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

    def counts(self, names: Collection[str]) -> str:
        """Return the number of the runs of these names in each state, in words."""
        states = [cell.shown_state for cell in self.cells if cell.name in names]
        num_runs = {state: states.count(state) for state in dict.fromkeys(states)}
        return f"{counted(len(states), 'run')} ({', '.join(f'{count} {state}' for state, count in num_runs.items())})"

    def left_out(self, names: Collection[str]) -> list[str]:
        """Return lines on the combinations that are not trained: runs of these names, and those of exclude."""
        cells = [cell for cell in self.in_order() if cell.name in names]
        lines = [f"skipped: {reason}" for reason in why_skipped(cells)]
        total = math.prod(len(axis.values) for axis in self.record.axes)
        if num_excluded := total - sum(cell.record.repeat == 1 for cell in self.cells):
            lines.append(f"excluded: {num_excluded} of {total} combinations, by exclude:")
        return lines


def plan_of(matrix: Matrix, cells: Sequence[Cell], command: Sequence[str]) -> SweepPlan:
    """Compare valid cells with the content of their folder, and refuse a folder of something else; write nothing."""
    folder, is_dir, before = matrix.folder, matrix.folder.is_dir(), None
    if (folder / SWEEP_FILE).is_file():
        before = read_sweep(folder)
    elif (folder.exists() and not is_dir) or (is_dir and any(path.name[0] != "." for path in folder.iterdir())):
        found = f"a folder with files and no matrix of runs ({SWEEP_FILE} is missing)" if is_dir else "a file"
        message = f"{folder} is {found}; nothing in it was changed: change name: or folder: of the matrix"
        raise CheckpointError(message, code="output.foreign", folder=folder)
    old_cells = {cell.name: cell for cell in before.cells} if before else {}
    cells = [_planned(matrix, cell, old_cells.get(cell.name)) for cell in cells]
    cells = tuple(_with_changed_needs(folder, cells))
    names = {cell.name for cell in cells}
    past = [name for name in dict.fromkeys([*before.past, *old_cells] if before else ()) if name not in names]
    return SweepPlan(
        cells,
        replace(
            matrix.record,
            created=before.created if before else utc_now(),
            matrix_text=hide_secrets(read_text(matrix.source)),
            command=tuple(hide_in_words(command)),
            directory=str(Path.cwd()),
            version=__version__,
            code=hardware.code_version(),
            cells=tuple(cell.record for cell in cells),
            past=tuple(name for name in past if cell_run_folder(folder, name).exists()),
            order=tuple(cell.name for cell in in_order(cells, matrix.name, matrix.record.axes)),
            listed=tuple(name for name in before.listed if name in names) if before else (),
            looks=before.looks if before else (),
            rounds=before.rounds if before else None,
        ),
    )


def in_order(cells: Sequence[Cell], matrix: str, axes: Sequence[Axis]) -> tuple[Cell, ...]:
    """Return cells in the order in which they run: one block after the other, each with one run of every configuration.

    Each block has its own random order, so that a drift of the machine, as it warms or others use it, affects all
    configurations alike. A place in it follows from the names of matrix and run alone: another call has the same order,
    and a new value of an axis leaves the order of the others unchanged. A run comes before the first one that needs it.
    """
    draws = {cell.name: hashlib.sha256(f"{matrix}/{cell.name}".encode()).hexdigest() for cell in cells}
    by_name = {cell.name: cell for cell in cells}
    ordered: dict[str, Cell] = {}
    for cell in sorted(cells, key=lambda cell: (block_of(cell.record, axes), draws[cell.name])):
        waiting = [cell]
        while waiting:
            missing = (name for name in waiting[-1].record.needs if name in by_name and name not in ordered)
            if (name := next(missing, None)) is not None:
                waiting.append(by_name[name])
            else:
                last = waiting.pop()
                ordered.setdefault(last.name, last)
    return tuple(ordered.values())


def block_of(cell: CellRecord, axes: Sequence[Axis]) -> tuple[int, ...]:
    """Return the number of the repeat and of each seed: runs with the same ones are a block."""
    return (cell.repeat, *(list(axis.values).index(cell.values[axis.label]) for axis in axes if axis.is_seed))


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
    remedy = "change name: to start another matrix, or use --overwrite to delete these runs and train them again"
    raise CheckpointError("\n".join([*lines, f"nothing was changed: {remedy}"]), code="sweep.changed")


def _planned(matrix: Matrix, cell: Cell, old: CellRecord | None) -> Cell:
    """Return a cell with its state, from the record of the matrix and the run in its folder."""
    record = replace(cell.described(), attempts=old.attempts if old else ())
    before = old if old is not None and old.fingerprint == record.fingerprint else None
    folder = cell_run_folder(matrix.folder, cell.name)
    is_begun, in_use = (folder / records.RUN_FILE).exists(), is_in_use(folder)
    changed: tuple[str, ...] = ()
    if is_begun and cell.loaded is not None:
        config, num_processes, variables = trained_with(folder, record.environment)
        then = {**compared_settings(config), "nproc": num_processes}
        now = {**compared_settings(cell.loaded.values), "nproc": record.num_processes}
        changes = [(key, one_line(was), one_line(value)) for key, was, value in differences(then, now)]
        was_set, is_set = (
            {f"{ENV}.{name}": UNSET if text is None else text for name, text in texts.items()}
            for texts in (variables, record.environment)
        )
        changes += [(key, text, is_set[key]) for key, text in was_set.items() if text != is_set[key]]
        changed = tuple(f"{key}: {was} then, {value} now" for key, was, value in changes)
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


def _with_changed_needs(folder: Path, cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the cells; a run has changed, too, if one that it needs has, or was trained again after it began."""
    changed = {cell.name for cell in cells if cell.changed}
    while more := {cell.name for cell in cells if changed & {*cell.record.needs}} - changed:
        changed |= more
    begun = {cell.name for cell in cells if cell.is_begun}
    for cell in cells:
        old = [f"{name} has other settings now" for name in cell.record.needs if name in changed]
        needed = begun & {*cell.record.needs}
        if cell.is_begun and needed and not old:  # the sweep, or a job, may have been killed between the two
            files = {name: cell_run_folder(folder, name) / records.RUN_FILE for name in (cell.name, *sorted(needed))}
            created = {name: records.read_json(file).get("created") or "" for name, file in files.items()}
            # An unknown time says nothing.
            own = created[cell.name]
            old = [f"{name} was trained again since" for name, at in created.items() if own and at > own]
        if not old or not cell.is_begun or cell.changed or cell.record.state == "skipped":
            yield cell
        else:
            record = replace(cell.record, state="pending", reason=None)
            yield replace(cell, record=record, changed=(old[0],))


def locked(folder: Path) -> AbstractContextManager[None]:
    """Make the folder of the matrix and lock it; see `locked_folder`."""
    return locked_folder(folder, "paratune sweep", "change name: or folder:")


@dataclass
class SharedRecord:
    """The record of a matrix, whose folder is locked; threads that each train a run change and write it."""

    folder: Path
    record: SweepRecord
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, cell: CellRecord) -> None:
        """Replace the record of a run, and write that of the matrix; `CheckpointError` where it cannot be written."""
        with self._lock:
            self.record = self.record.with_cell(cell)
            write_sweep(self.folder, self.record)


def run_cell(sweep: SharedRecord, cell: Cell, start: Start, *, stopped: Callable[[], bool]) -> CellRecord:
    """Train one cell of a matrix from its start or its checkpoint; return its record.

    Args:
        stopped: Returns whether a signal came; an unusual end is no failure then.

    Raises:
        CheckpointError: The record or the cell's configuration cannot be written.
    """
    folder = sweep.folder
    running = replace(cell.record, state="running", reason=None, exit_code=None)
    run, log = cell_run_folder(folder, cell.name), folder / LOGS_FOLDER / f"{cell.name}.txt"
    sweep.put(running)
    log.parent.mkdir(exist_ok=True)
    write_cell(folder, sweep.record.matrix, cell)
    began = utc_now()
    deadline = time.monotonic() + WAIT_S
    while (in_use := is_in_use(run)) and time.monotonic() <= deadline and not stopped():
        time.sleep(0.2)
    if not in_use:
        # Earlier attempts wrote into the same log; the message of this one is behind their output.
        position = log.stat().st_size if log.exists() else 0
        code = start(words_of(folder, cell), log, for_a_run(cell.record.environment))
        ended = _ended(running, run, code, log, position, was_stopped=stopped())
    else:  # started by hand, for example: not a failure, and the next call checks again
        ended = replace(running, state="interrupted", reason=IN_USE)
    attempt = {"began": began, "ended": utc_now(), "exit_code": ended.exit_code}
    ended = replace(ended, attempts=(*ended.attempts, attempt))
    sweep.put(ended)
    return ended


def config_of(folder: Path, name: str) -> Path:
    """Return the file of a cell's whole configuration."""
    return folder / CONFIGS_FOLDER / f"{name}.yaml"


def words_of(folder: Path, cell: Cell) -> list[str]:
    """Return the arguments with which `paratune` trains a cell, from its configuration alone."""
    how = "--overwrite" if cell.changed else "--resume"
    return ["train", str(config_of(folder, cell.name)), "--nproc", str(cell.record.num_processes), how]


def write_cell(folder: Path, matrix: str, cell: Cell) -> None:
    """Write the configuration of a cell whole or not at all; `CheckpointError` where it cannot be written."""
    assert cell.loaded is not None
    path, remedy = config_of(folder, cell.name), "free some space there, or change folder:"
    with os_error_as(CheckpointError, f"{path} cannot be written", remedy, code="output.not_writable", path=path):
        path.parent.mkdir(exist_ok=True)
        atomic.write_text(path, f"# {cell.name} of {plain(matrix)}\n{show_text(cell.loaded)}")


def _ended(cell: CellRecord, run: Path, code: int, log: Path, position: int, *, was_stopped: bool) -> CellRecord:
    """Return the record of a run that has ended; its output begins at `position` of its log."""
    if code == EXIT_OK and records.is_finished(run):
        return replace(cell, state="finished", exit_code=EXIT_OK)
    message = ""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(position, log.stat().st_size - 20_000))
        text = file.read().decode("utf-8", "replace").strip()
        # From "error:" on, or the last line.
        errors = [match.end() for match in re.finditer(r"^error: ", text, re.MULTILINE)]
        message = text[errors[-1] :] if errors else text.rpartition("\n")[2]
        message = message if len(message) <= _MAX_REASON else f"{message[:_MAX_REASON]}..."
    signal = -code if code < 0 else code - 128 if code > 128 else None  # 128 + n: signal n, of a shell or a container
    state: State = "failed"
    if code == EXIT_OK:
        reason = "exit code 0, but its record is not finished"
    elif signal is None and code != EXIT_STOPPED and not was_stopped:
        reason = message or f"exit code {code}, no output"
    else:
        killed = "stopped by a signal" if signal is None else f"killed by signal {signal}"
        state, reason = "interrupted", killed if code < 0 else message or killed
    return replace(cell, state=state, exit_code=code, reason=reason)


def was_killed(cell: CellRecord) -> bool:
    """Return whether a run ended without a fault of its own, so that another attempt may succeed."""
    is_interrupted = cell.state == "interrupted" and cell.reason != IN_USE
    return is_interrupted or (cell.state == "failed" and cell.exit_code in _MAY_PASS)


def write_listed(folder: Path, record: SweepRecord, cells: Sequence[Cell]) -> None:
    """Write the record of the matrix, and the configurations of the runs that are listed."""
    names = dict.fromkeys([*record.listed, *(cell.name for cell in cells)])
    write_sweep(folder, replace(record, listed=tuple(names)))
    for cell in cells:
        write_cell(folder, record.matrix, cell)


def listed(folder: Path, cell: Cell, *, run_code: bool = False) -> dict[str, Any]:
    """Return a run as plain data: its command, alone and as a line of a shell, its variables and its files."""
    environment = for_a_run(cell.record.environment)
    command = [PROGRAM, *words_of(folder, cell), *(["--run-code"] if run_code else [])]
    unset = [word for name, value in environment.items() if value is None for word in ("-u", name)]
    given = [f"{name}={value}" for name, value in environment.items() if value is not None]
    return {
        "name": cell.name,
        "num_processes": cell.record.num_processes,
        "num_nodes": cell.record.num_nodes,
        "environment": environment,
        "config": str(config_of(folder, cell.name)),
        "folder": str(cell_run_folder(folder, cell.name)),
        "log": str(folder / LOGS_FOLDER / f"{cell.name}.txt"),
        "command": command,
        "line": shlex.join([*(["env", *unset, *given] if environment else []), *command]),
    }
