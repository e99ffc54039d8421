"""The trackers of one session of a run, on its first rank."""

import importlib
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from paratune.config.section import Section
from paratune.config.tracker_sections import Trackers
from paratune.errors import Stopped
from paratune.trackers.channel import Channel
from paratune.trackers.points import point_of, result_of
from paratune.trackers.protocol import About, Status, Tracker

FINISH_S = 30.0
"""Seconds that all trackers together have at the end of a finished run."""
STOP_S = 5.0
"""And of one that was stopped or failed: a batch system that sent the signal does not wait for long."""
TRACKERS = {
    "tensorboard": "paratune.trackers.tensorboard:TensorBoardTracker",
    "mlflow": "paratune.trackers.mlflow:MLflowTracker",
    "wandb": "paratune.trackers.wandb:WandBTracker",
    "trackio": "paratune.trackers.trackio:TrackioTracker",
}


class TrackerSession:
    """Tells all trackers what happens in the block; how the block ends is how the run ends there."""

    def __init__(self, section: Trackers | None, about: About) -> None:
        """Begin with the trackers of a section; None tells nobody, as on all ranks but the first."""
        named = section.named() if section is not None else {}
        self._channels = [Channel(name, _make(name, options), about) for name, options in named.items()]

    def event(self, event: str, values: Mapping[str, Any]) -> None:
        """Tell the figures of an event of the log, if it has any; returns at once."""
        if not self._channels or (point := point_of(event, values)) is None:
            return
        step, figures = point
        now = time.time()
        for channel in self._channels:
            channel.put(lambda tracker: tracker.log(step, now, figures))

    def result(self, summary: Mapping[str, Any]) -> None:
        """Tell the figures of summary.json; returns at once."""
        if self._channels:
            figures = result_of(summary)
            for channel in self._channels:
                channel.put(lambda tracker: tracker.result(figures))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        status: Status = "finished" if error is None else "stopped" if isinstance(error, Stopped) else "failed"
        for channel in self._channels:
            channel.close(status)
        deadline = time.monotonic() + (FINISH_S if error is None else STOP_S)
        for channel in self._channels:
            channel.wait(deadline)


def _make(name: str, options: Section) -> Tracker:
    module, _, attribute = TRACKERS[name].partition(":")
    tracker: Tracker = getattr(importlib.import_module(module), attribute)(options)
    return tracker
