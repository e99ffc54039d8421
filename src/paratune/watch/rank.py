"""The state of each rank of a run, from its event log, which is read while it grows."""

import json
import os
import statistics
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from paratune.records import MOST_STEPS

RECENT_BYTES = 512 * 1024
"""Bytes at the end of a log in which steps are read; what other events say is read from the whole log."""
LONGEST_LINE = 1 << 20
"""Bytes that are read at once: a longer line is damaged, and counts as several."""
WINDOW = 50
"""Number of last steps for rates and shares."""
LATEST_S = 1e11
"""Unix time of the year 5138; a later one is damaged, and no calendar can show it."""
_STEP = b'{"event": "step"'


class Event(BaseModel):
    """The values of an event that are shown. An event with a value of another type is damaged."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    event: str
    time: float | None = Field(default=None, gt=0, lt=LATEST_S)
    step: int | None = Field(default=None, gt=-MOST_STEPS, lt=MOST_STEPS)
    loss: float | None = None
    learning_rate: float | None = None
    data_rank: int | None = None
    """Ranks with the same number see the same samples."""
    num_samples: float | None = None
    num_tokens: float | None = None
    wall_ms: float | None = Field(default=None, ge=0, lt=1000 * LATEST_S)
    memory_bytes: float | None = None
    warmup: bool | None = None
    profiled: bool | None = None
    split: str | None = None
    scores: dict[str, float | None] | None = None
    time_s: float | None = Field(default=None, lt=LATEST_S)
    """Of a pause: an evaluation or a checkpoint."""
    doing: str | None = None
    next_micro_batch_size: int | None = None
    signal: str | None = None
    error: str | None = None
    message: str | None = None


class RankLog:
    """The event log of a rank: its last steps, and what its other events say. Memory does not grow with the log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode: int | None = None
        self._begin()

    def _begin(self) -> None:
        """Forget everything: the log is a new file."""
        self._offset = 0
        self.num_damaged = 0
        """Number of read lines that are not events; earlier steps are not read."""
        self.step = 0
        self.steps: deque[Event] = deque(maxlen=WINDOW)
        self.evaluation: Event | None = None
        self.time: float | None = None
        self.doing: str | None = None
        """Its last logged activity since its last start."""
        self.ended: Event | None = None
        """Event with the reason of its end, if there is one."""
        self.pauses_s = 0.0

    def read(self) -> None:
        """Read the lines since the last call; an incomplete last line is read when it is complete.

        The file is opened in each call: on a network file system an open file may have old content.

        Raises:
            OSError: The file exists and cannot be read.
        """
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._begin()
                    self._inode = status.st_ino
                file.seek(self._offset)
                while line := file.readline(LONGEST_LINE):
                    if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                        break
                    is_old = self._offset < status.st_size - RECENT_BYTES and line.startswith(_STEP)
                    if not is_old:
                        self._add_line(line)
                    self._offset += len(line)
        except FileNotFoundError:
            if self._inode is not None:
                self._inode = None
                self._begin()

    def _add_line(self, line: bytes) -> None:
        try:
            event = Event.model_validate(json.loads(line))
        except (ValueError, RecursionError):
            self.num_damaged += 1
            return
        kind, step = event.event, event.step or 0
        self.time = event.time or self.time
        if kind in ("step", "begin", "resume"):
            self.ended = None
        if kind == "step" and event.step is not None:
            self.step = step
            self.steps.append(event)
        elif kind == "begin":
            self.doing = event.doing
        elif kind == "resume":  # the steps after it are trained again
            self.step, self.doing = step, None
            self.steps = deque((old for old in self.steps if (old.step or 0) <= step), maxlen=WINDOW)
        elif kind in ("evaluation", "checkpoint"):
            self.pauses_s += event.time_s or 0.0
            self.evaluation = event if kind == "evaluation" else self.evaluation
        elif kind in ("stop", "failure") or (kind == "out_of_memory" and event.next_micro_batch_size is None):
            self.ended = event

    def measured(self) -> list[Event]:
        """Return the last steps without warm-up and profiled ones, or all steps while there are no others."""
        return [step for step in self.steps if not step.warmup and not step.profiled] or list(self.steps)

    def mean_wall_s(self) -> float | None:
        walls = [step.wall_ms for step in self.measured() if step.wall_ms is not None]
        return statistics.fmean(walls) / 1000 if walls else None

    def rate(self, amount: Literal["num_tokens", "num_samples"]) -> float | None:
        """Return an amount per second of step time over the last steps; None without a step that has both."""
        steps = [(getattr(step, amount), step.wall_ms) for step in self.measured() if step.wall_ms]
        known = [(value, wall_ms) for value, wall_ms in steps if value is not None]
        return 1000 * sum(value for value, _ in known) / sum(wall for _, wall in known) if known else None


def total_rate(logs: Sequence[RankLog], amount: Literal["num_tokens", "num_samples"]) -> float | None:
    """Return an amount per second of all ranks; ranks that share their data count once, None where one is unknown.

    The only place where `paratune watch` computes a speed: reports have the rates of whole runs.
    """
    by_data: dict[int, float | None] = {}
    for rank, log in enumerate(logs):
        if log.steps:
            data_rank = log.steps[-1].data_rank
            by_data.setdefault(rank if data_rank is None else data_rank, log.rate(amount))
    known = [rate for rate in by_data.values() if rate is not None]
    return sum(known) if known and len(known) == len(by_data) else None
