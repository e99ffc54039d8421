"""The state of a matrix of runs, the remaining time, and the best configurations so far."""

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paratune.config.metric_names import is_lower_better
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
class BestSoFar:
    """The configuration of a matrix with the best mean score of its finished runs."""

    metric: str
    name: str
    """Values of the configuration, without seeds, behind those of the selection (`select_per`) and a colon."""
    score: float
    num_runs: int
    """Finished runs, and below the runs of the configuration with most: a report chooses none with fewer."""
    num_planned: int


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
    best: tuple[BestSoFar, ...] = ()
    """The best configuration of each selection; empty before a run with a score is finished."""
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
            best=tuple(_best_so_far(record, runs)),
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


def _best_so_far(record: SweepRecord, runs: Sequence[RunView]) -> Iterator[BestSoFar]:
    """Yield the configuration with the best mean score of its finished runs, for each selection of the matrix."""
    per = [axis for axis in record.axes if axis.label in record.select_per]
    others = [axis for axis in record.axes if axis.label not in record.select_per and not axis.is_seed]
    selections: dict[str, dict[str, list[float | None]]] = {}
    metrics: dict[str, str] = {}
    for cell, run in zip(record.cells, runs, strict=True):
        if cell.counts:
            within = ", ".join(f"{axis.label} {cell.values[axis.label]}" for axis in per)
            name = ", ".join(f"{axis.label} {axis.values[cell.values[axis.label]]}" for axis in others) or record.name
            is_known = run.state == "finished" and run.scored_on == "validation"
            score = run.scores.get(cell.metric) if is_known else None
            selections.setdefault(within, {}).setdefault(name, []).append(score)
            metrics.setdefault(within, cell.metric)
    for within, configurations in selections.items():
        known = {name: [score for score in scores if score is not None] for name, scores in configurations.items()}
        means = {name: statistics.fmean(scores) for name, scores in known.items() if scores}
        if means:
            best = (min if is_lower_better(metrics[within]) else max)(means, key=lambda name: means[name])
            shown = f"{within}: {best}" if within else best
            num_planned = max(map(len, configurations.values()))
            yield BestSoFar(metrics[within], shown, means[best], len(known[best]), num_planned)


def _left_s(record: SweepRecord, runs: Sequence[RunView]) -> float | None:
    """Return the estimated seconds until the last run ends; None while no run is finished."""
    left = [
        record.expected_s(cell) if run.left_s is None else run.left_s
        for cell, run in zip(record.cells, runs, strict=True)
        if run.is_running or run.state == "waiting"
    ]
    known = [seconds for seconds in left if seconds is not None]
    return sum(known) if len(known) == len(left) else None
