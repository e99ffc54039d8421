"""The state of a run and of its ranks, from its folder and its event logs, which are read while they grow."""

import json
import os
import platform
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from paratune.errors import CheckpointError
from paratune.records import MAX_RANKS, MOST_STEPS, RUN_FILE, events_file, is_finished
from paratune.records.finished import RunRecord, in_session, read_typed
from paratune.records.run_folder import LOCK_FILE, is_in_use
from paratune.records.typed import RunFile, Summary

RECENT_BYTES = 512 * 1024
"""Bytes at the end of a log in which steps are read; what other events say is read from the whole log."""
LONGEST_LINE = 1 << 20
"""Bytes that are read at once: a longer line is damaged, and is passed over."""
MOST_POINTS = 400
"""Points of a curve; of a full one every second point is left out."""
WINDOW = 50
"""Number of last steps for rates and shares."""
LATEST_S = 1e11
"""Unix time of the year 5138; a later one is damaged, and no calendar can show it."""
_STEP = b'{"event": "step"'


class Event(BaseModel):
    """The values of an event that are shown. One with a value of another type is damaged, and passed over."""

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
        self.step = 0
        self.steps: deque[Event] = deque(maxlen=WINDOW)
        self.evaluations: deque[Event] = deque(maxlen=MOST_POINTS)
        self.losses: list[tuple[int, float]] = []
        self._next_old = 0  # offset of the next early step that is read, for the curve
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
                    if not is_old or self._offset >= self._next_old:
                        self._next_old = self._offset + status.st_size // MOST_POINTS
                        self._add_line(line, is_old=is_old)
                    self._offset += len(line)
        except FileNotFoundError:
            if self._inode is not None:
                self._inode = None
                self._begin()

    def _add_line(self, line: bytes, *, is_old: bool) -> None:
        try:
            event = Event.model_validate(json.loads(line))
        except (ValueError, RecursionError):
            return
        kind, step = event.event, event.step or 0
        curve = self.losses
        # As far as the point before; early steps are read at distances that vary by a step.
        is_far = is_old or len(curve) < 2 or step - curve[-1][0] >= curve[-1][0] - curve[-2][0]
        if kind == "step" and event.loss is not None and is_far:
            curve.append((step, event.loss))
        if len(curve) == 2 * MOST_POINTS:
            del curve[1::2]
        if is_old:
            return
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
            self.steps, self.evaluations = (
                deque((old for old in events if (old.step or 0) <= step), events.maxlen)
                for events in (self.steps, self.evaluations)
            )
            self.losses = [point for point in self.losses if point[0] <= step]
        elif kind in ("evaluation", "checkpoint"):
            self.pauses_s += event.time_s or 0.0
            self.evaluations += [event] * (kind == "evaluation")
        elif kind in ("stop", "failure") or (kind == "out_of_memory" and event.next_micro_batch_size is None):
            self.ended = event

    def measured(self) -> list[Event]:
        """Return the last steps without warm-up and profiled ones, or all steps while there are no others."""
        return [step for step in self.steps if not step.warmup and not step.profiled] or list(self.steps)


def total_rate(logs: Sequence[RankLog], amount: Literal["num_tokens", "num_samples"]) -> float | None:
    """Return an amount per second of step time of all ranks, over their last steps; None where one is unknown.

    Ranks that share their data count once. The only place where `paratune watch` computes a speed: reports have the
    rates of whole runs.
    """
    rates: dict[int, float] = {}
    for rank, log in enumerate(logs):
        data_rank = log.steps[-1].data_rank if log.steps else None
        if log.steps and (key := rank if data_rank is None else data_rank) not in rates:
            steps = [(getattr(step, amount), step.wall_ms) for step in log.measured() if step.wall_ms]
            known = [(value, wall_ms) for value, wall_ms in steps if value is not None]
            if not known:
                return None
            rates[key] = 1000 * sum(value for value, _ in known) / sum(wall_ms for _, wall_ms in known)
    return sum(rates.values()) if rates else None


