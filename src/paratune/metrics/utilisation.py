"""Computes utilisation, memory, power and energy of the devices of a run from its `sample` events.

The result is `utilisation` of a summary; docs/reference/records.md describes events and summary.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

Event = Mapping[str, Any]
LEAST_COVERED = 0.95
"""Smallest share of the training time with energy samples for which their sum is reported."""
_SOURCES = ("nvml power", "nvml counter", "rapl")
"""Energy sources, the least exact first; the first that was used is the source of the sum."""


def utilisation(events: Mapping[int, Sequence[Event]]) -> dict[str, Any]:
    """Return the utilisation of devices over the measured steps, and the energy of all steps.

    Args:
        events: Events by rank; a `sampler` event describes the sampler of the `sample` events after it.

    Returns:
        kind, interval_s, num_samples, mean, p10, p90 (weighted by the samples' time), machine_mean, devices, energy_j,
        energy_source, reason; None where unknown.
    """
    sampler_by_rank, samples = (
        {rank: [event for event in rank_events if event["event"] == kind] for rank, rank_events in events.items()}
        for kind in ("sampler", "sample")
    )
    sampler_events = list(chain.from_iterable(sampler_by_rank.values()))
    kinds = {event["kind"] for event in sampler_events} - {None}
    reasons = [str(event["reason"]) for event in sampler_events if event.get("reason")]
    if not sampler_events:
        reasons.append("measure.sample_every_s is null: nothing was sampled")
    if len(kinds) > 1:
        reasons.append(f"sessions were sampled in different ways: {' and '.join(sorted(kinds))}")
    counted = {
        rank: [sample for sample in rank_samples if not (sample["warmup"] or sample.get("profiled"))]
        for rank, rank_samples in samples.items()
    }
    all_counted = list(chain.from_iterable(counted.values()))
    busy = [sample for sample in all_counted if sample.get("utilisation") is not None]
    if sampler_events and not busy and not reasons:
        reasons.append("no sample: the steps after warm-up and profiler took less time than one interval")
    usable = busy if len(kinds) == 1 else []
    quantiles: list[float | None] = [None, None]
    if usable:
        values, weights = ([sample[key] for sample in usable] for key in ("utilisation", "seconds"))
        quantiles = np.quantile(values, [0.1, 0.9], weights=weights, method="inverted_cdf").tolist()
    energy_j, source, why = _energy(events, sampler_by_rank, samples)
    return {
        "kind": kinds.pop() if len(kinds) == 1 else None,
        "interval_s": sampler_events[-1]["interval_s"] if sampler_events else None,
        "num_samples": len(usable),
        "mean": _mean(usable, "utilisation"),
        "p10": quantiles[0],
        "p90": quantiles[1],
        "machine_mean": _mean(all_counted, "machine"),
        "devices": [
            _device(rank, sampler_by_rank[rank][-1], samples[rank], counted[rank])
            for rank in events
            if sampler_by_rank[rank]
        ],
        "energy_j": energy_j,
        "energy_source": source,
        "reason": "; ".join(dict.fromkeys([*reasons, *why])) or None,
    }


def _device(rank: int, facts: Event, samples: Sequence[Event], counted: Sequence[Event]) -> dict[str, Any]:
    powers = [sample["power_w"] for sample in counted if sample.get("power_w") is not None]
    memory = [sample["memory_bytes"] for sample in samples if sample.get("memory_bytes") is not None]
    return {
        "rank": rank,
        "name": facts["name"],
        "mean": _mean(counted, "utilisation"),
        "memory_bytes": int(max(memory)) if memory else None,
        "power_w": {"mean": _mean(counted, "power_w"), "max": max(powers)} if powers else None,
    }


def _energy(
    events: Mapping[int, Sequence[Event]],
    sampler_by_rank: Mapping[int, Sequence[Event]],
    samples: Mapping[int, Sequence[Event]],
) -> tuple[float | None, str | None, list[str]]:
    """Return the energy of all steps in joules, its source, and the reasons where it is unknown."""
    total, sources_used = 0.0, set()
    for rank, sampler_events in sampler_by_rank.items():
        if sampler_events and not any(event["is_energy_here"] for event in sampler_events):
            continue
        sources = {event["energy_source"] for event in sampler_events}
        if None in sources or not sources:
            return None, None, _missing_energy_reasons(rank, sampler_events) if any(sampler_by_rank.values()) else []
        steps_s = sum(event["wall_ms"] for event in events[rank] if event["event"] == "step") / 1000
        known = [sample for sample in samples[rank] if sample.get("energy_j") is not None]
        covered_s = sum(sample["seconds"] for sample in known)
        if covered_s < LEAST_COVERED * steps_s:
            return None, None, [f"energy was measured in {covered_s:.0f} s of {steps_s:.0f} s of rank {rank}'s steps"]
        total += sum(sample["energy_j"] for sample in known)
        sources_used |= sources
    if not sources_used:
        return None, None, ["energy: no recorded rank measures the energy of its machine"] if sampler_by_rank else []
    return total, next(source for source in _SOURCES if source in sources_used), []


def _missing_energy_reasons(rank: int, sampler_events: Sequence[Event]) -> list[str]:
    """Return why the energy of a rank is unknown, unless the reasons of its sampler already explain it."""
    if not sampler_events:
        return [f"energy: rank {rank} was not sampled"]
    reasons = " ".join(str(event["reason"]) for event in sampler_events if event["energy_source"] is None)
    is_explained = any(word in reasons for word in ("energy", "power")) or all(
        event["kind"] is None for event in sampler_events
    )
    return [] if is_explained else [f"energy: {sampler_events[-1]['name']} of rank {rank} does not report it"]


def _mean(samples: Iterable[Event], key: str) -> float | None:
    known = [sample for sample in samples if sample.get(key) is not None]
    seconds = sum(sample["seconds"] for sample in known)
    return sum(sample[key] * sample["seconds"] for sample in known) / seconds if seconds > 0 else None
