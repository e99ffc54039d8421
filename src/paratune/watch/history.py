"""Computes rates, phases and stragglers from the last events of each rank."""

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from paratune.records import ALL_PHASES
from paratune.watch.state import RankView, mapping, number, whole

WINDOW = 50
"""Number of last steps for rates and shares."""
CURVE_POINTS = 2000
"""Number of stored losses; at twice as many, every second one is dropped."""
LAG = 0.2
"""A rank is a straggler if its own work takes longer than that of the others by more than this share, ..."""
LAG_OF_STEP = 0.05
"""... and by more than this share of the step."""


class RankHistory:
    """The last steps of a rank, and the other events."""

    def __init__(self) -> None:
        self.steps: deque[Mapping[str, Any]] = deque(maxlen=WINDOW)
        self.losses: list[tuple[int, float]] = []
        self.evaluation: Mapping[str, Any] | None = None
        self.bests: list[Mapping[str, Any]] = []
        """Evaluations that were the best so far."""
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

    def add(self, event: Mapping[str, Any]) -> None:
        """Add an event."""
        self.time = number(event.get("time")) or self.time
        kind = event["event"]
        if kind in ("step", "begin", "resume"):
            self.ended = None
        if kind == "step" and (step := whole(event.get("step"))) is not None:
            self._step(step, event)
        elif kind == "begin":
            self.doing = str(event.get("doing"))
        elif kind == "resume":
            self._resume(whole(event.get("step")) or 0)
        elif kind in ("evaluation", "checkpoint"):
            seconds = number(event.get("time_s")) or 0.0
            self.pauses_s += seconds
            self.longest_pause_s = max(self.longest_pause_s, seconds)
            self.evaluation = event if kind == "evaluation" else self.evaluation
            if event.get("is_best") is True:
                self.bests.append(event)
        elif kind in ("stop", "failure") or (kind == "out_of_memory" and event.get("next_micro_batch_size") is None):
            self.ended = event

    def _step(self, step: int, event: Mapping[str, Any]) -> None:
        self.step = step
        self.steps.append(event)
        loss = number(event.get("loss"))
        if loss is not None:
            self.losses.append((step, loss))
        if len(self.losses) >= 2 * CURVE_POINTS:
            self.losses = self.losses[::2]

    def _resume(self, step: int) -> None:
        """Drop the steps that are trained again."""
        self.step, self.doing = step, None
        self.losses = [point for point in self.losses if point[0] <= step]
        self.bests = [event for event in self.bests if (whole(event.get("step")) or 0) <= step]
        events = [event for event in self.steps if (whole(event.get("step")) or 0) <= step]
        self.steps = deque(events, maxlen=WINDOW)

    def measured(self) -> list[Mapping[str, Any]]:
        """Return the last steps without warm-up and profiled ones, or all steps while there are no others."""
        return [step for step in self.steps if not step.get("warmup") and not step.get("profiled")] or list(self.steps)

    def mean_wall_s(self) -> float | None:
        """Return the mean seconds of the last steps."""
        walls = [wall for step in self.measured() if (wall := number(step.get("wall_ms"))) is not None]
        return statistics.fmean(walls) / 1000 if walls else None

    def own_ms(self, keys: Sequence[str]) -> float | None:
        """Return the median time of some phases over the last steps."""
        sums = [sum(number(mapping(step.get("phases_ms")).get(key)) or 0.0 for key in keys) for step in self.measured()]
        return statistics.median(sums) if sums else None


def rates(histories: Sequence[RankHistory]) -> tuple[float | None, float | None]:
    """Return tokens/s and samples/s of all ranks over the last steps; ranks that share their data count once."""
    totals = {"num_tokens": 0.0, "num_samples": 0.0}
    seen = set()
    for rank, history in enumerate(histories):
        steps = history.measured()
        wall_s = sum(number(step.get("wall_ms")) or 0.0 for step in steps) / 1000
        data_rank = whole(steps[-1].get("data_rank", rank)) if steps else None
        if wall_s <= 0 or data_rank in seen:
            continue
        seen.add(data_rank)
        for key in totals:
            totals[key] += sum(number(step.get(key)) or 0.0 for step in steps) / wall_s
    return (totals["num_tokens"], totals["num_samples"]) if seen else (None, None)


def phase_shares(histories: Sequence[RankHistory]) -> dict[str, float]:
    """Return the share of each phase in the wall time of the last steps, over all ranks."""
    totals = dict.fromkeys(ALL_PHASES, 0.0)
    for history in histories:
        for step in history.measured():
            phases = mapping(step.get("phases_ms"))
            for key in totals:
                totals[key] += number(phases.get(key)) or 0.0
    whole_ms = sum(totals.values())
    return {key: value / whole_ms for key, value in totals.items()} if whole_ms > 0 else {}


def rank_views(histories: Sequence[RankHistory], *, own_phases: Sequence[str], log_every: int) -> tuple[RankView, ...]:
    """Return the state of each rank, and the stragglers.

    Args:
        own_phases: Phases in which a rank does not wait for other ranks; may be empty.
        log_every: Steps between two writes of the log.
    """
    newest = max((history.step for history in histories), default=0)
    own = [history.own_ms(own_phases) if own_phases else None for history in histories]
    known = [value for value in own if value is not None]
    usual = statistics.median_low(known) if len(known) > 1 else None
    step_ms = 1000 * max((history.mean_wall_s() or 0.0 for history in histories), default=0.0)
    views = []
    for rank, (history, own_ms) in enumerate(zip(histories, own, strict=True)):
        slower = None
        if usual and own_ms is not None and own_ms > (1 + LAG) * usual and own_ms - usual > LAG_OF_STEP * step_ms:
            slower = own_ms / usual - 1
        memory = number(history.steps[-1].get("memory_bytes")) if history.steps else None
        behind = newest - history.step if newest - history.step > log_every else 0
        views.append(RankView(rank, history.step or None, memory, slower, behind))
    return tuple(views)