SILENT_S = 60.0
"""Seconds without an event after which the time of the last one is shown."""
RECENT_S = 600.0
"""Seconds without an event up to which a run of another machine counts as running, where its lock is not seen here."""
State = Literal[
    "starting", "training", "evaluating", "saving", "finished", "stopped", "failed", "killed", "waiting",
    "skipped", "gone", "damaged",
]  # fmt: skip
"""stopped: by a signal, after saving; killed: no process trains it, and it has no record of a reason; waiting, skipped:
in a matrix; gone: its folder was deleted, or cannot be read; damaged: it ended, and its record cannot be read."""
RUNNING: tuple[State, ...] = ("starting", "training", "evaluating", "saving")
_DOING: Mapping[str, State] = {
    "training": "training",
    "evaluating": "evaluating",
    "writing a checkpoint": "saving",
    "writing the model": "saving",
    "comparing with the plan": "saving",
}


@dataclass(frozen=True)
class RunView:
    name: str
    folder: str
    state: State
    since: float | None = None
    reason: str | None = None
    """Reason of its state, or why its record cannot be read."""
    host: str | None = None
    strategy: str | None = None
    device: str | None = None
    world_size: float | None = None
    step: float | None = None
    num_steps: float | None = None
    loss: float | None = None
    learning_rate: float | None = None
    tokens_per_s: float | None = None
    """Of all ranks, over the last steps, without pauses."""
    samples_per_s: float | None = None
    memory_bytes: float | None = None
    """Largest peak of a rank so far."""
    scores: Mapping[str, float | None] = field(default_factory=dict)
    """Of the last evaluation, on the split `scored_on` at the step `scored_at`; of a finished run at its kept step."""
    scored_at: float | None = None
    scored_on: str | None = None
    losses: Sequence[tuple[int, float]] = ()
    """Training loss of some steps, and the scores of each evaluation; of runs of a matrix there are none."""
    evaluations: Sequence[tuple[int, Mapping[str, float | None]]] = ()
    metric: str | None = None
    """The metric that selects the kept model; None if the last model is kept."""
    total_s: float | None = None
    """Of a finished run; in a matrix of all starts of a run that ended."""
    left_s: float | None = None
    """Estimated seconds to the last step, with evaluations and checkpoints as before."""

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING

    def silent_s(self, now: float) -> float | None:
        """Return the seconds since the last event of a run that was killed, or is silent for long; else None."""
        silence = None if self.since is None else now - self.since
        # While a run starts, its log is that of the previous session.
        is_active = self.is_running and self.state != "starting"
        is_long = silence is not None and (self.state == "killed" or (is_active and silence > SILENT_S))
        return silence if is_long else None


