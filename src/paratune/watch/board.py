"""The state of a matrix of runs; finds runs and matrices in folders, and watches several of them together."""

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paratune.base.text import plain
from paratune.errors import CheckpointError
from paratune.records import CHECKPOINTS_FOLDER, MODEL_FOLDER, RUN_FILE, SUMMARY_FILE, events_file, is_finished
from paratune.records.run_folder import LOCK_FILE, is_in_use
from paratune.records.sweep import SWEEP_FILE, CellRecord, SweepRecord, cell_run_folder, read_sweep
from paratune.watch.run import RunView, RunWatch, State

_STATES: Mapping[str, State] = {
    "pending": "waiting",
    "running": "killed",
    "interrupted": "stopped",
    "failed": "failed",
    "finished": "damaged",
    "skipped": "skipped",
}
"""State of a run that no process trains and that has no summary, by its state in the record of the matrix."""


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
    """Estimated seconds if waiting runs take as long as finished ones, as many at a time as the sweep trains."""
    problem: str | None = None
    is_awaited: bool = False
    """Whether listed runs have not been started yet: the folder is not locked between them."""


@dataclass
class SweepWatch:
    folder: Path
    _seen: tuple[int, ...] = field(default=(), init=False)
    _record: SweepRecord | None = field(default=None, init=False)
    _running: dict[str, RunWatch] = field(default_factory=dict, init=False)
    _finished: dict[str, RunView] = field(default_factory=dict, init=False)

    def look(self, now: float | None = None) -> SweepView:
        """Return the state of the matrix; `now` in Unix seconds."""
        now = time.time() if now is None else now
        try:
            status = (self.folder / SWEEP_FILE).stat()
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
            if self._record is None or seen != self._seen:
                self._record, self._seen = read_sweep(self.folder), seen
        except (CheckpointError, OSError) as error:
            self._record = None  # it is read again at the next look
            return SweepView(self.folder.name, str(self.folder), False, problem=str(error))
        record = self._record
        is_locked = is_in_use(self.folder)
        runs = tuple(self._run(cell, is_locked, now) for cell in record.cells)
        num_running = sum(run.is_running for run in runs)
        left = [
            record.expected_s[cell.name] if run.left_s is None else run.left_s
            for cell, run in zip(record.cells, runs, strict=True)
            if run.is_running or run.state == "waiting"
        ]
        known = [seconds for seconds in left if seconds is not None]
        return SweepView(
            record.name,
            str(self.folder),
            is_locked or num_running > 0,
            runs,
            dict(Counter("running" if run.is_running else run.state for run in runs)),
            # At least the longest of them, however many run at a time.
            max(sum(known) / record.num_slots, *known, 0.0) if is_locked and len(known) == len(left) else None,
            is_awaited=any(run.state == "waiting" and run.name in record.listed for run in runs),
        )

    def _run(self, cell: CellRecord, is_locked: bool, now: float) -> RunView:
        """Return the state of a run from its folder, which is newer than the record of the matrix."""
        if cell.state == "finished" and cell.name in self._finished:  # read once
            return self._finished[cell.name]
        watch = self._running.pop(cell.name, None) or RunWatch(cell_run_folder(self.folder, cell.name))
        run = watch.look(now)
        if run.state == "finished":
            self._finished[cell.name] = run
        if run.state in ("finished", "damaged"):  # a damaged record is read again
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
        lost = f"{SUMMARY_FILE} is missing; copy the folder again, or repeat paratune sweep, which trains the run again"
        reason = lost if cell.state == "finished" else cell.reason
        return replace(run, state=state, reason=reason, total_s=cell.took_s)


FIND_EVERY_S = 5.0
"""Seconds between two searches for new runs."""
MAX_DEPTH = 6
"""Maximum depth of the search."""
_NO_RUNS = {CHECKPOINTS_FOLDER, MODEL_FOLDER, "report", "configs", "logs", "node_modules", "__pycache__"}
_SIGNS = {RUN_FILE, SUMMARY_FILE, events_file(0)}


@dataclass(frozen=True)
class BoardView:
    time: float
    runs: tuple[RunView, ...]
    sweeps: tuple[SweepView, ...]
    others: Mapping[str, int] = field(default_factory=dict)
    """Number of runs by state that are in a watched folder and not shown."""
    folders: tuple[str, ...] = ()

    @property
    def is_finished(self) -> bool:
        """Whether nothing remains to wait for: no watched folder, no running or listed run."""
        is_awaited = any(sweep.is_running or sweep.is_awaited for sweep in self.sweeps)
        return not (self.folders or is_awaited or any(run.is_running for run in self.runs))


class Board:
    """Watches named runs and matrices, and all running ones in folders."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Watch paths: runs and matrices, which are always shown, and folders of them.

        Raises:
            CheckpointError: A path does not exist.
        """
        kinds = {}
        for path in dict.fromkeys(paths):
            try:
                kinds[path] = _kind({place.name for place in path.iterdir()}) or "folder"
            except OSError as error:
                code = {FileNotFoundError: "run.not_found", NotADirectoryError: "run.not_found"}.get(type(error))
                message = f"{plain(path)} cannot be read: {error.strerror}; give a run, a matrix or a folder of them"
                raise CheckpointError(message, code=code or "run.damaged", folder=path) from error
        self._folders = tuple(path for path, kind in kinds.items() if kind == "folder")
        # The named ones, and those that were seen running: they stay, also when their folder is deleted.
        self._shown = {path: kind for path, kind in kinds.items() if kind != "folder"}
        self._found: dict[Path, str] = {}
        self._next_find = 0.0
        self._watches: dict[Path, RunWatch | SweepWatch] = {}

    def look(self) -> BoardView:
        now = time.time()
        if self._folders and time.monotonic() >= self._next_find:
            self._found = {path: kind for folder in self._folders for kind, path in find(folder)}
            self._next_find = time.monotonic() + FIND_EVERY_S
        shown: list[RunView | SweepView] = []
        others: Counter[str] = Counter()
        for path, kind in sorted({**self._found, **self._shown}.items()):
            if kind == "run" and path not in self._shown and is_finished(path):  # most of many runs: do not read them
                others["finished"] += 1
                continue
            watch = self._watches.setdefault(
                path, RunWatch(path, has_curves=True) if kind == "run" else SweepWatch(path)
            )
            view = watch.look(now)
            if view.is_running:
                self._shown[path] = kind
            if path in self._shown:
                shown.append(view)
            elif isinstance(view, RunView):
                others[view.state] += 1
        del others["gone"]
        return BoardView(
            now,
            tuple(view for view in shown if isinstance(view, RunView)),
            tuple(view for view in shown if isinstance(view, SweepView)),
            dict(others),
            tuple(map(str, self._folders)),
        )


def _kind(names: set[str]) -> str | None:
    if SWEEP_FILE in names:
        return "sweep"
    is_starting = LOCK_FILE in names and any(name.startswith("log.rank") for name in names)
    return "run" if is_starting or names & _SIGNS else None


def find(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield ("run" | "sweep", folder) in a folder, which may be deleted; runs of a matrix are not yielded."""
    for path, folders, files in os.walk(folder):
        kind = _kind({*folders, *files})
        if kind is not None:
            yield kind, Path(path)
        is_end = kind is not None or len(Path(path).relative_to(folder).parts) == MAX_DEPTH
        folders[:] = [] if is_end else sorted(name for name in folders if name[0] != "." and name not in _NO_RUNS)
