"""All runs and matrices that are watched together."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paratune.records import is_finished
from paratune.watch.find import found_below, kind_of
from paratune.watch.run import RunWatch
from paratune.watch.state import RunView, SweepView
from paratune.watch.sweep import SweepWatch

FIND_EVERY_S = 5.0
"""How often folders are looked through for new runs."""


@dataclass(frozen=True)
class BoardView:
    """What is to be shown, at one time."""

    time: float
    """Unix seconds."""
    runs: tuple[RunView, ...]
    sweeps: tuple[SweepView, ...]
    others: dict[str, int] = field(default_factory=dict)
    """How many runs are in each state that are below a watched folder and not shown."""
    num_other_sweeps: int = 0
    """Matrices below a watched folder at which nothing is at work."""
    folders: tuple[str, ...] = ()
    """The folders that were looked through."""

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is left to wait for: no folder to look through, nothing at work, no listed run to come."""
        at_work = any(run.is_running for run in self.runs)
        at_work = at_work or any(sweep.is_running or sweep.is_awaited for sweep in self.sweeps)
        return not self.folders and not at_work

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, as --json prints it."""
        sweeps = [{**asdict(sweep), "counts": sweep.counts()} for sweep in self.sweeps]
        return {**asdict(self), "sweeps": sweeps}


class Board:
    """Runs and matrices by name, and whatever runs below folders."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Watch what paths name; a run or a matrix that is named itself is always shown.

        Raises:
            CheckpointError: One of them is not there.
        """
        kinds = {path: kind_of(path) for path in dict.fromkeys(paths)}
        self._folders = tuple(path for path, kind in kinds.items() if kind == "folder")
        self._named = {path: kind for path, kind in kinds.items() if kind != "folder"}
        self._found: dict[Path, str] = {}
        self._next_find = 0.0
        self._runs: dict[Path, RunWatch] = {}
        self._sweeps: dict[Path, SweepWatch] = {}
        self._was_at_work: dict[Path, str] = {}

    def look(self) -> BoardView:
        """Return what all of them are at now."""
        now = time.time()
        if self._folders and time.monotonic() >= self._next_find:
            self._found = {path: kind for path, kind in found_below(self._folders).items() if path not in self._named}
            self._next_find = time.monotonic() + FIND_EVERY_S
        runs, others = self._look_at_runs(now)
        sweeps, num_others = self._look_at_sweeps(now)
        return BoardView(now, runs, sweeps, others, num_others, tuple(map(str, self._folders)))

    def _paths(self, kind: str) -> list[Path]:
        # What was seen at work is shown until the end, also when its folder vanishes.
        known = {**self._was_at_work, **self._named, **self._found}
        return sorted(path for path, each in known.items() if each == kind)

    def _look_at_runs(self, now: float) -> tuple[tuple[RunView, ...], dict[str, int]]:
        shown, others = [], dict[str, int]()
        for path in self._paths("run"):
            is_shown = path in self._named or path in self._was_at_work
            if not is_shown and is_finished(path):  # most of many: not worth reading
                others["finished"] = others.get("finished", 0) + 1
                continue
            view = self._runs.setdefault(path, RunWatch(path)).look(now)
            if view.is_running:
                self._was_at_work[path] = "run"
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
                self._was_at_work[path] = "sweep"
            if path in self._named or path in self._was_at_work:
                shown.append(view)
            else:
                num_others += 1
        return tuple(shown), num_others
