"""The trackers of one session of a run, on rank 0."""

import importlib
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from paratune.config.optional_sections import Trackers
from paratune.config.section import Section
from paratune.errors import Stopped
from paratune.trackers.channel import Channel
from paratune.trackers.metrics import event_metrics, summary_metrics
from paratune.trackers.protocol import Status, TrackedRun, Tracker

FINISH_S = 30.0
"""Seconds that all trackers have together at the end of a finished run."""
STOP_S = 5.0
"""The same for a stopped or failed run: after a signal, a batch system waits only briefly."""
TRACKERS = {
    "tensorboard": "paratune.trackers.tensorboard:TensorBoardTracker",
    "mlflow": "paratune.trackers.mlflow:MLflowTracker",
    "wandb": "paratune.trackers.wandb:WandBTracker",
}


class TrackerSession:
    """Sends metrics to all trackers; as a context manager, it sends the status at the end of the block."""

    def __init__(self, section: Trackers | None, about: TrackedRun) -> None:
        """Start the trackers of a section; None on all ranks but the first."""
        named = section.named() if section is not None else {}
        self._channels = [Channel(name, _make(name, options), about) for name, options in named.items()]

    def log_event(self, event: str, values: Mapping[str, Any]) -> None:
        """Log the metrics of an event, if it has any; returns immediately."""
        if not self._channels or (point := event_metrics(event, values)) is None:
            return
        step, figures = point
        now = time.time()  # of the event; the thread of a tracker may make the call much later
        for channel in self._channels:
            channel.put(lambda tracker: tracker.log(step, now, figures))

    def log_summary(self, summary: Mapping[str, Any]) -> None:
        """Log the metrics of summary.json; returns immediately."""
        if self._channels:
            figures = summary_metrics(summary)
            for channel in self._channels:
                channel.put(lambda tracker: tracker.log_summary(figures))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        status: Status = "finished" if error is None else "stopped" if isinstance(error, Stopped) else "failed"
        # Close all before waiting for the first: the trackers finish at the same time, within one deadline.
        for channel in self._channels:
            channel.close(status)
        deadline = time.monotonic() + (FINISH_S if error is None else STOP_S)
        for channel in self._channels:
            channel.wait(deadline)


def _make(name: str, options: Section) -> Tracker:
    module, _, attribute = TRACKERS[name].partition(":")
    tracker: Tracker = getattr(importlib.import_module(module), attribute)(options)
    return tracker
