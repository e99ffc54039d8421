"""A matrix of runs under observation: its cells, what those at work are at, and how long the rest will take."""

import re
import statistics
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from paratune.errors import CheckpointError
from paratune.records import is_finished
from paratune.records.run_folder import is_in_use
from paratune.records.sweep import LOGS_FOLDER, SWEEP_FILE, CellRecord, SweepRecord, read_sweep, run_folder_of
from paratune.watch.run import JsonFile, RunWatch
from paratune.watch.state import CellView, RunView, State, SweepView

_STATES: Mapping[str, State] = {
    "pending": "waiting",
    "running": "killed",
    "interrupted": "stopped",
    "failed": "failed",
    "finished": "finished",
    "skipped": "skipped",
}
"""What a cell is whose run nobody holds, by what the record of the matrix says."""
_TOKENIZING = re.compile(r"tokenize \d+/\d+")
_LOG_BYTES = 4096


class SweepWatch:
    """One folder of a matrix; `look` says what it is at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = JsonFile(folder / SWEEP_FILE)
        self._record: SweepRecord | None = None
        self._problem: str | None = None
        self._runs: dict[str, RunWatch] = {}

    def look(self, now: float | None = None) -> SweepView:
        """Return what the matrix is at; `now` in Unix seconds."""
        now = time.time() if now is None else now
        if self._file.read():
            self._read()
        if self._record is None:
            return SweepView(self.folder.name, str(self.folder), False, problem=self._problem)
        is_held = is_in_use(self.folder)
        cells = tuple(self._cell(cell, is_held, now) for cell in self._record.cells)
        at_work = {cell.name for cell in cells if cell.run is not None and cell.run.is_running}
        self._runs = {name: watch for name, watch in self._runs.items() if name in at_work}
        return SweepView(
            self._record.name,
            str(self.folder),
            is_held or bool(at_work),
            cells,
            _left_s(self._record, cells) if is_held else None,
            is_awaited=any(cell.state == "waiting" and cell.name in self._record.listed for cell in cells),
        )

    def _read(self) -> None:
        try:
            self._record, self._problem = read_sweep(self.folder), None
        except CheckpointError as error:
            self._record, self._problem = None, str(error)

    def _cell(self, cell: CellRecord, is_held: bool, now: float) -> CellView:
        """Return what a cell is at: of one that is not at its end its run folder says more than the record."""
        took = _seconds(cell.attempts)
        if cell.state in ("finished", "skipped"):
            return CellView(cell.name, _STATES[cell.state], cell.reason, took)
        folder = run_folder_of(self.folder, cell.name)
        if is_finished(folder):  # by hand, or as one of a list of independent runs
            return CellView(cell.name, "finished", None, took)
        run = self._runs.setdefault(cell.name, RunWatch(folder)).look(now) if folder.is_dir() else None
        if run is not None and run.is_running:
            return CellView(cell.name, run.state, run.reason, None, run)
        if cell.state == "running" and is_held:
            started = self._starting(cell.name, folder)
            return CellView(cell.name, started.state, None, None, started)
        if cell.state == "running":
            return CellView(cell.name, "killed", "the sweep was stopped; the same command continues it", took)
        if cell.state == "pending" and run is not None and run.state != "gone":  # begun without the sweep
            return CellView(cell.name, run.state, run.reason, took)
        if cell.state == "interrupted" and (cell.exit_code or 0) < 0:  # nothing was saved first
            return CellView(cell.name, "killed", cell.reason, took)
        return CellView(cell.name, _STATES[cell.state], cell.reason, took)

    def _starting(self, name: str, folder: Path) -> RunView:
        """Return what a run is at that has no folder yet: what it said last tells."""
        try:
            with (self.folder / LOGS_FOLDER / f"{name}.txt").open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _LOG_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            lines = []
        said = lines[-1] if lines else ""
        found = _TOKENIZING.search(said)
        state: State = "tokenizing" if found else "starting"
        return RunView(name, str(folder), state, reason=found.group() if found else None)


def _seconds(attempts: tuple[Mapping[str, Any], ...]) -> float | None:
    """Return how long a cell was at work, over all its starts."""
    total = 0.0
    for attempt in attempts:
        try:
            began, ended = (datetime.fromisoformat(attempt[key]) for key in ("began", "ended"))
            total += (ended - began).total_seconds()
        except (KeyError, TypeError, ValueError):
            return None
    return total or None


def _left_s(record: SweepRecord, cells: tuple[CellView, ...]) -> float | None:
    """Return the seconds until the last cell, or None before there is one to go by.

    A cell that waits takes as long as the finished ones that differ from it in the seed alone; else as those of its
    kind; else as all finished ones.
    """
    took: dict[Any, list[float]] = {}
    for cell, view in zip(record.cells, cells, strict=True):
        if view.state == "finished" and view.seconds is not None:
            for key in _alike(record, cell):
                took.setdefault(key, []).append(view.seconds)
    total = 0.0
    for cell, view in zip(record.cells, cells, strict=True):
        running = view.run is not None
        if not running and view.state != "waiting":
            continue
        left = view.run.left_s if view.run is not None else None
        if left is None:
            usual = next((took[key] for key in _alike(record, cell) if key in took), None)
            if usual is None:
                return None
            left = statistics.fmean(usual)
        total += left
    return total


def _alike(record: SweepRecord, cell: CellRecord) -> tuple[Any, ...]:
    """Return keys that cells have in common which may take as long, the nearest first."""
    seeds = {axis.label for axis in record.axes if axis.is_seed}
    kind = getattr(cell, "kind", None)
    values = tuple(sorted((label, value) for label, value in cell.values.items() if label not in seeds))
    return ((kind, values), (kind,), ())
