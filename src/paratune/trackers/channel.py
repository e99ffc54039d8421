"""One tracker behind a queue: the run puts figures in and goes on, a daemon thread hands them over.

A queue that is full drops, and counts. What the tracker raises is logged once and switches it off. At the end it has
some seconds; what has not been sent by then is named, and left behind.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from paratune.errors import coded
from paratune.trackers.protocol import About, Status, Tracker

log = logging.getLogger(__name__)

QUEUE_SIZE = 10_000
"""Calls that wait at most; a step is one."""
Call = Callable[[Tracker], None]

_left_behind: list[str] = []


def left_behind() -> list[str]:
    """Return the trackers that did not end in time: the interpreter would wait for them again at its own end."""
    return list(_left_behind)


class Channel:
    """Hands calls over to a tracker, in their order, in a thread of its own."""

    def __init__(self, name: str, tracker: Tracker, about: About, *, size: int = QUEUE_SIZE) -> None:
        self.name = name
        self._tracker, self._about, self._size = tracker, about, size
        self._calls: deque[Call] = deque()
        self._condition = threading.Condition()
        self._status: Status | None = None
        self._is_off = False
        self._num_asked = 0
        self.num_dropped = 0
        """Calls that found the queue full."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def put(self, call: Call) -> None:
        """Have something told; returns at once."""
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
        """Say that nothing more will be told, and how the run ended; returns at once."""
        with self._condition:
            self._status = status
            self._condition.notify()

    def wait(self, deadline: float) -> None:
        """Give it until `deadline` (`time.monotonic()`) to end; say what was not told."""
        is_ended = self._ended.wait(max(0.0, deadline - time.monotonic()))
        with self._condition:
            num_left = len(self._calls)
            self._is_off = True
            self._calls.clear()
        if self.num_dropped:
            log.warning(
                "trackers.%s: %d of %d figures were left out, because it took them too slowly",
                self.name,
                self.num_dropped,
                self._num_asked,
                extra=coded("tracker.figures_lost", tracker=self.name),
            )
        if not is_ended:
            _left_behind.append(self.name)
            log.warning(
                "trackers.%s: it did not end in time and was left behind%s; the run's own record is whole",
                self.name,
                f", {num_left} figures were not sent" if num_left else "",
                extra=coded("tracker.left_behind", tracker=self.name),
            )

    def _work(self) -> None:
        try:
            self._tracker.start(self._about)
            while (call := self._next()) is not None:
                call(self._tracker)
            assert self._status is not None
            self._tracker.finish(self._status)
        except BaseException as error:  # also SystemExit: a package must not decide what becomes of the run
            self._switch_off(error)
        finally:
            self._ended.set()

    def _next(self) -> Call | None:
        """Wait for a call; None when there will be no more."""
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
