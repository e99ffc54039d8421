"""Runs the cells of a matrix one after the other, and records how each ended; or lists their commands.

A listed command writes into the folder of the matrix, where `paratune sweep` and `paratune report` read its record.
"""

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from paratune import records
from paratune.base import atomic
from paratune.base.text import plain
from paratune.config.load import show_text
from paratune.errors import (
    EXIT_HUNG,
    EXIT_LAUNCH,
    EXIT_OK,
    EXIT_OUT_OF_MEMORY,
    EXIT_STOPPED,
    CheckpointError,
    os_error_as,
)
from paratune.records.run_folder import is_in_use, locked_folder
from paratune.records.sweep import (
    CONFIGS_FOLDER,
    LOGS_FOLDER,
    CellRecord,
    State,
    SweepRecord,
    cell_run_folder,
    write_sweep,
)
from paratune.sweeps.axes import for_a_run
from paratune.sweeps.cell import IN_USE, Cell
from paratune.sweeps.plan import now

WAIT_S = 120.0
"""Longest wait for a run that an earlier, killed sweep started: it saves a checkpoint and ends."""
_MAY_PASS = (EXIT_LAUNCH, EXIT_OUT_OF_MEMORY, EXIT_HUNG)
"""Exit codes with a cause outside the run: a killed or lost process, memory that others use, a hang."""
_MAX_REASON = 500

PROGRAM = "paratune"

Start = Callable[[Sequence[str], Path, Mapping[str, str | None]], int]
"""Function that runs `paratune ARGUMENTS` with its output appended to a file and with variables (None unsets one), and
returns the exit code."""


def locked(folder: Path) -> AbstractContextManager[None]:
    """Make the folder of the matrix and lock it; see `locked_folder`."""
    return locked_folder(folder, "paratune sweep", "change name: or folder:")


def run_cell(
    folder: Path, record: SweepRecord, cell: Cell, start: Start, *, stopped: Callable[[], bool]
) -> SweepRecord:
    """Train one cell of a matrix, whose folder is locked, from its start or its checkpoint; return the record.

    Args:
        stopped: Returns whether a signal came; an unusual end is no failure then.

    Raises:
        CheckpointError: The record or the cell's configuration cannot be written.
    """
    running = replace(cell.record, state="running", reason=None, exit_code=None)
    run, log = cell_run_folder(folder, cell.name), folder / LOGS_FOLDER / f"{cell.name}.txt"
    record = record.with_cell(running)
    write_sweep(folder, record)
    log.parent.mkdir(exist_ok=True)
    write_cell(folder, record.matrix, cell)
    began = now()
    if _is_free(run, stopped):
        # Earlier attempts wrote into the same log; the message of this one is behind their output.
        position = log.stat().st_size if log.exists() else 0
        code = start(words_of(folder, cell), log, for_a_run(cell.record.environment))
        ended = _ended(running, run, code, _last_message(log, position), was_stopped=stopped())
    else:  # started by hand, for example: not a failure, and the next call checks again
        ended = replace(running, state="interrupted", reason=IN_USE)
    attempt = {"began": began, "ended": now(), "exit_code": ended.exit_code}
    record = record.with_cell(replace(ended, attempts=(*ended.attempts, attempt)))
    write_sweep(folder, record)
    return record


def config_of(folder: Path, name: str) -> Path:
    """Return the file of a cell's whole configuration."""
    return folder / CONFIGS_FOLDER / f"{name}.yaml"


def words_of(folder: Path, cell: Cell) -> list[str]:
    """Return the arguments with which `paratune` trains a cell, from its configuration alone."""
    how = "--overwrite" if cell.changed else "--resume"
    return ["train", str(config_of(folder, cell.name)), "--nproc", str(cell.record.num_processes), how]


def write_cell(folder: Path, matrix: str, cell: Cell) -> None:
    assert cell.loaded is not None
    write_text(config_of(folder, cell.name), f"# {cell.name} of {plain(matrix)}\n{show_text(cell.loaded)}")


def _is_free(run: Path, stopped: Callable[[], bool]) -> bool:
    """Wait for a run that an earlier sweep started; return whether it ended."""
    deadline = time.monotonic() + WAIT_S
    while is_in_use(run):
        if time.monotonic() > deadline or stopped():
            return False
        time.sleep(0.2)
    return True


def _ended(cell: CellRecord, run: Path, code: int, message: str, *, was_stopped: bool) -> CellRecord:
    if code == EXIT_OK and records.is_finished(run):
        return replace(cell, state="finished", exit_code=EXIT_OK)
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


def _last_message(log: Path, position: int) -> str:
    """Return the last message of a run: from "error:" on, or its last line."""
    try:
        with log.open("rb") as file:
            file.seek(max(position, log.stat().st_size - 20_000))
            text = file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""
    errors = [match.start() for match in re.finditer(r"^error: ", text, re.MULTILINE)]
    last = text[errors[-1] + len("error: ") :] if errors else text.rpartition("\n")[2]
    return last if len(last) <= _MAX_REASON else f"{last[:_MAX_REASON]}..."


def write_text(path: Path, text: str) -> None:
    """Write a file, and its folder, whole or not at all.

    Raises:
        CheckpointError: It cannot be written.
    """
    remedy = "free some space there, or change folder:"
    with os_error_as(CheckpointError, f"{path} cannot be written", remedy, code="run.not_writable", path=path):
        path.parent.mkdir(exist_ok=True)
        atomic.write_text(path, text)


def write_listed(folder: Path, record: SweepRecord, cells: Sequence[Cell]) -> None:
    """Write the record of the matrix, and the configurations of the runs that are listed."""
    names = dict.fromkeys([*record.listed, *(cell.name for cell in cells)])
    write_sweep(folder, replace(record, listed=tuple(names)))
    for cell in cells:
        write_cell(folder, record.matrix, cell)


def listed(folder: Path, cell: Cell, *, run_code: bool = False) -> dict[str, Any]:
    """Return a run as plain data: its command, with --run-code if wanted, its variables and its files."""
    environment = for_a_run(cell.record.environment)
    command = [PROGRAM, *words_of(folder, cell), *(["--run-code"] if run_code else [])]
    return {
        "name": cell.name,
        "num_processes": cell.record.num_processes,
        "num_nodes": cell.record.num_nodes,
        "environment": environment,
        "config": str(config_of(folder, cell.name)),
        "folder": str(cell_run_folder(folder, cell.name)),
        "log": str(folder / LOGS_FOLDER / f"{cell.name}.txt"),
        "command": command,
        "line": shell_line(command, environment),
    }


def shell_line(command: Sequence[str], environment: Mapping[str, str | None]) -> str:
    """Return a command for a shell, with its variables in front."""
    unset = [word for name, value in environment.items() if value is None for word in ("-u", name)]
    given = [f"{name}={value}" for name, value in environment.items() if value is not None]
    return shlex.join([*(["env", *unset, *given] if environment else []), *command])
