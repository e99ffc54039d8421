"""Stores the run id of a tracker in the run folder, so that a resumed run continues in the tracker."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from paratune.errors import CheckpointError
from paratune.records import read_json, write_json


def tracker_file(folder: Path, name: str) -> Path:
    return folder / f"tracker.{name}.json"


def load_run_id(folder: Path, name: str) -> str | None:
    """Return the run id that an earlier session stored, or None."""
    stored: Any = None
    with suppress(CheckpointError):
        stored = read_json(tracker_file(folder, name))
    run = stored.get("run") if isinstance(stored, dict) else None
    return run if isinstance(run, str) and run else None


def save_run_id(folder: Path, name: str, run: str) -> None:
    """Store the run id of a tracker.

    Raises:
        CheckpointError: The file is not writable.
    """
    write_json(tracker_file(folder, name), {"run": run})