@dataclass
class RunWatch:
    folder: Path
    has_curves: bool = False
    _logs: list[RankLog] = field(default_factory=list, init=False)

    def look(self, now: float | None = None) -> RunView:
        """Return the state of the run; `now` in Unix seconds. Any content of the folder is accepted."""
        now = time.time() if now is None else now
        is_there = self.folder.is_dir()
        if not is_there or not os.access(self.folder, os.R_OK | os.X_OK):  # whether a process trains it is unknown
            problem = f"its folder {'cannot be read' if is_there else 'does not exist any more'}"
            return RunView(self.folder.name, str(self.folder), "gone", reason=problem)
        run, summary, damage = RunFile(), Summary(), None
        # Before the summary is read: a run that ends in between is finished at the next look.
        is_done = is_finished(self.folder)
        try:
            if is_done or (self.folder / RUN_FILE).is_file():
                run = in_session(self.folder, read_typed(self.folder, RunFile))
            if is_done:
                summary = read_typed(self.folder, Summary)
        except (CheckpointError, OSError) as error:
            damage = str(error)
        record = RunRecord(self.folder.name, self.folder, run, summary)
        about: dict[str, Any] = {
            "name": self.folder.name,
            "folder": str(self.folder),
            "host": next((str(node["hostname"]) for node in run.hardware[:1] if node.get("hostname")), None),
            "strategy": run.strategy.kind,
            "device": run.device,
            "world_size": run.world_size,
            "num_steps": run.plan.num_steps,
        }
        if is_done:
            self._read_logs(int(self.has_curves))
            about |= self._curves() | _finished(summary)
            return RunView(**about, state="damaged" if damage else "finished", reason=damage)
        # Before the events are read: a process that ends in between has then written all its events.
        in_use = is_in_use(self.folder)
        self._read_logs(min(max(int(run.world_size or 1), 1), MAX_RANKS))
        last_event = max((log.time or 0.0 for log in self._logs), default=0.0) or None
        state, reason = self._state(in_use, last_event, now, about["host"])
        is_active = in_use or state in RUNNING
        if damage and not is_active:
            state, reason = "damaged", None
        return RunView(
            **about,
            **self._newest(record, is_active=is_active),
            **self._curves(),
            state=state,
            reason="; ".join(filter(None, (reason, damage))) or None,
            since=last_event,
        )

    def _read_logs(self, num_ranks: int) -> None:
        new = (RankLog(self.folder / events_file(rank)) for rank in range(len(self._logs), num_ranks))
        self._logs = [*self._logs[:num_ranks], *new]
        for log in self._logs:
            with suppress(OSError):  # try again at the next look
                log.read()

    def _curves(self) -> dict[str, Any]:
        if not self.has_curves:
            return {}
        log = self._logs[0]
        scored = [(one.step or 0, one.scores or {}) for one in log.evaluations if one.split == "validation"]
        return {"losses": tuple(log.losses), "evaluations": tuple(scored)}

    def _newest(self, record: RunRecord, *, is_active: bool) -> dict[str, Any]:
        """Return the figures of the last steps and of the last evaluation, and the remaining time if `is_active`."""
        first, metric = self._logs[0], record.setting("evaluate.best")
        num_steps, left_s = record.run.plan.num_steps, None
        walls_ms = [step.wall_ms for step in first.measured() if step.wall_ms is not None]
        if is_active and num_steps is not None and walls_ms and first.step != 0:
            step_s = statistics.fmean(walls_ms) / 1000 + first.pauses_s / first.step
            left_s = max(0, num_steps - first.step) * step_s
        newest = first.steps[-1] if first.steps else Event(event="step")
        scored = first.evaluations[-1] if first.evaluations else Event(event="evaluation")
        peaks = [log.steps[-1].memory_bytes for log in self._logs if log.steps]
        return {
            "step": first.step,
            "loss": newest.loss,
            "learning_rate": newest.learning_rate,
            "tokens_per_s": total_rate(self._logs, "num_tokens"),
            "samples_per_s": total_rate(self._logs, "num_samples"),
            "memory_bytes": max((peak for peak in peaks if peak is not None), default=None),
            "scores": scored.scores or {},
            "scored_at": scored.step,
            "scored_on": scored.split,
            "metric": metric if isinstance(metric, str) else None,
            "left_s": left_s,
        }

    def _state(self, in_use: bool, last_event: float | None, now: float, host: str | None) -> tuple[State, str | None]:
        doing = _DOING.get(self._logs[0].doing or "", "starting")
        if in_use:
            with suppress(OSError):  # a start opens the lock file for writing
                if last_event is None or last_event < (self.folder / LOCK_FILE).stat().st_mtime:
                    doing = "starting"  # the log is that of the previous session
            return doing, None
        ended = next((log.ended for log in self._logs if log.ended is not None), None)
        if ended is not None and ended.event == "stop":
            return "stopped", f"by {ended.signal} after step {ended.step}; --resume continues it"
        if ended is not None and ended.event == "out_of_memory":
            return "failed", f"memory ran out while {ended.doing}"
        if ended is not None:
            return "failed", f"{ended.error}: {ended.message}"
        # Locks of another machine may be invisible here; its recent events are not.
        if host not in (None, platform.node()) and last_event is not None and now - last_event < RECENT_S:
            return doing, f"on {host}, whose lock this machine does not see"
        if last_event is None and not (self.folder / RUN_FILE).exists():
            return "killed", "before its first step, or before it started"
        return "killed", "no process trains it, and its record has no reason"


def _finished(summary: Summary) -> dict[str, Any]:
    split = next((name for name in ("validation", *summary.scores) if name in summary.scores), None)
    return {
        "step": summary.num_steps,
        "loss": summary.loss.get("last"),
        "tokens_per_s": summary.throughput.tokens_per_s,
        "samples_per_s": summary.throughput.samples_per_s,
        "scores": summary.scores.get(split or "", {}),
        "scored_at": summary.kept_step,
        "scored_on": split,
        "metric": summary.best.metric,
        "total_s": summary.time.total_s,
    }
