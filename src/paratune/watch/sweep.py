"""Watches a matrix of runs: its cells, the state of the running ones, and the remaining time."""

import re
import statistics
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from paratune.config.metric_names import is_lower_better
from paratune.errors import CheckpointError
from paratune.records import SUMMARY_FILE, is_finished, read_json
from paratune.records.run_folder import is_in_use
from paratune.records.sweep import LOGS_FOLDER, SWEEP_FILE, CellRecord, SweepRecord, cell_run_folder, read_sweep
from paratune.watch.run import JsonFile, RunWatch
from paratune.watch.state import BestSoFar, CellView, RunView, State, SweepView, mapping, number

_STATES: Mapping[str, State] = {
    "pending": "waiting",
    "running": "killed",
    "interrupted": "stopped",
    "failed": "failed",
    "finished": "finished",
    "skipped": "skipped",
}
"""State of a cell that no process trains, by its state in the record of the matrix."""
_TOKENIZING = re.compile(r"tokenize \d+/\d+")
_LOG_BYTES = 4096


class SweepWatch:
    """Watches the folder of a matrix; `look` returns its state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = JsonFile(folder / SWEEP_FILE)
        self._record: SweepRecord | None = None
        self._problem: str | None = None
        self._runs: dict[str, RunWatch] = {}
        self._scores: dict[str, float | None] = {}

    def look(self, now: float | None = None) -> SweepView:
        """Return the state of the matrix; `now` in Unix seconds."""
        now = time.time() if now is None else now
        if self._file.read():
            self._read()
        if self._record is None:
            return SweepView(self.folder.name, str(self.folder), False, problem=self._problem)
        is_locked = is_in_use(self.folder)
        cells = tuple(self._cell(cell, is_locked, now) for cell in self._record.cells)
        running = {cell.name for cell in cells if cell.run is not None and cell.run.is_running}
        self._runs = {name: watch for name, watch in self._runs.items() if name in running}
        return SweepView(
            self._record.name,
            str(self.folder),
            is_locked or bool(running),
            cells,
            _left_s(self._record, cells) if is_locked else None,
            best=best_so_far(self._record, cells),
            is_awaited=any(cell.state == "waiting" and cell.name in self._record.listed for cell in cells),
        )

    def _read(self) -> None:
        try:
            self._record, self._problem = read_sweep(self.folder), None
        except CheckpointError as error:
            self._record, self._problem = None, str(error)

    def _cell(self, cell: CellRecord, is_locked: bool, now: float) -> CellView:
        """Return the state of a cell: for an unfinished one from its run folder, which is newer than the record."""
        took = _seconds(cell.attempts)
        folder = cell_run_folder(self.folder, cell.name)
        if cell.state == "skipped":
            return CellView(cell.name, "skipped", cell.reason, took)
        if cell.state == "finished" or is_finished(folder):  # the latter: started by the user, or as a listed run
            return CellView(cell.name, "finished", cell.reason, took, score=self._score(cell, folder))
        run = self._runs.setdefault(cell.name, RunWatch(folder)).look(now) if folder.is_dir() else None
        if run is not None and run.is_running:
            return CellView(cell.name, run.state, run.reason, None, run)
        if cell.state == "running" and is_locked:
            started = self._starting(cell.name, folder)
            return CellView(cell.name, started.state, None, None, started)
        if cell.state == "running":
            return CellView(cell.name, "killed", "the sweep was stopped; the same command continues it", took)
        if cell.state == "pending" and run is not None and run.state != "gone":  # started without the sweep
            return CellView(cell.name, run.state, run.reason, took)
        if cell.state == "interrupted" and (cell.exit_code or 0) < 0:  # killed before it saved
            return CellView(cell.name, "killed", cell.reason, took)
        return CellView(cell.name, _STATES[cell.state], cell.reason, took)

    def _score(self, cell: CellRecord, folder: Path) -> float | None:
        """Return the score of a finished run that counts, which is read once."""
        if not cell.counts:
            return None
        if cell.name not in self._scores:
            try:
                scores = mapping(mapping(read_json(folder / SUMMARY_FILE)).get("scores"))
            except CheckpointError:
                scores = {}
            self._scores[cell.name] = number(mapping(scores.get("validation")).get(cell.metric))
        return self._scores[cell.name]

    def _starting(self, name: str, folder: Path) -> RunView:
        """Return the state of a run without a folder, from the last line of its log."""
        try:
            with (self.folder / LOGS_FOLDER / f"{name}.txt").open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _LOG_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            lines = []
        last_line = lines[-1] if lines else ""
        match = _TOKENIZING.search(last_line)
        state: State = "tokenizing" if match else "starting"
        return RunView(name, str(folder), state, reason=match.group() if match else None)


def _seconds(attempts: tuple[Mapping[str, Any], ...]) -> float | None:
    """Return the duration of all starts of a cell."""
    total = 0.0
    for attempt in attempts:
        try:
            began, ended = (datetime.fromisoformat(attempt[key]) for key in ("began", "ended"))
            total += (ended - began).total_seconds()
        except (KeyError, TypeError, ValueError):
            return None
    return total or None


def best_so_far(record: SweepRecord, cells: tuple[CellView, ...]) -> tuple[BestSoFar, ...]:
    """Return the configuration with the best mean score of its finished runs, for each selection of the matrix."""
    axes = [axis for axis in record.axes if not axis.is_seed]
    selections: dict[tuple[str, ...], dict[tuple[str, ...], list[tuple[CellRecord, CellView]]]] = {}
    for cell, view in zip(record.cells, cells, strict=True):
        if cell.counts and cell.state != "skipped":
            held = tuple(cell.values[label] for label in record.select_per)
            names = tuple(cell.values[axis.label] for axis in axes)
            selections.setdefault(held, {}).setdefault(names, []).append((cell, view))
    best = []
    for held, configurations in selections.items():
        within = ", ".join(f"{label} {name}" for label, name in zip(record.select_per, held, strict=True))
        candidates = []
        for names, members in configurations.items():
            scores = [view.score for _, view in members if view.score is not None]
            shown = [
                f"{axis.label} {axis.values[name]}"
                for axis, name in zip(axes, names, strict=True)
                if axis.label not in record.select_per
            ]
            if scores:
                name, metric = ", ".join(shown) or record.name, members[0][0].metric
                mean = statistics.fmean(scores)
                candidates.append(BestSoFar(metric, name, mean, len(scores), len(members), within))
        if candidates:
            lower = is_lower_better(candidates[0].metric)
            best.append((min if lower else max)(candidates, key=lambda candidate: candidate.score))
    return tuple(best)


def _left_s(record: SweepRecord, cells: tuple[CellView, ...]) -> float | None:
    """Return the estimated seconds until the last cell ends; None while no cell is finished.

    A waiting cell takes as long as the finished ones that differ only in the seed; otherwise as those of its kind;
    otherwise as all finished ones.
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
    """Return keys that a cell shares with cells of similar duration, the most similar first."""
    seeds = {axis.label for axis in record.axes if axis.is_seed}
    kind = getattr(cell, "kind", None)
    values = tuple(sorted((label, value) for label, value in cell.values.items() if label not in seeds))
    return ((kind, values), (kind,), ())
