"""The rates and phases of a run from its step events: totals over totals, warm-up left out.

The result is the `throughput`, `phases` and `step_ms` of a summary; docs/records.md has both sides.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paratune.records import PHASES

ALL_PHASES = (*PHASES, "other")
Event = Mapping[str, Any]


def rates(steps: Sequence[Sequence[Event]]) -> dict[str, dict[str, Any]]:
    """Return how fast a run was and where its time went.

    The time of the run is that of the rank whose steps took longest in total: the work of all ranks is done when the
    last one is. Samples and tokens are summed over all ranks.

    Args:
        steps: For each rank, its `step` events; those with `warmup` true, and events of other kinds, are left out.

    Returns:
        `throughput`: samples_per_s, tokens_per_s (real), padded_tokens_per_s, padding_share (of all computed tokens),
        num_steps_measured. `phases`: for each phase and `other` total_s (mean over ranks), median_ms, p10_ms, p90_ms
        (over all ranks' steps, linear interpolation), share (of the phases' sum). `step_ms`: median, p10, p90 of the
        wall time. Every value but the number of steps is None when no step is left.
    """
    measured = [[event for event in rank if _counts(event)] for rank in steps]
    measured = [rank for rank in measured if rank]
    return {
        "throughput": _throughput(measured),
        "phases": _phases(measured),
        "step_ms": _spread([event["wall_ms"] for rank in measured for event in rank]),
    }


def _counts(event: Event) -> bool:
    return event.get("event", "step") == "step" and not event["warmup"]


def _throughput(ranks: Sequence[Sequence[Event]]) -> dict[str, Any]:
    wall_s = max((sum(event["wall_ms"] for event in rank) / 1000 for rank in ranks), default=0.0)
    total = {
        name: sum(event[name] for rank in ranks for event in rank)
        for name in ("num_samples", "num_tokens", "num_padded_tokens")
    }
    return {
        "samples_per_s": _ratio(total["num_samples"], wall_s),
        "tokens_per_s": _ratio(total["num_tokens"], wall_s),
        "padded_tokens_per_s": _ratio(total["num_padded_tokens"], wall_s),
        "padding_share": _ratio(total["num_padded_tokens"] - total["num_tokens"], total["num_padded_tokens"]),
        "num_steps_measured": len({event["step"] for rank in ranks for event in rank}),
    }


def _phases(ranks: Sequence[Sequence[Event]]) -> dict[str, dict[str, float | None]]:
    times_ms = {name: [event["phases_ms"][name] for rank in ranks for event in rank] for name in ALL_PHASES}
    whole_ms = sum(sum(values) for values in times_ms.values())
    result: dict[str, dict[str, float | None]] = {}
    for name, values in times_ms.items():
        spread = _spread(values)
        result[name] = {
            "total_s": sum(values) / 1000 / len(ranks) if ranks else None,
            "median_ms": spread["median"],
            "p10_ms": spread["p10"],
            "p90_ms": spread["p90"],
            "share": _ratio(sum(values), whole_ms),
        }
    return result


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"median": None, "p10": None, "p90": None}
    p10, median, p90 = np.percentile(values, [10, 50, 90])
    return {"median": float(median), "p10": float(p10), "p90": float(p90)}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
