"""The rates and phases of a run from its step events: totals over totals, warm-up left out.

The result is the `throughput`, `phases` and `step_ms` of a summary; docs/reference/records.md has both sides.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paratune.records import ALL_PHASES, elapsed_s

Event = Mapping[str, Any]


def rates(steps: Sequence[Sequence[Event]]) -> dict[str, dict[str, Any]]:
    """Return how fast a run was and where its time went.

    The time is that of the rank that took longest over all steps: the work of all ranks is done when the last one is.
    Steps of other ranks, where a run was gone on with on another number of them, are added (`records.elapsed_s`).

    Args:
        steps: For each rank there has been, its `step` events; those with `warmup` or `profiled` true, and events of
            other kinds, are left out. Ranks of one `data_rank` (the stages of a pipeline) saw the same samples.

    Returns:
        `throughput`: samples_per_s, tokens_per_s (real), padded_tokens_per_s, padding_share (of all computed tokens),
        num_steps_measured. `phases`: for each phase and `other` total_s (sum over steps of the mean over the step's
        ranks), median_ms, p10_ms, p90_ms (over all ranks' steps, linear interpolation), share (of the phases' sum).
        `step_ms`: median, p10, p90 of the wall time. `pipeline`: bubble_share, the part of the schedules' time in which
        ranks computed nothing. Every value but the number of steps is None when no step is left.
    """
    by_step = steps_of_ranks([[event for event in rank if is_measured(event)] for rank in steps])
    return {
        "throughput": _throughput(by_step),
        "phases": _phases(by_step),
        "step_ms": _spread([event["wall_ms"] for ranks in by_step for event in ranks.values()]),
        "pipeline": _bubble([event for ranks in by_step for event in ranks.values()]),
    }


def wall_s(steps: Sequence[Sequence[Event]]) -> float:
    """Return the seconds of all steps, warm-up included, by the rank that took longest.

    Args:
        steps: For each rank there has been, its events.
    """
    by_step = steps_of_ranks([[event for event in rank if event.get("event", "step") == "step"] for rank in steps])
    return _wall_s(by_step)


def is_measured(event: Event) -> bool:
    """Say whether an event is of a step that rates and medians count: no warm-up, nor slowed by a profiler."""
    return event.get("event", "step") == "step" and not event["warmup"] and not event.get("profiled")


def steps_of_ranks(ranks: Sequence[Sequence[Event]]) -> list[Mapping[int, Event]]:
    """Return for each step the event of each rank that took part in it."""
    found: dict[int, dict[int, Event]] = {}
    for rank, events in enumerate(ranks):
        for event in events:
            found.setdefault(event["step"], {})[rank] = event
    return [found[step] for step in sorted(found)]


def _wall_s(by_step: Sequence[Mapping[int, Event]]) -> float:
    walls: dict[int, dict[float, float]] = {}
    for number, ranks in enumerate(by_step):
        for rank, event in ranks.items():
            walls.setdefault(rank, {})[number] = event["wall_ms"]
    return elapsed_s(walls.values())


def _throughput(by_step: Sequence[Mapping[int, Event]]) -> dict[str, Any]:
    seconds = _wall_s(by_step)
    # One event for each share of the data, whichever of its ranks logged it.
    data = [
        event
        for ranks in by_step
        for event in {event.get("data_rank", rank): event for rank, event in ranks.items()}.values()
    ]
    total = {name: sum(event[name] for event in data) for name in ("num_samples", "num_tokens", "num_padded_tokens")}
    return {
        "samples_per_s": _ratio(total["num_samples"], seconds),
        "tokens_per_s": _ratio(total["num_tokens"], seconds),
        "padded_tokens_per_s": _ratio(total["num_padded_tokens"], seconds),
        "padding_share": _ratio(total["num_padded_tokens"] - total["num_tokens"], total["num_padded_tokens"]),
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
    p10, median, p90 = np.percentile(values, [10, 50, 90])
    return {"median": float(median), "p10": float(p10), "p90": float(p90)}


def _bubble(events: Sequence[Event]) -> dict[str, float | None]:
    pipelined = [event for event in events if "schedule_ms" in event]
    waited = sum(event["bubble_ms"] for event in pipelined)
    return {"bubble_share": _ratio(waited, sum(event["schedule_ms"] for event in pipelined))}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
