"""Stores the run id of a tracker in the run folder, so that a resumed run continues in the tracker."""

from pathlib import Path

from paratune.errors import CheckpointError
from paratune.records import read_json, write_json
from paratune.trackers.protocol import TrackedRun


def load_run_id(about: TrackedRun, name: str) -> str | None:
    """Return the run id that an earlier session stored; None for a new run, and where it cannot be read."""
    try:
        stored = read_json(_file(about.folder, name)) if about.step > 0 else None
    except CheckpointError:
        return None
    run = stored.get("run") if isinstance(stored, dict) else None
    return run if isinstance(run, str) and run else None


def save_run_id(about: TrackedRun, name: str, run: str) -> None:
    """Store the run id of a tracker.

    Raises:
        CheckpointError: The file is not writable.
    """
    write_json(_file(about.folder, name), {"run": run})


def _file(folder: Path, name: str) -> Path:
    return folder / f"tracker.{name}.json"
