"""What a tracker keeps in the run folder, so that a run that is gone on with goes on there as well."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from paratune.errors import CheckpointError
from paratune.records import read_json, write_json


def tracker_file(folder: Path, name: str) -> Path:
    return folder / f"tracker.{name}.json"


def kept_id(folder: Path, name: str) -> str | None:
    """Return by what a tracker knows the run, if an earlier session told it of this run."""
    found: Any = None
    with suppress(CheckpointError):
        found = read_json(tracker_file(folder, name))
    run = found.get("run") if isinstance(found, dict) else None
    return run if isinstance(run, str) and run else None


def keep_id(folder: Path, name: str, run: str) -> None:
    """Keep by what a tracker knows the run.

    Raises:
        CheckpointError: It cannot be written.
    """
    write_json(tracker_file(folder, name), {"run": run})
