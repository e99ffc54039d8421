"""Computes throughput, phases and stragglers of a run from its step events, without warm-up.

The results are `throughput`, `phases`, `step_ms` and `stragglers` of a summary; docs/reference/records.md describes
events and summary.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from paratune.records import ALL_PHASES, elapsed_s

Event = Mapping[str, Any]


def rates(steps: Sequence[Sequence[Event]]) -> dict[str, dict[str, Any]]:
    """Return throughput, phases, step times and pipeline bubble of a run.

    The time is that of the slowest rank over all steps, because a step ends when its last rank ends. Where a run was
    resumed with another number of ranks, the times of their sessions are added (`records.elapsed_s`).

    Args:
        steps: `step` events of each rank of any session; other events, and those with `warmup` or `profiled` true, are
            ignored. Ranks with the same `data_rank` (the stages of a pipeline) have the same samples.

    Returns:
        `throughput`: samples_per_s, tokens_per_s (real), padded_tokens_per_s, padding_share (of all computed tokens),
        num_steps_measured. `phases`: for each phase and `other` total_s (sum over steps of the mean over ranks),
        median_ms, p10_ms, p90_ms (over the steps of all ranks, linear interpolation), share (of the sum of phases).
        `step_ms`: median, p10, p90 of the wall time. `pipeline`: bubble_share, the share of the schedules' time in
        which ranks were idle. Without measured steps, all values except the number of steps are None.
    """
    measured = [[event for event in rank if is_measured(event)] for rank in steps]
    by_step = rank_events_by_step(measured)
    events = [event for ranks in by_step for event in ranks.values()]
    pipelined = [event for event in events if "schedule_ms" in event]
    bubble_ms, schedule_ms = (sum(event[name] for event in pipelined) for name in ("bubble_ms", "schedule_ms"))
    return {
        "throughput": _throughput(by_step, wall_s(measured)),
        "phases": _phases(by_step),
        "step_ms": _spread([event["wall_ms"] for event in events]),
        "pipeline": {"bubble_share": _ratio(bubble_ms, schedule_ms)},
    }


def wall_s(steps: Sequence[Sequence[Event]]) -> float:
    """Return the seconds of all steps of the slowest rank, warm-up included.

    Args:
        steps: Events of each rank of any session.
    """
    by_step = rank_events_by_step([[event for event in rank if event.get("event", "step") == "step"] for rank in steps])
    walls: dict[int, dict[float, float]] = {}
    for number, ranks in enumerate(by_step):
        for rank, event in ranks.items():
            walls.setdefault(rank, {})[number] = event["wall_ms"]
    return elapsed_s(walls.values())


def is_measured(event: Event) -> bool:
    """Return whether an event is a measured step: not in the warm-up, and without a profiler."""
    return event.get("event", "step") == "step" and not event["warmup"] and not event.get("profiled")


def rank_events_by_step(ranks: Sequence[Sequence[Event]]) -> list[Mapping[int, Event]]:
    """Return for each step the event of each rank that took part in it."""
    by_step: dict[int, dict[int, Event]] = {}
    for rank, events in enumerate(ranks):
        for event in events:
            by_step.setdefault(event["step"], {})[rank] = event
    return [by_step[step] for step in sorted(by_step)]


def _throughput(by_step: Sequence[Mapping[int, Event]], seconds: float) -> dict[str, Any]:
    # One event for each data rank: its ranks (the stages of a pipeline) have the same samples.
    data = [
        event
        for ranks in by_step
        for event in {event.get("data_rank", rank): event for rank, event in ranks.items()}.values()
    ]
    totals: list[float | None] = []
    for name in ("num_samples", "num_tokens", "num_padded_tokens"):
        values = [event[name] for event in data]
        totals.append(None if None in values else sum(values))
    samples, tokens, padded = totals
    padding = None if tokens is None or padded is None else padded - tokens
    return {
        "samples_per_s": _ratio(samples, seconds),
        "tokens_per_s": _ratio(tokens, seconds),
        "padded_tokens_per_s": _ratio(padded, seconds),
        "padding_share": _ratio(padding, padded),
        "num_steps_measured": len(by_step),
    }


def _phases(by_step: Sequence[Mapping[int, Event]]) -> dict[str, dict[str, float | None]]:
    totals_ms = {
        name: sum(sum(event["phases_ms"][name] for event in ranks.values()) / len(ranks) for ranks in by_step)
        for name in ALL_PHASES
    }
    whole_ms = sum(totals_ms.values())
    result: dict[str, dict[str, float | None]] = {}
    for name, total_ms in totals_ms.items():
        spread = _spread([event["phases_ms"][name] for ranks in by_step for event in ranks.values()])
        result[name] = {
            "total_s": total_ms / 1000 if by_step else None,
            "median_ms": spread["median"],
            "p10_ms": spread["p10"],
            "p90_ms": spread["p90"],
            "share": _ratio(total_ms, whole_ms),
        }
    return result


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"median": None, "p10": None, "p90": None}
    p10, middle, p90 = np.percentile(values, [10, 50, 90])
    return {"median": float(middle), "p10": float(p10), "p90": float(p90)}


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole is not None and whole > 0 else None


def stragglers(ranks: Sequence[Sequence[Event]], own_phases: Sequence[str], kind: str) -> dict[str, Any]:
    """Return `stragglers` of a summary (see docs/reference/records.md), from the steps that all ranks measured.

    Only phases without communication show the time of a rank itself; other phases end on all ranks at the same time.

    Args:
        ranks: Events of each rank of the session; steps that are not measured are ignored.
        own_phases: Phases in which a rank waits for no other rank.
        kind: Kind of the strategy, for the reason.
    """
    unknown = {"slowest_rank": None, "slowdown": None, "wait_share": None, "phases": list(own_phases)}
    if len(ranks) < 2:
        return {**unknown, "reason": "a run with one process has no stragglers"}
    if "forward" not in own_phases:  # without it, the own time of a rank does not show whether it is slow
        return {**unknown, "reason": f"with {kind}, each phase of a rank waits for other ranks"}
    measured = rank_events_by_step([[event for event in events if is_measured(event)] for events in ranks])
    steps = [step for step in measured if len(step) == len(ranks)]
    own = [[sum(step[rank]["phases_ms"][name] for name in own_phases) for rank in range(len(ranks))] for step in steps]
    totals = [sum(times[rank] for times in own) for rank in range(len(ranks))]
    wall = 1000 * wall_s([[step[rank] for step in steps] for rank in range(len(ranks))])
    if not steps or median(totals) <= 0 or wall <= 0:
        return {**unknown, "reason": "no step was measured on all ranks"}
    slowest = max(range(len(ranks)), key=lambda rank: totals[rank])
    waited = sum(max(times) - sum(times) / len(times) for times in own)
    return {
        **unknown,
        "slowest_rank": slowest,
        "slowdown": totals[slowest] / median(totals),
        "wait_share": waited / wall,
        "reason": None,
    }
