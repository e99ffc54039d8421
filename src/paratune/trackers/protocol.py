"""What a tracker is to a run: four calls, all of them made in one thread of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

Status = Literal["finished", "stopped", "failed"]
"""How a run ended; stopped by a signal, after which it may be gone on with."""


@dataclass(frozen=True)
class About:
    """The run that is told of."""

    name: str
    folder: Path
    """Of the run; a tracker keeps there what it needs to go on."""
    step: int
    """Steps taken before this session: not 0 when the run is gone on with."""
    config: Mapping[str, Any]
    """The resolved configuration, and on what it runs, by dotted key."""


class Tracker(Protocol):
    """Any of its methods may take long, raise or never return."""

    def start(self, about: About) -> None:
        """Import the package, and begin a run there or go on with the one of an earlier session."""
        ...

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Tell figures of a step (counted from 1); `time` in Unix seconds."""
        ...

    def result(self, values: Mapping[str, float]) -> None:
        """Tell the figures of the finished run."""
        ...

    def finish(self, status: Status) -> None:
        """Write or send all that was told, and end the run there."""
        ...
