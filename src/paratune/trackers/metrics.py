"""Selects the metrics for trackers from events and from the summary."""

import math
from collections.abc import Iterator, Mapping
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
        return step, finite_numbers(
            {"checkpoint/time_s": values.get("time_s"), "checkpoint/num_bytes": values["num_bytes"]}
        )
    return None


def _step(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in ("loss", "grad_norm", "learning_rate", "epoch", "loss_scale"):
        yield f"train/{key}", values.get(key)
    for name, duration in values["phases_ms"].items():
        yield f"phases_ms/{name}", duration
    wall_ms = values["wall_ms"]
    yield "phases_ms/step", wall_ms
    # Rank 0 only: the throughput of all ranks is in the summary.
    yield "rank0/tokens_per_s", 1000 * values["num_tokens"] / wall_ms if wall_ms else None
    yield "rank0/samples_per_s", 1000 * values["num_samples"] / wall_ms if wall_ms else None
    yield "rank0/memory_bytes", values.get("memory_bytes")


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


def finite_numbers(values: Mapping[str, Any] | Iterator[tuple[str, Any]]) -> dict[str, float]:
    """Return the finite numbers among values, since trackers treat others differently."""
    items = values.items() if isinstance(values, Mapping) else values
    return {
        name: float(value)
        for name, value in items
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
