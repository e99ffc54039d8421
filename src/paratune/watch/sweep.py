"""The state of a matrix of runs, and the remaining time."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paratune.errors import CheckpointError
from paratune.records.run_folder import is_in_use
from paratune.records.sweep import SWEEP_FILE, CellRecord, SweepRecord, cell_run_folder, read_sweep
from paratune.watch.run import RunView, RunWatch, State

_STATES: Mapping[str, State] = {
    "pending": "waiting",
    "running": "killed",
    "interrupted": "stopped",
    "failed": "failed",
    "finished": "finished",
    "skipped": "skipped",
}
"""State of a run that no process trains, by its state in the record of the matrix."""


@dataclass(frozen=True)
class SweepView:
    name: str
    folder: str
    is_running: bool
    """Whether its folder is locked, or one of its runs is running."""
    runs: tuple[RunView, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of runs in each state, "running" for all running ones."""
    left_s: float | None = None
    """Estimated seconds if waiting runs run one after the other and take as long as finished ones."""
    problem: str | None = None
    is_awaited: bool = False
    """Whether listed runs have not been started yet: the folder is not locked between them."""


class SweepWatch:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: tuple[int, ...] = ()
        self._record: SweepRecord | None = None
        self._problem: str | None = None
        self._running: dict[str, RunWatch] = {}
        self._finished: dict[str, RunView] = {}

    def look(self, now: float | None = None) -> SweepView:
        """Return the state of the matrix; `now` in Unix seconds."""
        now = time.time() if now is None else now
        self._read()
        record = self._record
        if record is None:
            return SweepView(self.folder.name, str(self.folder), False, problem=self._problem)
        is_locked = is_in_use(self.folder)
        runs = tuple(self._run(cell, is_locked, now) for cell in record.cells)
        num_running = sum(run.is_running for run in runs)
        return SweepView(
            record.name,
            str(self.folder),
            is_locked or num_running > 0,
            runs,
            dict(Counter("running" if run.is_running else run.state for run in runs)),
            _left_s(record, runs) if is_locked else None,
            is_awaited=any(run.state == "waiting" and run.name in record.listed for run in runs),
        )

    def _read(self) -> None:
        try:
            status = (self.folder / SWEEP_FILE).stat()
            now = (status.st_ino, status.st_size, status.st_mtime_ns)
            if now != self._seen:
                self._seen = now
                self._record, self._problem = read_sweep(self.folder), None
        except (CheckpointError, OSError) as error:
            self._seen, self._record, self._problem = (), None, str(error)  # read again at the next look

    def _run(self, cell: CellRecord, is_locked: bool, now: float) -> RunView:
        """Return the state of a run from its folder, which is newer than the record of the matrix."""
        if cell.state == "finished" and cell.name in self._finished:  # read once
            return self._finished[cell.name]
        watch = self._running.pop(cell.name, None) or RunWatch(cell_run_folder(self.folder, cell.name))
        run = watch.look(now)
        if run.state == "finished":
            if run.reason is None:  # else its record is read again
                self._finished[cell.name] = run
            return run
        if run.is_running:
            self._running[cell.name] = watch
            return run
        if cell.state == "running":
            stopped = "the sweep was stopped; the same command continues it"
            return replace(run, state="starting" if is_locked else "killed", reason=None if is_locked else stopped)
        if cell.state == "pending" and run.state != "gone":  # started without the sweep
            return run
        was_killed = cell.state == "interrupted" and (cell.exit_code or 0) < 0  # before it saved
        state = "killed" if was_killed else _STATES[cell.state]
        return replace(run, state=state, reason=cell.reason, total_s=cell.took_s)


def _left_s(record: SweepRecord, runs: Sequence[RunView]) -> float | None:
    """Return the estimated seconds until the last run ends; None while no run is finished."""
    left = [
        record.expected_s(cell) if run.left_s is None else run.left_s
        for cell, run in zip(record.cells, runs, strict=True)
        if run.is_running or run.state == "waiting"
    ]
    known = [seconds for seconds in left if seconds is not None]
    return sum(known) if len(known) == len(left) else None
