"""What trackers are told: the numbers of events and of the summary, by name."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

Point = tuple[int, dict[str, float]]
"""A step, and its figures by name."""


def point_of(event: str, values: Mapping[str, Any]) -> Point | None:
    """Return what is told of an event, or None for one without figures."""
    step = values.get("step")
    if not isinstance(step, int):
        return None
    if event == "step":
        return step, numbers(_step(values))
    if event == "evaluation":
        scores = {f"{values['split']}/{name}": value for name, value in values["scores"].items()}
        return step, numbers({**scores, f"{values['split']}/time_s": values.get("time_s")})
    if event == "checkpoint":
        return step, numbers({"checkpoint/time_s": values.get("time_s"), "checkpoint/num_bytes": values["num_bytes"]})
    return None


def _step(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in ("loss", "grad_norm", "learning_rate", "epoch", "loss_scale"):
        yield f"train/{key}", values.get(key)
    for name, duration in values["phases_ms"].items():
        yield f"phases_ms/{name}", duration
    wall_ms = values["wall_ms"]
    yield "phases_ms/step", wall_ms
    # What other ranks computed is in their own logs; the throughput of all is in the result.
    yield "rank0/tokens_per_s", 1000 * values["num_tokens"] / wall_ms if wall_ms else None
    yield "rank0/samples_per_s", 1000 * values["num_samples"] / wall_ms if wall_ms else None
    yield "rank0/memory_bytes", values.get("memory_bytes")


def result_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return what is told of a finished run: its final scores, times, throughput, phases and memory."""
    found: dict[str, Any] = {"final/num_steps": summary["num_steps"]}
    for split, scores in summary["scores"].items():
        found |= {f"final/{split}/{name}": value for name, value in scores.items()}
    for part in ("time", "throughput"):
        found |= {f"final/{name}": value for name, value in summary[part].items()}
    found |= {f"final/phase_share/{name}": phase["share"] for name, phase in summary["phases"].items()}
    found["final/memory_largest_bytes"] = summary["memory"]["largest_bytes"]
    return numbers(found)


def numbers(values: Mapping[str, Any] | Iterator[tuple[str, Any]]) -> dict[str, float]:
    """Return those of some values that are finite numbers: trackers differ in what they make of others."""
    items = values.items() if isinstance(values, Mapping) else values
    return {
        name: float(value)
        for name, value in items
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
