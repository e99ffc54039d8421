"""Computes the figures of a summary from the events of a run: totals over totals, without warm-up; unknown is None."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paratune.base.units import utc_now
from paratune.config.traits import Traits
from paratune.engine.loop import Progress
from paratune.engine.memory import peak_memory
from paratune.engine.operators import profile_summary
from paratune.engine.profiling import communication
from paratune.metrics.throughput import rates, stragglers, wall_s
from paratune.metrics.utilisation import utilisation
from paratune.records import ALL_PHASES, SCHEMA_VERSION, event_ranks, read_events
from paratune.records.efficiency import noise_summary
from paratune.strategies.protocol import ReduceOp, UnavailableEstimate


def rank_peaks(device: torch.device, reduce: Callable[[Tensor, ReduceOp], Tensor]) -> list[int | None]:
    """Return the peak memory of every rank in bytes, None where it is unknown. Collective."""
    peak = peak_memory(device)
    peaks = reduce(torch.tensor([-1 if peak is None else peak]), "concat").tolist()
    return [None if value < 0 else value for value in peaks]


def summarise(
    folder: Path,
    progress: Progress,
    *,
    kept_step: int | None,
    world_size: int,
    num_steps: int,
    steps_per_epoch: int,
    peaks: Sequence[int | None],
    device: str,
    cost_ms: float | None,
    global_batch_size: int,
    traits: Traits,
    noise_reason: str | None = None,
    why_not_preconditioned: UnavailableEstimate | None = None,
    profile_reason: str | None = None,
    communication_reason: str | None = None,
) -> dict[str, Any]:
    """Return the content of summary.json without scores (see docs/reference/records.md), from the event logs.

    Args:
        kept_step: Step of the kept model; None if no model is kept.
        world_size: Ranks at the end.
        peaks: The result of `rank_peaks`.
        device: Type of the ranks' devices, which decides what the peaks are.
        cost_ms: Time of the recorder for each step, in milliseconds.
        traits: Traits of the strategy of the last session.
    """
    # All ranks that have events: a run may be resumed on fewer ranks.
    events = {rank: list(read_events(folder, rank)) for rank in sorted({*event_ranks(folder), *range(world_size)})}
    steps = {rank: [event for event in own if event["event"] == "step"] for rank, own in events.items()}
    last = [_last_session(events[rank]) for rank in range(world_size)]
    counted = [event for event in steps[0] if not event["warmup"]]
    profiles = [event for own in last for event in own if event["event"] == "profile"]
    figures, why = rates(list(steps.values())), why_not_preconditioned
    median = figures["step_ms"]["median"]
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": folder.name,
        **_ended(progress, num_steps, steps_per_epoch),
        "world_size": world_size,
        "num_interruptions": progress.num_interruptions,
        "num_lost_events": progress.num_lost_events,
        "time": _times(progress, list(steps.values())),
        **figures,
        "utilisation": utilisation(events),
        "ranks": [
            {"rank": rank, "peak_memory_bytes": peak, "device": device, "phases_total_s": _totals(steps[rank])}
            for rank, peak in enumerate(peaks)
        ],
        "memory": {"kind": "cuda_allocated" if device == "cuda" else "rss", **_memory(peaks)},
        "loss": _loss([event["loss"] for event in steps[0]], steps_per_epoch),
        "num_skipped_steps": sum(event.get("skipped", False) for event in steps[0]),
        "best": progress.best,
        "kept_step": kept_step,
        "evaluations": [
            {key: event.get(key) for key in ("step", "epoch", "split", "scores", "is_best")}
            for event in events[0]
            if event["event"] == "evaluation"
        ],
        "recorder": {
            "cost_ms_per_step": cost_ms,
            "cost_share": cost_ms / median if cost_ms is not None and median else None,
        },
        "noise_scale": noise_summary(
            counted,
            global_batch_size=global_batch_size,
            reason=noise_reason,
            why_not_preconditioned=None if why is None else why.reason,
        ),
        "communication": communication(profiles, communication_reason),
        "profile": profile_summary(profiles, profile_reason),
        "stragglers": stragglers(last, traits.own_phases, traits.kind),
    }


def _ended(progress: Progress, num_steps: int, steps_per_epoch: int) -> dict[str, Any]:
    """Return the time and the step of the end, and the reason why the run ended."""
    return {
        "status": "finished",
        "finished": utc_now(),
        "num_steps": progress.step,
        "num_epochs": round(progress.step / steps_per_epoch, 4),
        "stop_reason": "early_stopping" if progress.step < num_steps else "completed",
    }


def _times(progress: Progress, steps: Sequence[Sequence[dict[str, Any]]]) -> dict[str, float | None]:
    parts = {f"{part}_s": progress.seconds[part] for part in ("startup", "tokenize", "evaluate", "checkpoint")}
    return {**parts, "train_s": wall_s(steps), "total_s": progress.total_s()}


def _last_session(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events since the run was last resumed."""
    begin = max((position for position, event in enumerate(events) if event["event"] == "resume"), default=-1)
    return list(events[begin + 1 :])


def _totals(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {name: sum(event["phases_ms"][name] for event in steps) / 1000 for name in ALL_PHASES}


def _memory(peaks: Sequence[int | None]) -> dict[str, int | None]:
    known = [peak for peak in peaks if peak is not None]
    return {"largest_bytes": max(known, default=None), "sum_bytes": sum(known) if known else None}


def _loss(losses: Sequence[float | None], steps_per_epoch: int) -> dict[str, float | None]:
    return {
        "first": losses[0] if losses else None,
        "last": losses[-1] if losses else None,
        "mean_last_epoch": _mean([loss for loss in losses[-steps_per_epoch:] if loss is not None]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
