"""Finds runs and matrices in folders, and watches several of them together."""

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paratune.base.text import plain
from paratune.errors import CheckpointError
from paratune.records import CHECKPOINTS_FOLDER, MODEL_FOLDER, RUN_FILE, SUMMARY_FILE, events_file, is_finished
from paratune.records.run_folder import LOCK_FILE
from paratune.records.sweep import SWEEP_FILE
from paratune.watch.run import RunView, RunWatch
from paratune.watch.sweep import SweepView, SweepWatch

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
    num_other_sweeps: int = 0
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
        kinds = {path: folder_kind(path) for path in dict.fromkeys(paths)}
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
            watch = self._watches.setdefault(path, RunWatch(path) if kind == "run" else SweepWatch(path))
            view = watch.look(now)
            if view.is_running:
                self._shown[path] = kind
            if path in self._shown:
                shown.append(view)
            else:
                others[view.state if isinstance(view, RunView) else "sweep"] += 1
        del others["gone"]
        num_sweeps = others.pop("sweep", 0)
        return BoardView(
            now,
            tuple(view for view in shown if isinstance(view, RunView)),
            tuple(view for view in shown if isinstance(view, SweepView)),
            dict(others),
            num_sweeps,
            tuple(map(str, self._folders)),
        )


def folder_kind(folder: Path) -> str:
    """Return the kind of a path: "sweep", "run" or "folder".

    Raises:
        CheckpointError: It does not exist, or is a file.
    """
    try:
        return _kind({path.name for path in folder.iterdir()}) or "folder"
    except OSError as error:
        code = {FileNotFoundError: "run.not_found", NotADirectoryError: "run.not_a_run"}.get(type(error))
        message = f"{plain(folder)} cannot be read: {error.strerror}; give a run, a matrix or a folder of them"
        raise CheckpointError(message, code=code or "run.unreadable", folder=folder) from error


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
