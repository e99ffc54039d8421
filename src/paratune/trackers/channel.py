"""A queue in front of a tracker: a daemon thread makes the calls, so that the run never waits.

A full queue drops calls and counts them. An exception of the tracker is logged and switches it off. At the end, the
tracker has some seconds; a warning counts the calls that are left.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from paratune.errors import coded
from paratune.trackers.protocol import Status, TrackedRun, Tracker

log = logging.getLogger(__name__)

QUEUE_SIZE = 10_000
"""Maximum number of waiting calls; a step is one call."""
Call = Callable[[Tracker], None]

_unfinished: list[str] = []


def unfinished_trackers() -> list[str]:
    """Return the trackers that did not finish in time; the interpreter would wait for their threads at exit."""
    return list(_unfinished)


class Channel:
    """Makes the calls of a tracker in order, in another thread."""

    def __init__(self, name: str, tracker: Tracker, about: TrackedRun, *, size: int = QUEUE_SIZE) -> None:
        self.name = name
        self._tracker, self._about, self._size = tracker, about, size
        self._calls: deque[Call] = deque()
        self._condition = threading.Condition()
        self._status: Status | None = None
        self._is_off = False
        self._num_asked = 0
        self.num_dropped = 0
        """Calls that were dropped because the queue was full."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def put(self, call: Call) -> None:
        """Add a call; returns immediately."""
        with self._condition:
            self._num_asked += 1
            if self._is_off:
                return
            if len(self._calls) >= self._size:
                self.num_dropped += 1
                return
            self._calls.append(call)
            self._condition.notify()

    def close(self, status: Status) -> None:
        """Record that there are no more calls, and how the run ended; returns immediately."""
        with self._condition:
            self._status = status
            self._condition.notify()

    def wait(self, deadline: float) -> None:
        """Wait until `deadline` (`time.monotonic()`) for the tracker to finish; log lost calls."""
        is_ended = self._ended.wait(max(0.0, deadline - time.monotonic()))
        with self._condition:
            num_left = len(self._calls)
            # From now on an error in the thread is not logged: the run has ended, and the warning below is the last.
            self._is_off = True
            self._calls.clear()
        if self.num_dropped:
            log.warning(
                "trackers.%s: %d of %d calls were dropped, because the tracker is too slow",
                self.name,
                self.num_dropped,
                self._num_asked,
                extra=coded("tracker.figures_lost", tracker=self.name),
            )
        if not is_ended:
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
            while (call := self._next()) is not None:
                call(self._tracker)
            assert self._status is not None
            self._tracker.finish(self._status)
        except BaseException as error:  # also SystemExit: a package must not end the run
            self._switch_off(error)
        finally:
            self._ended.set()

    def _next(self) -> Call | None:
        """Wait for a call; None if there are no more."""
        with self._condition:
            while not self._calls and self._status is None and not self._is_off:
                self._condition.wait()
            return self._calls.popleft() if self._calls else None

    def _switch_off(self, error: BaseException) -> None:
        with self._condition:
            was_off, self._is_off = self._is_off, True
            self._calls.clear()
        if not was_off:
            text = f"{type(error).__name__}: {error}".strip().rstrip(":")
            log.warning(
                "trackers.%s is switched off, the run continues without it: %s",
                self.name,
                text,
                extra=coded("tracker.off", tracker=self.name),
            )
