"""Watches a run: reads the changes of its record."""

import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from paratune.errors import CheckpointError
from paratune.records import RUN_FILE, SUMMARY_FILE, events_file, read_json
from paratune.records.run_folder import LOCK_FILE, is_in_use
from paratune.watch.history import RankHistory, phase_shares, rank_views, rates
from paratune.watch.state import RunView, State, mapping, number, whole
from paratune.watch.tail import EventTail

MIN_SILENCE_S = 60.0
"""Minimum seconds without an event before a training run is stalled."""
MIN_PAUSE_S = 600.0
"""The same for evaluations and checkpoints, whose duration is unknown at first."""
SLOWER = 5
"""A run is stalled after this many times its usual time between events."""
MAX_RANKS = 4096
_DOING: Mapping[str, State] = {
    "training": "training",
    "evaluating": "evaluating",
    "writing a checkpoint": "saving",
    "writing the model": "saving",
    "comparing with the plan": "saving",
}


class JsonFile:
    """A JSON file of a record, which is replaced atomically: read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self.value: Mapping[str, Any] | None = None
        """Content; None while the file cannot be read."""

    def read(self) -> bool:
        """Read the file if it has changed; return whether it has."""
        try:
            status = self._path.stat()
        except OSError:
            was_there, self._seen, self.value = self._seen is not None, None, None
            return was_there
        now = (status.st_ino, status.st_size, status.st_mtime_ns)
        if now == self._seen:
            return False
        self._seen, self.value = now, None
        with suppress(CheckpointError):
            self.value = mapping(read_json(self._path))
        return True


class RunWatch:
    """Watches one run folder; `look` returns its state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run, self._summary = JsonFile(folder / RUN_FILE), JsonFile(folder / SUMMARY_FILE)
        self._tails: list[EventTail] = []
        self._histories: list[RankHistory] = []

    def look(self, now: float | None = None) -> RunView:
        """Return the state of the run; `now` in Unix seconds. Any content of the folder is accepted."""
        now = time.time() if now is None else now
        self._run.read()
        self._summary.read()
        if not self.folder.is_dir():
            return RunView(self.folder.name, str(self.folder), "gone", reason="its folder does not exist any more")
        if self._summary.value is not None:
            return self._finished(self._summary.value)
        # Before the events are read: a process that ends in between has then written all its events.
        in_use = is_in_use(self.folder)
        self._read_events()
        return self._unfinished(in_use, now)

    def _session(self) -> Mapping[str, Any]:
        """Return the record of the last session of the run."""
        run = self._run.value or {}
        sessions = run.get("sessions")
        return mapping(sessions[-1]) if isinstance(sessions, list) and sessions else run

    def _about(self) -> dict[str, Any]:
        """Return the values of run.json that are shown."""
        session, plan = self._session(), mapping((self._run.value or {}).get("plan"))
        nodes = session.get("hardware")
        host = mapping(nodes[0]).get("hostname") if isinstance(nodes, list) and nodes else None
        return {
            "name": self.folder.name,
            "folder": str(self.folder),
            "host": host if isinstance(host, str) else None,
            "strategy": _text(mapping(session.get("strategy")).get("kind")),
            "device": _text(session.get("device")),
            "world_size": whole(session.get("world_size")),
            "num_steps": whole(plan.get("num_steps")),
            "num_epochs": number(plan.get("num_epochs")),
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
            loss=number(mapping(summary.get("loss")).get("last")),
            tokens_per_s=number(throughput.get("tokens_per_s")),
            samples_per_s=number(throughput.get("samples_per_s")),
            scores=_scores(scores.get(split or "")),
            scored_at=whole(summary.get("kept_step")),
            scored_on=split,
            metric=_text(best.get("metric")),
            best=number(best.get("value")),
            best_step=whole(best.get("step")),
            total_s=number(mapping(summary.get("time")).get("total_s")),
        )

    def _read_events(self) -> None:
        num_ranks = min(max(whole(self._session().get("world_size")) or 1, 1), MAX_RANKS)
        while len(self._tails) < num_ranks:
            self._tails.append(EventTail(self.folder / events_file(len(self._tails))))
            self._histories.append(RankHistory())
        del self._tails[num_ranks:], self._histories[num_ranks:]
        for rank, tail in enumerate(self._tails):
            try:
                events, is_new = tail.read()
            except OSError:  # try again at the next look
                continue
            if is_new:
                self._histories[rank] = RankHistory()
            for event in events:
                self._histories[rank].add(event)

    def _unfinished(self, in_use: bool, now: float) -> RunView:
        about, first = self._about(), self._histories[0]
        last_event = max((history.time or 0.0 for history in self._histories), default=0.0) or None
        state, reason = self._state(in_use, last_event, now, about["host"])
        tokens_per_s, samples_per_s = rates(self._histories)
        evaluation = mapping(first.evaluation)
        newest = first.steps[-1] if first.steps else {}
        metric = _text(self._option("evaluate", "best"))
        best = first.bests[-1] if first.bests else {}
        return RunView(
            **about,
            state=state,
            reason=reason,
            since=last_event,
            step=first.step,
            epoch=number(newest.get("epoch")),
            loss=number(newest.get("loss")),
            losses=tuple(loss for _, loss in first.losses),
            learning_rate=number(newest.get("learning_rate")),
            tokens_per_s=tokens_per_s,
            samples_per_s=samples_per_s,
            phases=phase_shares(self._histories),
            ranks=rank_views(self._histories, own_phases=self._own_phases(), log_every=self._log_every()),
            scores=_scores(evaluation.get("scores")),
            scored_at=whole(evaluation.get("step")),
            scored_on=_text(evaluation.get("split")),
            metric=metric,
            best=_scores(best.get("scores")).get(metric or ""),
            best_step=whole(best.get("step")),
            left_s=self._left_s(about["num_steps"]) if in_use or state in _DOING.values() else None,
            num_damaged_lines=sum(tail.num_damaged for tail in self._tails),
        )

    def _option(self, section: str, name: str) -> Any:
        """Return an option of the configuration in the record."""
        return mapping(mapping(self._session().get("config")).get(section)).get(name)

    def _log_every(self) -> int:
        return whole(self._option("measure", "log_every")) or 1

    def _own_phases(self) -> tuple[str, ...]:
        """Return the phases in which no rank waits for another, from the traits in the record; empty in old records."""
        phases = mapping(mapping(self._session().get("strategy")).get("traits")).get("own_phases")
        return tuple(map(str, phases)) if isinstance(phases, list) else ()

    def _state(self, in_use: bool, last_event: float | None, now: float, host: str | None) -> tuple[State, str | None]:
        first = self._histories[0]
        doing = _DOING.get(first.doing or "", "starting")
        began = self._began()
        if in_use and began is not None and (last_event is None or last_event < began):
            last_event, doing = began, "starting"  # the log is that of the previous session
        limit = self._silence_s(doing)
        silence = now - last_event if last_event is not None else None
        if in_use:
            if doing != "starting" and silence is not None and silence > limit:
                return "stalled", f"{doing}, without an event for longer than usual"
            return doing, None
        ended = first.ended or next((history.ended for history in self._histories if history.ended is not None), None)
        if ended is not None:
            return _end_reason(ended)
        # Locks of another machine may be invisible here; its recent events are not.
        is_elsewhere = host is not None and host != platform.node()
        if is_elsewhere and silence is not None and silence < limit:
            return doing, f"on {host}, whose lock this machine does not see"
        if self._run.value is None and last_event is None:
            return "killed", "before its first step, or before it started"
        return "killed", "no process trains it, and its record has no reason"

    def _began(self) -> float | None:
        """Return the time of the last start, in Unix seconds: it opens the lock file for writing."""
        try:
            return (self.folder / LOCK_FILE).stat().st_mtime
        except OSError:
            return None

    def _silence_s(self, doing: State) -> float:
        """Return the seconds without an event after which a run with this activity is stalled."""
        first = self._histories[0]
        if doing != "training":
            return max(MIN_PAUSE_S, SLOWER * first.longest_pause_s)
        step_s = first.mean_wall_s()
        # Before the first logged steps their duration is unknown.
        return max(MIN_SILENCE_S, SLOWER * self._log_every() * step_s) if step_s is not None else MIN_PAUSE_S

    def _left_s(self, num_steps: int | None) -> float | None:
        first = self._histories[0]
        step_s = first.mean_wall_s()
        if num_steps is None or step_s is None or first.step == 0:
            return None
        return max(0, num_steps - first.step) * (step_s + first.pauses_s / first.step)


def _end_reason(ended: Mapping[str, Any]) -> tuple[State, str]:
    if ended["event"] == "stop":
        return "stopped", f"by {ended.get('signal')} after step {ended.get('step')}; --resume continues it"
    if ended["event"] == "out_of_memory":
        return "failed", f"memory ran out while {ended.get('doing')}"
    return "failed", f"{ended.get('error')}: {ended.get('message')}"


def _scores(value: Any) -> dict[str, float | None]:
    return {str(name): number(score) for name, score in mapping(value).items()}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
