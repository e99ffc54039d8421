"""Selects the metrics for trackers from events and from the summary."""

import math
from collections.abc import Mapping
from typing import Any

StepMetrics = tuple[int, dict[str, float]]
"""A step, and its metrics by name."""


def event_metrics(event: str, values: Mapping[str, Any]) -> StepMetrics | None:
    """Return the metrics of an event, or None if it has none."""
    step = values.get("step")
    if not isinstance(step, int):
        return None
    if event == "step":
        return step, finite_numbers(_step(values))
    if event == "evaluation":
        scores = {f"{values['split']}/{name}": value for name, value in values["scores"].items()}
        return step, finite_numbers({**scores, f"{values['split']}/time_s": values.get("time_s")})
    if event == "checkpoint":
        return step, finite_numbers({f"checkpoint/{key}": values.get(key) for key in ("time_s", "num_bytes")})
    return None


def _step(values: Mapping[str, Any]) -> dict[str, Any]:
    wall_ms = values["wall_ms"]
    numbers = {f"train/{key}": values.get(key) for key in ("loss", "grad_norm", "learning_rate", "epoch", "loss_scale")}
    numbers |= {f"phases_ms/{name}": duration for name, duration in values["phases_ms"].items()}
    numbers["phases_ms/step"] = wall_ms
    # Rank 0 only: the throughput of all ranks is in the summary.
    for counted in ("tokens", "samples"):
        numbers[f"rank0/{counted}_per_s"] = 1000 * values[f"num_{counted}"] / wall_ms if wall_ms else None
    return numbers | {"rank0/memory_bytes": values.get("memory_bytes")}


def summary_metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a finished run: kept step, its scores, times, throughput, phases and memory."""
    values: dict[str, Any] = {f"final/{name}": summary.get(name) for name in ("num_steps", "kept_step")}
    for split, scores in summary["scores"].items():
        values |= {f"final/{split}/{name}": value for name, value in scores.items()}
    for part in ("time", "throughput"):
        values |= {f"final/{name}": value for name, value in summary[part].items()}
    values |= {f"final/phase_share/{name}": phase["share"] for name, phase in summary["phases"].items()}
    values["final/memory_largest_bytes"] = summary["memory"]["largest_bytes"]
    return finite_numbers(values)


def finite_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among values, since trackers treat others differently."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
