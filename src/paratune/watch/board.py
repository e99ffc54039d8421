"""Finds runs and matrices in folders, and watches several of them together."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.errors import CheckpointError
from paratune.records import CHECKPOINTS_FOLDER, MODEL_FOLDER, RUN_FILE, SUMMARY_FILE, events_file, is_finished
from paratune.records.run_folder import LOCK_FILE
from paratune.records.sweep import SWEEP_FILE
from paratune.watch.run import RunWatch
from paratune.watch.state import RunView, SweepView
from paratune.watch.sweep import SweepWatch

FIND_EVERY_S = 5.0
"""Seconds between two searches for new runs."""
MAX_DEPTH = 6
"""Maximum depth of the search."""
_NO_RUNS = {CHECKPOINTS_FOLDER, MODEL_FOLDER, "report", "configs", "logs", "node_modules", "__pycache__"}
_SIGNS = {RUN_FILE, SUMMARY_FILE, events_file(0)}


@dataclass(frozen=True)
class BoardView:
    """Content of the screen at one time."""

    time: float
    """Unix seconds."""
    runs: tuple[RunView, ...]
    sweeps: tuple[SweepView, ...]
    others: dict[str, int] = field(default_factory=dict)
    """Number of runs by state that are in a watched folder and not shown."""
    num_other_sweeps: int = 0
    """Matrices in a watched folder that do not run."""
    folders: tuple[str, ...] = ()
    """The watched folders."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing remains to wait for: no watched folder, no running or listed run."""
        is_running = any(run.is_running for run in self.runs)
        is_running = is_running or any(sweep.is_running or sweep.is_awaited for sweep in self.sweeps)
        return not self.folders and not is_running

    def as_dict(self) -> dict[str, Any]:
        """Return all fields for --json."""
        sweeps = [{**asdict(sweep), "counts": sweep.counts()} for sweep in self.sweeps]
        return {**asdict(self), "sweeps": sweeps}


class Board:
    """Watches named runs and matrices, and all running ones in folders."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Watch paths: runs and matrices, which are always shown, and folders of them.

        Raises:
            CheckpointError: A path does not exist.
        """
        kinds = {path: folder_kind(path) for path in dict.fromkeys(paths)}
        self._folders = tuple(path for path, kind in kinds.items() if kind == "folder")
        self._named = {path: kind for path, kind in kinds.items() if kind != "folder"}
        self._found: dict[Path, str] = {}
        self._next_find = 0.0
        self._runs: dict[Path, RunWatch] = {}
        self._sweeps: dict[Path, SweepWatch] = {}
        self._has_run: dict[Path, str] = {}

    def look(self) -> BoardView:
        """Return the present state of all of them."""
        now = time.time()
        if self._folders and time.monotonic() >= self._next_find:
            self._found = {
                path: kind for folder in self._folders for kind, path in find(folder) if path not in self._named
            }
            self._next_find = time.monotonic() + FIND_EVERY_S
        runs, others = self._look_at_runs(now)
        sweeps, num_others = self._look_at_sweeps(now)
        return BoardView(now, runs, sweeps, others, num_others, tuple(map(str, self._folders)))

    def _paths(self, kind: str) -> list[Path]:
        # A run that was seen running stays on the screen, also when its folder is deleted.
        known = {**self._has_run, **self._named, **self._found}
        return sorted(path for path, path_kind in known.items() if path_kind == kind)

    def _look_at_runs(self, now: float) -> tuple[tuple[RunView, ...], dict[str, int]]:
        shown, others = [], dict[str, int]()
        for path in self._paths("run"):
            is_shown = path in self._named or path in self._has_run
            if not is_shown and is_finished(path):  # most of many runs: do not read them
                others["finished"] = others.get("finished", 0) + 1
                continue
            view = self._runs.setdefault(path, RunWatch(path)).look(now)
            if view.is_running:
                self._has_run[path] = "run"
            if view.is_running or is_shown:
                shown.append(view)
            elif view.state != "gone":
                others[view.state] = others.get(view.state, 0) + 1
        return tuple(shown), others

    def _look_at_sweeps(self, now: float) -> tuple[tuple[SweepView, ...], int]:
        shown, num_others = [], 0
        for path in self._paths("sweep"):
            view = self._sweeps.setdefault(path, SweepWatch(path)).look(now)
            if view.is_running:
                self._has_run[path] = "sweep"
            if path in self._named or path in self._has_run:
                shown.append(view)
            else:
                num_others += 1
        return tuple(shown), num_others


def folder_kind(folder: Path) -> str:
    """Return the kind of a path: "sweep", "run" or "folder".

    Raises:
        CheckpointError: It does not exist, or is a file.
    """
    try:
        names = {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        message = f"{plain(folder)} does not exist; give a run, a matrix or a folder of them"
        raise CheckpointError(message, code="run.not_found", folder=folder) from None
    except NotADirectoryError:
        message = f"{plain(folder)} is a file; give a run, a matrix or a folder of them"
        raise CheckpointError(message, code="run.not_a_run", folder=folder) from None
    except OSError as error:
        message = f"{plain(folder)} cannot be read: {error.strerror}"
        raise CheckpointError(message, code="run.unreadable", folder=folder) from error
    return _kind(names) or "folder"


def _kind(names: set[str]) -> str | None:
    if SWEEP_FILE in names:
        return "sweep"
    is_starting = LOCK_FILE in names and any(name.startswith("log.rank") for name in names)
    return "run" if is_starting or names & _SIGNS else None


def find(folder: Path, depth: int = MAX_DEPTH) -> Iterator[tuple[str, Path]]:
    """Yield ("run" | "sweep", folder) in a folder, which may be deleted; runs of a matrix are not yielded."""
    try:
        with os.scandir(folder) as entries:
            inside = sorted(entries, key=lambda entry: entry.name)
            folders = [entry.name for entry in inside if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    kind = _kind({entry.name for entry in inside})
    if kind is not None:
        yield kind, folder
        return
    if depth > 0:
        for name in folders:
            if not name.startswith(".") and name not in _NO_RUNS:
                yield from find(folder / name, depth - 1)
