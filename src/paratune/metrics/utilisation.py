"""How busy the devices of a run were, and what they drew, from its `sample` events.

The result is the `utilisation` of a summary; docs/reference/records.md has both sides.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Event = Mapping[str, Any]
LEAST_COVERED = 0.95
"""Part of the training time that energy must have been measured in, for its sum to be called the training's."""
_SOURCES = ("nvml power", "nvml counter", "rapl")
"""Of several, the first is what a sum is called after: it is the least exact."""


def utilisation(events: Mapping[int, Sequence[Event]]) -> dict[str, Any]:
    """Return how busy devices were over the measured steps, and the energy of all steps.

    Args:
        events: By rank, what it logged; each of its `sampler` events says how it sampled from there on.

    Returns:
        kind, interval_s, num_samples, mean, p10, p90 (weighted by the samples' time), machine_mean, devices, energy_j,
        energy_source, reason; None where unknown.
    """
    facts = {rank: [event for event in of if event["event"] == "sampler"] for rank, of in events.items()}
    samples = {rank: [event for event in of if event["event"] == "sample"] for rank, of in events.items()}
    said = [event for of in facts.values() for event in of]
    kinds = {event["kind"] for event in said} - {None}
    reasons = [str(event["reason"]) for event in said if event.get("reason")]
    if not said:
        reasons.append("measure.sample_every_s is null: nothing was sampled")
    if len(kinds) > 1:
        reasons.append(f"sessions were sampled in different ways: {' and '.join(sorted(kinds))}")
    counted = {rank: [one for one in of if not (one["warmup"] or one.get("profiled"))] for rank, of in samples.items()}
    busy = [one for of in counted.values() for one in of if one.get("utilisation") is not None]
    if said and not busy and not reasons:
        reasons.append("no sample: the steps behind warm-up and profiler took less time than one")
    usable = busy if len(kinds) == 1 else []
    energy_j, source, why = _energy(events, facts, samples)
    return {
        "kind": kinds.pop() if len(kinds) == 1 else None,
        "interval_s": said[-1]["interval_s"] if said else None,
        "num_samples": len(usable),
        "mean": _mean(usable, "utilisation"),
        "p10": _quantile(usable, 0.1),
        "p90": _quantile(usable, 0.9),
        "machine_mean": _mean([one for of in counted.values() for one in of], "machine"),
        "devices": [_device(rank, facts[rank][-1], samples[rank], counted[rank]) for rank in events if facts[rank]],
        "energy_j": energy_j,
        "energy_source": source,
        "reason": "; ".join(dict.fromkeys([*reasons, *why])) or None,
    }


def _device(rank: int, facts: Event, samples: Sequence[Event], counted: Sequence[Event]) -> dict[str, Any]:
    powers = [one["power_w"] for one in counted if one.get("power_w") is not None]
    memory = [one["memory_bytes"] for one in samples if one.get("memory_bytes") is not None]
    return {
        "rank": rank,
        "name": facts["name"],
        "mean": _mean(counted, "utilisation"),
        "memory_bytes": int(max(memory)) if memory else None,
        "power_w": {"mean": _mean(counted, "power_w"), "max": max(powers)} if powers else None,
    }


def _energy(
    events: Mapping[int, Sequence[Event]],
    facts: Mapping[int, Sequence[Event]],
    samples: Mapping[int, Sequence[Event]],
) -> tuple[float | None, str | None, list[str]]:
    """Return joules over all steps, what told them, and why they are not known."""
    total, found = 0.0, set()
    for rank, of in facts.items():
        if of and not any(event["is_energy_here"] for event in of):
            continue
        sources = {event["energy_source"] for event in of}
        if None in sources or not sources:
            return None, None, _why_without_source(rank, of) if any(facts.values()) else []
        steps_s = sum(event["wall_ms"] for event in events[rank] if event["event"] == "step") / 1000
        known = [one for one in samples[rank] if one.get("energy_j") is not None]
        covered_s = sum(one["seconds"] for one in known)
        if covered_s < LEAST_COVERED * steps_s:
            return None, None, [f"energy was measured in {covered_s:.0f} s of {steps_s:.0f} s of rank {rank}'s steps"]
        total += sum(one["energy_j"] for one in known)
        found |= sources
    if not found:
        return None, None, ["energy: no rank of those recorded was to measure that of its machine"] if facts else []
    return total, next(source for source in _SOURCES if source in found), []


def _why_without_source(rank: int, facts: Sequence[Event]) -> list[str]:
    """Return why nothing tells the energy of a rank, where its sampler has not said that itself."""
    if not facts:
        return [f"energy: rank {rank} was not sampled"]
    said = " ".join(str(event["reason"]) for event in facts if event["energy_source"] is None)
    is_said = any(word in said for word in ("energy", "power")) or all(event["kind"] is None for event in facts)
    return [] if is_said else [f"energy: {facts[-1]['name']} of rank {rank} does not report it"]


def _mean(samples: Iterable[Event], key: str) -> float | None:
    known = [one for one in samples if one.get(key) is not None]
    seconds = sum(one["seconds"] for one in known)
    return sum(one[key] * one["seconds"] for one in known) / seconds if seconds > 0 else None


def _quantile(samples: Sequence[Event], share: float) -> float | None:
    if not samples:
        return None
    values, weights = ([one[key] for one in samples] for key in ("utilisation", "seconds"))
    return float(np.quantile(values, share, weights=weights, method="inverted_cdf"))
