"""Finds runs and matrices in a folder."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from paratune.base.text import plain
from paratune.errors import CheckpointError
from paratune.records import CHECKPOINTS_FOLDER, MODEL_FOLDER, RUN_FILE, SUMMARY_FILE, events_file
from paratune.records.run_folder import LOCK_FILE
from paratune.records.sweep import SWEEP_FILE

MAX_DEPTH = 6
"""Maximum depth of the search."""
_NO_RUNS = {CHECKPOINTS_FOLDER, MODEL_FOLDER, "report", "configs", "logs", "node_modules", "__pycache__"}
_SIGNS = {RUN_FILE, SUMMARY_FILE, events_file(0)}


def folder_kind(folder: Path) -> str:
    """Return the kind of a path: "sweep", "run" or "folder".

    Raises:
        CheckpointError: It does not exist, or is a file.
    """
    try:
        names = {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        raise CheckpointError(
            f"{plain(folder)} does not exist; give a run, a matrix or a folder of them",
            code="run.not_found",
            folder=folder,
        ) from None
    except NotADirectoryError:
        raise CheckpointError(
            f"{plain(folder)} is a file; give a run, a matrix or a folder of them", code="run.not_a_run", folder=folder
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"{plain(folder)} cannot be read: {error.strerror}", code="run.unreadable", folder=folder
        ) from error
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


def find_all(folders: Sequence[Path]) -> dict[Path, str]:
    """Return the kind of each run and matrix in some folders, by its own folder."""
    return {path: kind for folder in folders for kind, path in find(folder)}
