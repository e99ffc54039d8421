"""Watches several runs and matrices together."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paratune.records import is_finished
from paratune.watch.find import find_all, folder_kind
from paratune.watch.run import RunWatch
from paratune.watch.state import RunView, SweepView
from paratune.watch.sweep import SweepWatch

FIND_EVERY_S = 5.0
"""Seconds between two searches for new runs."""


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
            self._found = {path: kind for path, kind in find_all(self._folders).items() if path not in self._named}
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
