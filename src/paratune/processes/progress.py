"""The progress of a rank: written by the training, read by its watchdog thread."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RankProgress:
    """Plain attributes, each written by one thread only, so that training takes no lock.

    All progress increments `num_beats`: begin and end of a phase, evaluated batches, tokenized rows, written tensors.
    """

    def __init__(self) -> None:
        self.num_beats = 0
        self.doing = "starting"
        self.phase: str | None = None
        """Phase of the step; None outside of steps."""
        self.step = 0
        """Current optimizer step, counted from 1; 0 before the first."""
        self.detail = ""
        """Progress of the current task, such as "tokenize 300/1000"."""
        self.since = time.time()
        """Time of the last change of `doing` or `phase`."""
        self.run_folder: Path | None = None
        """Run folder, for evidence, once it belongs to this run."""
        self.work: str | None = None
        """Name of a call that reports no progress, such as a download; None outside of such calls."""
        self.num_works = 0
        """Number of such calls."""
        self.num_signs = 0
        """Signs of progress of such a call; written by the watchdog."""
        self.work_bytes = 0
        """Bytes read, written or received in this call; written by the watchdog."""
        self.news = threading.Event()
        """Wakes the watchdog."""

    def tick(self) -> None:
        """Record progress."""
        self.num_beats += 1

    def begin(self, doing: str) -> None:
        """Record a new task."""
        if doing != self.doing:
            self.doing, self.detail, self.since = doing, "", time.time()
        self.num_beats += 1

    def set_run_folder(self, folder: Path) -> None:
        """Record that the run folder belongs to this run, and write the first heartbeat."""
        self.run_folder = folder
        self.news.set()

    def report(self, label: str, done: int, total: int) -> None:
        """Record the progress of a task; unchanged numbers are no progress."""
        detail = f"{label} {done}/{total}"
        if detail != self.detail:
            self.detail = detail
            self.num_beats += 1

    def enter_phase(self, phase: str | None) -> None:
        """Record the begin of a phase of the step; None for the end of the step."""
        self.phase, self.since = phase, time.time()
        self.num_beats += 1

    @contextmanager
    def working(self, work: str) -> Iterator[None]:
        """Record a call that reports no progress, such as "load the model"; `work.py` then measures its activity.

        The block must not contain a collective: one that hangs on a GPU keeps a core busy.
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


_watched: list[RankProgress] = []
"""Progress of the watched run of this process, if any."""


@contextmanager
def current(rank_progress: RankProgress) -> Iterator[None]:
    """Use `rank_progress` in `working` during the block."""
    _watched.append(rank_progress)
    try:
        yield
    finally:
        _watched.remove(rank_progress)


@contextmanager
def working(work: str) -> Iterator[None]:
    """Call `RankProgress.working` of the watched run of this process, if any."""
    if not _watched:
        yield
        return
    with _watched[-1].working(work):
        yield
