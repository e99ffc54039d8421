"""The state of each rank of a run, from its event log, which is read while it grows."""

import json
import os
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paratune.records import ALL_PHASES
from paratune.records.finished import number_in

RECENT_BYTES = 512 * 1024
"""Bytes at the end of a log that are read completely; of the steps before them only some are read."""
SAMPLED_STEPS = 400
"""Maximum number of these earlier steps, for a curve."""
LONGEST_LINE = 1 << 20
"""Bytes that are read at once: a longer line is damaged, and counts as several."""
WINDOW = 50
"""Number of last steps for rates and shares."""
CURVE_POINTS = 2000
"""Number of stored losses; at twice as many, every second one is dropped."""
LAG = 0.2
"""A rank is a straggler if its own work takes longer than that of the others by more than this share, ..."""
LAG_OF_STEP = 0.05
"""... and by more than this share of the step."""
LATEST_S = 1e11
"""Unix time of the year 5138; a later one is damaged, and no calendar can show it."""
_STEP = b'{"event": "step"'


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
        """Number of read lines that are not events; of the earlier steps only some are read."""
        self.steps: deque[Mapping[str, Any]] = deque(maxlen=WINDOW)
        self.losses: list[tuple[int, float]] = []
        self.evaluation: Mapping[str, Any] = {}
        """The last one."""
        self.bests: list[tuple[int, Mapping[str, Any]]] = []
        """Step and scores of the evaluations that were the best so far."""
        self.time: float | None = None
        """Time of the last event, in Unix seconds."""
        self.doing: str | None = None
        """Its last logged activity since its last start."""
        self.ended: Mapping[str, Any] | None = None
        """Event with the reason of its end, if there is one."""
        self.pauses_s = 0.0
        """Seconds of evaluations and checkpoints."""
        self.longest_pause_s = 0.0
        self.step = 0

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
                old_bytes = status.st_size - RECENT_BYTES - self._offset
                wanted_from = file.seek(self._offset)
                while line := file.readline(LONGEST_LINE):
                    if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                        break
                    is_old = self._offset < status.st_size - RECENT_BYTES and line.startswith(_STEP)
                    if not is_old or self._offset >= wanted_from:
                        self._add_line(line)
                        wanted_from += is_old * old_bytes // SAMPLED_STEPS
                    self._offset += len(line)
        except FileNotFoundError:
            if self._inode is not None:
                self._inode = None
                self._begin()

    def _add_line(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            _ = event["event"] + ""
        except (ValueError, RecursionError, TypeError, KeyError):
            self.num_damaged += 1
            return
        self._add(event, event["event"])

    def _add(self, event: Mapping[str, Any], kind: str) -> None:
        if 0 < (time_s := number_in(event.get("time")) or 0) < LATEST_S:
            self.time = time_s
        if kind in ("step", "begin", "resume"):
            self.ended = None
        if kind == "step" and (step := whole(event.get("step"))) is not None:
            self.step = step
            self.steps.append(event)
            if (loss := number_in(event.get("loss"))) is not None:
                self.losses.append((step, loss))
            if len(self.losses) >= 2 * CURVE_POINTS:
                self.losses = self.losses[::2]
        elif kind == "begin":
            self.doing = str(event.get("doing"))
        elif kind == "resume":
            self._resume(whole(event.get("step")) or 0)
        elif kind in ("evaluation", "checkpoint"):
            seconds = number_in(event.get("time_s")) or 0.0
            self.pauses_s += seconds
            self.longest_pause_s = max(self.longest_pause_s, seconds)
            self.evaluation = event if kind == "evaluation" else self.evaluation
            if event.get("is_best") is True:
                self.bests.append((whole(event.get("step")) or 0, mapping(event.get("scores"))))
        elif kind in ("stop", "failure") or (kind == "out_of_memory" and event.get("next_micro_batch_size") is None):
            self.ended = event

    def _resume(self, step: int) -> None:
        """Drop the steps that are trained again."""
        self.step, self.doing = step, None
        self.losses = [point for point in self.losses if point[0] <= step]
        self.bests = [best for best in self.bests if best[0] <= step]
        kept = [event for event in self.steps if (whole(event.get("step")) or 0) <= step]
        self.steps = deque(kept, maxlen=WINDOW)

    def measured(self) -> list[Mapping[str, Any]]:
        """Return the last steps without warm-up and profiled ones, or all steps while there are no others."""
        return [step for step in self.steps if not step.get("warmup") and not step.get("profiled")] or list(self.steps)

    def mean_wall_s(self) -> float | None:
        """Return the mean seconds of the last steps."""
        walls = [wall for step in self.measured() if (wall := number_in(step.get("wall_ms"))) is not None]
        return statistics.fmean(walls) / 1000 if walls else None

    def own_ms(self, keys: Sequence[str]) -> float | None:
        """Return the median time of some phases over the last steps."""
        phases = [mapping(step.get("phases_ms")) for step in self.measured()]
        return (
            statistics.median(sum(number_in(ms.get(key)) or 0.0 for key in keys) for ms in phases) if phases else None
        )


def rates(logs: Sequence[RankLog]) -> tuple[float | None, float | None]:
    """Return tokens/s and samples/s of all ranks over the last steps; ranks that share their data count once.

    The only place where `paratune watch` computes a speed: reports have the rates of whole runs.
    """
    by_data_rank: dict[int | None, list[Mapping[str, Any]]] = {}
    for rank, log in enumerate(logs):
        if steps := log.measured():
            by_data_rank.setdefault(whole(steps[-1].get("data_rank", rank)), steps)
    return _rate(by_data_rank.values(), "num_tokens"), _rate(by_data_rank.values(), "num_samples")


def _rate(steps_of_ranks: Iterable[Sequence[Mapping[str, Any]]], key: str) -> float | None:
    """Return the sum over ranks of an amount per second of step time; None where a rank has no step with both."""
    rates_of_ranks = []
    for steps in steps_of_ranks:
        parts = [(number_in(step.get(key)), number_in(step.get("wall_ms")) or 0.0) for step in steps]
        known = [(amount, wall_ms) for amount, wall_ms in parts if amount is not None and wall_ms > 0]
        if not known:
            return None
        rates_of_ranks.append(1000 * sum(amount for amount, _ in known) / sum(wall_ms for _, wall_ms in known))
    return sum(rates_of_ranks) if rates_of_ranks else None


def phase_shares(logs: Sequence[RankLog]) -> dict[str, float]:
    """Return the share of each phase in the wall time of the last steps, over all ranks."""
    phases = [mapping(step.get("phases_ms")) for log in logs for step in log.measured()]
    totals = {key: sum(number_in(step.get(key)) or 0.0 for step in phases) for key in ALL_PHASES}
    whole_ms = sum(totals.values())
    return {key: value / whole_ms for key, value in totals.items()} if whole_ms > 0 else {}


def stragglers(logs: Sequence[RankLog], own_phases: Sequence[str]) -> dict[int, float]:
    """Return by which share the own work of a rank in a step takes longer than that of the others, for each straggler.

    Args:
        own_phases: Phases in which a rank does not wait for other ranks; may be empty.
    """
    own = {rank: own_ms for rank, log in enumerate(logs) if (own_ms := log.own_ms(own_phases)) is not None}
    usual = statistics.median_low(own.values()) if len(own) > 1 else 0.0
    least_ms = LAG_OF_STEP * 1000 * max((log.mean_wall_s() or 0.0 for log in logs), default=0.0)
    is_slow = {rank: own_ms > (1 + LAG) * usual > 0 and own_ms - usual > least_ms for rank, own_ms in own.items()}
    return {rank: own_ms / usual - 1 for rank, own_ms in own.items() if is_slow[rank]}


def whole(value: Any) -> int | None:
    """Return a value of a record if it is a whole number that a float can hold exactly, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else None


def text(value: Any) -> str | None:
    """Return a value of a record if it is text, else None."""
    return value if isinstance(value, str) else None


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a value of a record if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}
