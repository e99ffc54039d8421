"""The state of a run, from its folder while it runs."""

import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from paratune.errors import CheckpointError
from paratune.records import RUN_FILE, SUMMARY_FILE, events_file, read_json
from paratune.records.finished import number_in
from paratune.records.run_folder import LOCK_FILE, is_in_use
from paratune.watch.rank import RankLog, mapping, phase_shares, rates, stragglers, text, whole

MIN_SILENCE_S = 60.0
"""Minimum seconds without an event before a training run is stalled."""
MIN_PAUSE_S = 600.0
"""The same for evaluations and checkpoints, whose duration is unknown at first."""
SLOWER = 5
"""A run is stalled after this many times its usual time between events."""
MAX_RANKS = 4096
State = Literal[
    "starting", "training", "evaluating", "saving", "stalled", "finished", "stopped", "failed", "killed", "waiting",
    "skipped", "gone",
]  # fmt: skip
"""stalled: a process trains it, but has logged nothing for too long; stopped: by a signal, after saving; killed: no
process trains it, and it has no record of a reason; waiting, skipped: in a matrix; gone: its folder was deleted."""
RUNNING: tuple[State, ...] = ("starting", "training", "evaluating", "saving", "stalled")
_DOING: Mapping[str, State] = {
    "training": "training",
    "evaluating": "evaluating",
    "writing a checkpoint": "saving",
    "writing the model": "saving",
    "comparing with the plan": "saving",
}


@dataclass(frozen=True)
class RunView:
    """One run, at one time."""

    name: str
    folder: str
    state: State
    since: float | None = None
    """Time of its last event, in Unix seconds."""
    reason: str | None = None
    """Reason of its state, if known."""
    host: str | None = None
    strategy: str | None = None
    device: str | None = None
    world_size: int | None = None
    step: int | None = None
    num_steps: int | None = None
    epoch: float | None = None
    num_epochs: float | None = None
    loss: float | None = None
    losses: tuple[float, ...] = ()
    """Of the whole run so far, thinned."""
    learning_rate: float | None = None
    tokens_per_s: float | None = None
    """Of all ranks, over the last steps, without pauses."""
    samples_per_s: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    """Share of each phase in the wall time of the last steps."""
    memory_bytes: tuple[float | None, ...] = ()
    """Peak of each rank so far."""
    stragglers: Mapping[int, float] = field(default_factory=dict)
    """By rank, the share by which its own work in a step takes longer than that of the others."""
    scores: Mapping[str, float | None] = field(default_factory=dict)
    """Of the last evaluation."""
    scored_at: int | None = None
    """Step of that evaluation; of a finished run the step of the kept model."""
    scored_on: str | None = None
    """Split of the scores."""
    metric: str | None = None
    """The metric that selects the kept model; None if the last model is kept."""
    best: float | None = None
    """The best value of that metric so far."""
    best_step: int | None = None
    """Step of that value."""
    total_s: float | None = None
    """Of a finished run; in a matrix of all starts of a run that ended."""
    left_s: float | None = None
    """Estimated seconds to the last step, with evaluations and checkpoints as before."""
    num_damaged_lines: int = 0
    """Of its event logs, which were passed over."""

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING


