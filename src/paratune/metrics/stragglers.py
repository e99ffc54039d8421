"""Finds the straggler: the rank for which the others wait, from the step events of all ranks.

Only phases without communication show the time of a rank itself; other phases end on all ranks at the same time.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from paratune.metrics.throughput import is_measured, rank_events_by_step, wall_s

Event = Mapping[str, Any]
_NEEDED = "forward"
"""Without this phase, the own time of a rank does not show whether it is slow."""


def stragglers(ranks: Sequence[Sequence[Event]], own_phases: Sequence[str], kind: str) -> dict[str, Any]:
    """Return `stragglers` of a summary (see docs/reference/records.md), from the steps that all ranks measured.

    Args:
        ranks: Events of each rank of the session; steps that are not measured are ignored.
        own_phases: Phases in which a rank waits for no other rank.
        kind: Kind of the strategy, for the reason.
    """
    unknown = {"slowest_rank": None, "slowdown": None, "wait_share": None, "phases": list(own_phases)}
    if len(ranks) < 2:
        return {**unknown, "reason": "a run with one process has no stragglers"}
    if _NEEDED not in own_phases:
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
