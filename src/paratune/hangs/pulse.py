"""What a rank is at: noted by the training as it goes on, read by the thread that watches it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Pulse:
    """A few plain attributes, each written by one thread alone; no lock is taken while it trains.

    Every sign of progress makes `num_beats` larger: a phase that begins or ends, a batch that is evaluated, some rows
    that are tokenized, a tensor that is written.
    """

    def __init__(self) -> None:
        self.num_beats = 0
        self.doing = "starting"
        self.phase: str | None = None
        """Of the step; None outside of steps."""
        self.step = 0
        """The optimizer step that is being taken, counted from 1; 0 before the first."""
        self.detail = ""
        """How far what is done is, such as "tokenize 300/1000"."""
        self.since = time.time()
        """When `doing` or `phase` last changed."""
        self.run_folder: Path | None = None
        """Once it is this run's; evidence goes there."""
        self.work: str | None = None
        """A single call that reports no progress itself, such as a download; None outside of such calls."""
        self.num_works = 0
        """Calls of that kind that were begun."""
        self.num_signs = 0
        """Signs that such a call goes on; written by the watching thread."""
        self.work_bytes = 0
        """Read, written or received within that call; written by the watching thread."""
        self.news = threading.Event()
        """Wakes the watching thread before its time."""

    def beat(self) -> None:
        """Note that something went on."""
        self.num_beats += 1

    def begins(self, doing: str) -> None:
        """Note what is done from now on."""
        if doing != self.doing:
            self.doing, self.detail, self.since = doing, "", time.time()
        self.num_beats += 1

    def holds(self, folder: Path) -> None:
        """Note that the run folder is this run's: from now on the other ranks hear of this one at once."""
        self.run_folder = folder
        self.news.set()

    def goes_on(self, label: str, done: int, total: int) -> None:
        """Note how far a piece of work is; the same figures twice are no progress."""
        detail = f"{label} {done}/{total}"
        if detail != self.detail:
            self.detail = detail
            self.num_beats += 1

    def enter(self, phase: str | None) -> None:
        """Note that a phase of the step begins; None: that it ends, and no other one goes on."""
        self.phase, self.since = phase, time.time()
        self.num_beats += 1

    @contextmanager
    def working(self, work: str) -> Iterator[None]:
        """Note a single call that reports no progress itself; while it lasts, signs of the system count (`work.py`).

        No collective may be in it: one that hangs on a GPU keeps a core busy.

        Args:
            work: What is done, such as "load the model".
        """
        before = self.work, self.detail
        self.work_bytes, self.detail, self.work, self.since = 0, work, work, time.time()
        self.num_works += 1
        self.num_beats += 1
        try:
            yield
        finally:
            self.work, self.detail = before
            self.num_beats += 1


_watched: list[Pulse] = []
"""The pulse of the run of this process that is watched, if there is one."""


@contextmanager
def current(pulse: Pulse) -> Iterator[None]:
    """Let `working` reach a pulse as long as the block lasts."""
    _watched.append(pulse)
    try:
        yield
    finally:
        _watched.remove(pulse)


@contextmanager
def working(work: str) -> Iterator[None]:
    """Do as `Pulse.working` with the run of this process that is watched; nothing where there is none."""
    if not _watched:
        yield
        return
    with _watched[-1].working(work):
        yield
