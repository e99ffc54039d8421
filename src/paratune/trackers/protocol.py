"""The protocol of trackers: four methods, all called in the same thread; and the run ids of trackers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from paratune.errors import CheckpointError
from paratune.records import read_json, write_json

Status = Literal["finished", "stopped", "failed"]
"""How a run ended; `stopped` by a signal, so that it can be resumed."""


@dataclass(frozen=True)
class TrackedRun:
    """The run of a tracker."""

    name: str
    folder: Path
    """Run folder; a tracker stores its run id there."""
    step: int
    """Number of steps before this session; above 0 for a resumed run."""
    config: Mapping[str, Any]
    """Resolved configuration, and hardware and software, by dotted key."""


class Tracker(Protocol):
    """A tracker; any method may block or raise."""

    def start(self, about: TrackedRun) -> None:
        """Import the package, and start a run in the tracker or continue that of an earlier session."""
        ...

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Log the metrics of a step (counted from 1); `time` in Unix seconds."""
        ...

    def log_summary(self, values: Mapping[str, float]) -> None:
        """Log the metrics of the finished run."""
        ...

    def finish(self, status: Status) -> None:
        """Write or send all logged metrics, and end the run in the tracker."""
        ...


def load_run_id(about: TrackedRun, name: str) -> str | None:
    """Return the run id that an earlier session stored; None for a new run, and where it cannot be read."""
    try:
        stored = read_json(_id_file(about.folder, name)) if about.step > 0 else None
    except CheckpointError:
        return None
    run = stored.get("run") if isinstance(stored, dict) else None
    return run if isinstance(run, str) and run else None


def save_run_id(about: TrackedRun, name: str, run: str) -> None:
    """Store the run id of a tracker in the run folder, so that a resumed run continues in the tracker.

    Raises:
        CheckpointError: The file is not writable.
    """
    write_json(_id_file(about.folder, name), {"run": run})


def _id_file(folder: Path, name: str) -> Path:
    return folder / f"tracker.{name}.json"