class RunWatch:
    """Watches one run folder; `look` returns its state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run: Mapping[str, Any] = {}
        self._logs: list[RankLog] = []

    def look(self, now: float | None = None) -> RunView:
        """Return the state of the run; `now` in Unix seconds. Any content of the folder is accepted."""
        now = time.time() if now is None else now
        if not self.folder.is_dir():
            return RunView(self.folder.name, str(self.folder), "gone", reason="its folder does not exist any more")
        self._run = read_mapping(self.folder / RUN_FILE) or {}
        if (summary := read_mapping(self.folder / SUMMARY_FILE)) is not None:
            return self._finished(summary)
        # Before the events are read: a process that ends in between has then written all its events.
        in_use = is_in_use(self.folder)
        num_ranks = min(max(whole(self._session().get("world_size")) or 1, 1), MAX_RANKS)
        new = (RankLog(self.folder / events_file(rank)) for rank in range(len(self._logs), num_ranks))
        self._logs = [*self._logs[:num_ranks], *new]
        for log in self._logs:
            with suppress(OSError):  # try again at the next look
                log.read()
        return self._unfinished(in_use, now)

    def _session(self) -> Mapping[str, Any]:
        """Return the record of the last session of the run."""
        sessions = self._run.get("sessions")
        return mapping(sessions[-1]) if isinstance(sessions, list) and sessions else self._run

    def _about(self) -> dict[str, Any]:
        """Return the values of run.json that are shown."""
        session, plan = self._session(), mapping(self._run.get("plan"))
        nodes = session.get("hardware")
        return {
            "name": self.folder.name,
            "folder": str(self.folder),
            "host": text(mapping(nodes[0]).get("hostname")) if isinstance(nodes, list) and nodes else None,
            "strategy": text(mapping(session.get("strategy")).get("kind")),
            "device": text(session.get("device")),
            "world_size": whole(session.get("world_size")),
            "num_steps": whole(plan.get("num_steps")),
            "num_epochs": number_in(plan.get("num_epochs")),
        }

    def _finished(self, summary: Mapping[str, Any]) -> RunView:
        scores = mapping(summary.get("scores"))
        split = next((name for name in ("validation", *scores) if name in scores), None)
        best = mapping(summary.get("best"))
        throughput = mapping(summary.get("throughput"))
        return RunView(
            **self._about(),
            state="finished",
            step=whole(summary.get("num_steps")),
            loss=number_in(mapping(summary.get("loss")).get("last")),
            tokens_per_s=number_in(throughput.get("tokens_per_s")),
            samples_per_s=number_in(throughput.get("samples_per_s")),
            scores=_scores(scores.get(split or "")),
            scored_at=whole(summary.get("kept_step")),
            scored_on=split,
            metric=text(best.get("metric")),
            best=number_in(best.get("value")),
            best_step=whole(best.get("step")),
            total_s=number_in(mapping(summary.get("time")).get("total_s")),
        )

    def _unfinished(self, in_use: bool, now: float) -> RunView:
        about, first = self._about(), self._logs[0]
        last_event = max((log.time or 0.0 for log in self._logs), default=0.0) or None
        state, reason = self._state(in_use, last_event, now, about["host"])
        tokens_per_s, samples_per_s = rates(self._logs)
        newest = first.steps[-1] if first.steps else {}
        metric = text(self._option("evaluate", "best"))
        best_step, best = first.bests[-1] if first.bests else (None, {})
        own_phases = mapping(mapping(self._session().get("strategy")).get("traits")).get("own_phases")
        return RunView(
            **about,
            state=state,
            reason=reason,
            since=last_event,
            step=first.step,
            epoch=number_in(newest.get("epoch")),
            loss=number_in(newest.get("loss")),
            losses=tuple(loss for _, loss in first.losses),
            learning_rate=number_in(newest.get("learning_rate")),
            tokens_per_s=tokens_per_s,
            samples_per_s=samples_per_s,
            phases=phase_shares(self._logs),
            memory_bytes=tuple(
                number_in(log.steps[-1].get("memory_bytes")) if log.steps else None for log in self._logs
            ),
            stragglers=stragglers(self._logs, list(map(str, own_phases)) if isinstance(own_phases, list) else ()),
            scores=_scores(first.evaluation.get("scores")),
            scored_at=whole(first.evaluation.get("step")),
            scored_on=text(first.evaluation.get("split")),
            metric=metric,
            best=number_in(best.get(metric or "")),
            best_step=best_step,
            left_s=self._left_s(about["num_steps"]) if in_use or state in _DOING.values() else None,
            num_damaged_lines=sum(log.num_damaged for log in self._logs),
        )

    def _option(self, section: str, name: str) -> Any:
        """Return an option of the configuration in the record."""
        return mapping(mapping(self._session().get("config")).get(section)).get(name)

    def _log_every(self) -> int:
        return whole(self._option("measure", "log_every")) or 1

    def _state(self, in_use: bool, last_event: float | None, now: float, host: str | None) -> tuple[State, str | None]:
        first = self._logs[0]
        doing = _DOING.get(first.doing or "", "starting")
        if in_use:
            with suppress(OSError):  # a start opens the lock file for writing
                began = (self.folder / LOCK_FILE).stat().st_mtime
                if last_event is None or last_event < began:
                    last_event, doing = began, "starting"  # the log is that of the previous session
        limit = self._silence_s(doing)
        silence = now - last_event if last_event is not None else None
        if in_use:
            if doing != "starting" and silence is not None and silence > limit:
                return "stalled", f"{doing}, without an event for longer than usual"
            return doing, None
        ended = first.ended or next((log.ended for log in self._logs if log.ended is not None), None)
        if ended is not None:
            return _end_reason(ended)
        # Locks of another machine may be invisible here; its recent events are not.
        is_elsewhere = host is not None and host != platform.node()
        if is_elsewhere and silence is not None and silence < limit:
            return doing, f"on {host}, whose lock this machine does not see"
        if not self._run and last_event is None:
            return "killed", "before its first step, or before it started"
        return "killed", "no process trains it, and its record has no reason"

    def _silence_s(self, doing: State) -> float:
        """Return the seconds without an event after which a run with this activity is stalled."""
        first = self._logs[0]
        if doing != "training":
            return max(MIN_PAUSE_S, SLOWER * first.longest_pause_s)
        step_s = first.mean_wall_s()
        # Before the first logged steps their duration is unknown.
        return max(MIN_SILENCE_S, SLOWER * self._log_every() * step_s) if step_s is not None else MIN_PAUSE_S

    def _left_s(self, num_steps: int | None) -> float | None:
        first = self._logs[0]
        step_s = first.mean_wall_s()
        if num_steps is None or step_s is None or first.step == 0:
            return None
        return max(0, num_steps - first.step) * (step_s + first.pauses_s / first.step)


def read_mapping(path: Path) -> Mapping[str, Any] | None:
    """Return the content of a JSON file of a record; None while it cannot be read."""
    try:
        return mapping(read_json(path))
    except CheckpointError:
        return None


def _end_reason(ended: Mapping[str, Any]) -> tuple[State, str]:
    if ended["event"] == "stop":
        return "stopped", f"by {ended.get('signal')} after step {ended.get('step')}; --resume continues it"
    if ended["event"] == "out_of_memory":
        return "failed", f"memory ran out while {ended.get('doing')}"
    return "failed", f"{ended.get('error')}: {ended.get('message')}"


def _scores(value: Any) -> dict[str, float | None]:
    return {str(name): number_in(score) for name, score in mapping(value).items()}
