"""The protocol of trackers: four methods, all called in the same thread."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

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
