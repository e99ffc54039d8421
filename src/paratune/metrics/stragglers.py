"""Which rank holds the others up, from the step events of all ranks.

In the phases that wait for nobody a rank's time is its own; all other phases end together, whoever was late.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from paratune.metrics.throughput import is_measured, steps_of_ranks, wall_s

Event = Mapping[str, Any]
_NEEDED = "forward"
"""The phase without which a rank's own time says little."""


def stragglers(ranks: Sequence[Sequence[Event]], own_phases: Sequence[str], kind: str) -> dict[str, Any]:
    """Return `stragglers` of a summary (see docs/reference/records.md), of the steps that all ranks took.

    Args:
        ranks: For each rank of the session its events; those of steps that are not measured are left out.
        own_phases: Phases in which a rank waits for no other.
        kind: Of the strategy, for the reason.
    """
    unknown = {"slowest_rank": None, "slowdown": None, "wait_share": None, "phases": list(own_phases)}
    if len(ranks) < 2:
        return {**unknown, "reason": "one process waits for nobody"}
    if _NEEDED not in own_phases:
        return {**unknown, "reason": f"under {kind} all that a rank computes also waits for others"}
    measured = steps_of_ranks([[event for event in events if is_measured(event)] for events in ranks])
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
