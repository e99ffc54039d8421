"""The trackers of one session of a run, on rank 0: which metrics they get, and how, without blocking training."""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from paratune.config.optional_sections import Trackers
from paratune.errors import Stopped, coded
from paratune.trackers.adapters import (
    MLflowTracker,
    Status,
    TensorBoardTracker,
    TrackedRun,
    Tracker,
    WandBTracker,
)

log = logging.getLogger(__name__)

QUEUE_SIZE = 10_000
"""Maximum number of waiting calls of a tracker; a step is one call."""
FINISH_S = 30.0
"""Seconds that all trackers have together at the end of a finished run."""
STOP_S = 5.0
"""The same for a stopped or failed run: after a signal, a batch system waits only briefly."""
TRACKERS: Mapping[str, Callable[[Any], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MLflowTracker,
    "wandb": WandBTracker,
}
Call = Callable[[Tracker], None]

_unfinished: list[str] = []


def unfinished_trackers() -> list[str]:
    """Return the trackers that did not finish in time; the interpreter would wait for their threads at exit."""
    return list(_unfinished)


class Channel:
    """A queue in front of a tracker: a daemon thread makes the calls, so that the run never waits.

    A full queue drops calls and counts them. An exception of the tracker is logged and switches it off. At the end, the
    tracker has some seconds; a warning counts the calls that are left.
    """

    def __init__(self, name: str, tracker: Tracker, about: TrackedRun, *, size: int = QUEUE_SIZE) -> None:
        self.name = name
        self._tracker, self._about, self._size = tracker, about, size
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        """None is the last one."""
        self._status: Status = "failed"
        self._is_off = False
        self._num_asked = 0
        self.num_dropped = 0
        """Calls that were dropped because the queue was full."""
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def put(self, call: Call) -> None:
        """Add a call; returns immediately."""
        self._num_asked += 1
        if self._is_off:
            return
        if self._calls.qsize() >= self._size:
            self.num_dropped += 1
        else:
            self._calls.put(call)

    def close(self, status: Status) -> None:
        """Record that there are no more calls, and how the run ended; returns immediately."""
        self._status = status
        self._calls.put(None)

    def wait(self, deadline: float) -> None:
        """Wait until `deadline` (`time.monotonic()`) for the tracker to finish; log lost calls."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        num_left = max(0, self._calls.qsize() - 1)
        # From now on an error in the thread is not logged: the run has ended, and the warning below is the last.
        self._is_off = True
        if self.num_dropped:
            log.warning(
                "trackers.%s: %d of %d calls were dropped, because the tracker is too slow",
                self.name,
                self.num_dropped,
                self._num_asked,
                extra=coded("tracker.figures_lost", tracker=self.name),
            )
        if self._thread.is_alive():
            _unfinished.append(self.name)
            log.warning(
                "trackers.%s: it did not finish in time%s; the record in the run folder is complete",
                self.name,
                f", {num_left} calls were not made" if num_left else "",
                extra=coded("tracker.left_behind", tracker=self.name),
            )

    def _work(self) -> None:
        try:
            self._tracker.start(self._about)
            while (call := self._calls.get()) is not None and not self._is_off:
                call(self._tracker)
            self._tracker.finish(self._status)
        except BaseException as error:  # also SystemExit: a package must not end the run
            if not self._is_off:
                self._is_off = True
                text = f"{type(error).__name__}: {error}".strip().rstrip(":")
                log.warning(
                    "trackers.%s is switched off, the run continues without it: %s",
                    self.name,
                    text,
                    extra=coded("tracker.off", tracker=self.name),
                )


class TrackerSession:
    """Sends metrics to all trackers; as a context manager, it sends the status at the end of the block."""

    def __init__(self, section: Trackers | None, about: TrackedRun) -> None:
        """Start the trackers of a section; None on all ranks but the first."""
        named = section.named() if section is not None else {}
        self._channels = [Channel(name, TRACKERS[name](options), about) for name, options in named.items()]

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


def event_metrics(event: str, values: Mapping[str, Any]) -> tuple[int, dict[str, float]] | None:
    """Return the step of an event and its metrics by name, or None if it has none."""
    step = values.get("step")
    if not isinstance(step, int):
        return None
    if event == "step":
        wall_ms, keys = values["wall_ms"], ("loss", "grad_norm", "learning_rate", "epoch", "loss_scale")
        numbers = {f"train/{key}": values.get(key) for key in keys}
        numbers |= {f"phases_ms/{name}": duration for name, duration in values["phases_ms"].items()}
        numbers["phases_ms/step"] = wall_ms
        # Rank 0 only: the throughput of all ranks is in the summary.
        for counted in ("tokens", "samples"):
            numbers[f"rank0/{counted}_per_s"] = 1000 * values[f"num_{counted}"] / wall_ms if wall_ms else None
        return step, finite_numbers(numbers | {"rank0/memory_bytes": values.get("memory_bytes")})
    if event == "evaluation":
        scores = {f"{values['split']}/{name}": value for name, value in values["scores"].items()}
        return step, finite_numbers({**scores, f"{values['split']}/time_s": values.get("time_s")})
    if event == "checkpoint":
        return step, finite_numbers({f"checkpoint/{key}": values.get(key) for key in ("time_s", "num_bytes")})
    return None


def summary_metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a finished run: kept step, its scores, times, throughput, phases and memory."""
    values: dict[str, Any] = {f"final/{name}": summary.get(name) for name in ("num_steps", "kept_step")}
    for split, scores in summary["scores"].items():
        values |= {f"final/{split}/{name}": value for name, value in scores.items()}
    for part in ("time", "throughput"):
        values |= {f"final/{name}": value for name, value in summary[part].items()}
    values |= {f"final/phase_share/{name}": phase["share"] for name, phase in summary["phases"].items()}
    values["final/memory_largest_bytes"] = summary["memory"]["largest_bytes"]
    return finite_numbers(values)


def finite_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among values, since trackers treat others differently."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
