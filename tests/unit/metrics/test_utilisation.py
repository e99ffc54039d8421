"""Utilisation and energy from samples of two ranks, computed by hand."""

from typing import Any

import pytest

from paratune.metrics.utilisation import utilisation

FACTS = {
    "event": "sampler",
    "kind": "nvml",
    "name": "NVIDIA A100-SXM4-40GB",
    "interval_s": 1.0,
    "energy_source": "nvml counter",
    "is_energy_here": True,
    "reason": None,
}


def facts(**changes: Any) -> dict[str, Any]:
    return {**FACTS, **changes}


def sample(utilisation: float | None, *, warmup: bool = False, seconds: float = 1.0, **values: Any) -> dict[str, Any]:
    head = {"event": "sample", "step": 1, "warmup": warmup, "seconds": seconds}
    return head | ({} if utilisation is None else {"utilisation": utilisation}) | values


def step(wall_ms: float) -> dict[str, Any]:
    return {"event": "step", "step": 1, "wall_ms": wall_ms}


def test_samples_count_by_their_time_over_all_devices():
    result = utilisation(
        {
            0: [facts(), sample(0.1, warmup=True, memory_bytes=900), sample(0.5), sample(1.0, memory_bytes=700)],
            1: [facts(name="other"), sample(0.25, seconds=2.0)],
        }
    )
    # (0.5 + 1.0 + 2 x 0.25) / 4
    assert result["mean"] == pytest.approx(0.5)
    assert (result["num_samples"], result["p10"], result["p90"]) == (3, 0.25, 1.0)
    assert [
        (single["rank"], single["name"], single["mean"], single["memory_bytes"]) for single in result["devices"]
    ] == [
        (0, "NVIDIA A100-SXM4-40GB", 0.75, 900),
        (1, "other", 0.25, None),
    ]
    assert (result["kind"], result["interval_s"], result["machine_mean"]) == ("nvml", 1.0, None)


def test_profiled_samples_count_only_for_energy():
    # The profiler's own work is in them: (0.5 x 1 + 0.7 x 1) / 2 without the one of 0.1.
    profiled = sample(0.1, profiled=True, energy_j=30.0, power_w=30.0)
    rank = [facts(), step(3000.0), sample(0.5, energy_j=50.0, power_w=50.0), profiled,
            sample(0.7, energy_j=70.0, power_w=70.0)]  # fmt: skip
    result = utilisation({0: rank})
    assert (result["mean"], result["num_samples"], result["p10"]) == (pytest.approx(0.6), 2, 0.5)
    assert result["devices"][0]["power_w"] == {"mean": pytest.approx(60.0), "max": 70.0}
    assert result["energy_j"] == 150.0


def test_energy_is_that_of_all_steps_and_power_of_the_measured_ones():
    rank = [
        facts(),
        step(3000.0),
        sample(0.5, warmup=True, energy_j=300.0, power_w=300.0),
        sample(0.5, energy_j=100.0, power_w=100.0),
        sample(0.5, energy_j=200.0, power_w=200.0),
    ]
    result = utilisation({0: rank, 1: rank})
    assert (result["energy_j"], result["energy_source"], result["reason"]) == (1200.0, "nvml counter", None)
    assert result["devices"][0]["power_w"] == {"mean": 150.0, "max": 200.0}


def test_the_energy_of_a_shared_machine_is_from_one_rank():
    first = [facts(kind="cpu", energy_source="rapl"), step(1000.0), sample(0.5, energy_j=60.0, machine=0.75)]
    second = [facts(kind="cpu", energy_source=None, is_energy_here=False), step(1000.0), sample(0.25)]
    result = utilisation({0: first, 1: second})
    assert (result["energy_j"], result["energy_source"], result["machine_mean"]) == (60.0, "rapl", 0.75)


def test_the_source_of_a_sum_is_the_least_exact_one():
    counter = [facts(), step(1000.0), sample(0.5, energy_j=60.0)]
    power = [facts(energy_source="nvml power"), step(1000.0), sample(0.5, energy_j=50.0)]
    result = utilisation({0: counter, 1: power})
    assert (result["energy_j"], result["energy_source"]) == (110.0, "nvml power")


def test_energy_of_a_part_of_the_time_is_unknown():
    whole = [facts(), step(2000.0), sample(0.5, energy_j=60.0, seconds=2.0)]
    lost = [facts(), step(2000.0), sample(0.5, energy_j=60.0), facts(reason="energy counter: GPU is lost")]
    result = utilisation({0: whole, 1: lost})
    assert result["energy_j"] is None
    assert result["reason"] == "energy counter: GPU is lost; energy was measured in 1 s of 2 s of rank 1's steps"
    silent = [facts(energy_source=None, reason="pynvml is not installed", kind=None), step(2000.0)]
    result = utilisation({0: whole, 1: silent})
    assert (result["energy_j"], result["reason"]) == (None, "pynvml is not installed")


@pytest.mark.parametrize(
    ("events", "expected_text"),
    [
        ({0: [facts(energy_source=None, name="EPYC"), step(1000.0), sample(0.5)]},
         "energy: EPYC of rank 0 does not report it"),
        ({0: [facts(), step(1000.0), sample(0.5, energy_j=60.0)], 1: [step(1000.0)]}, "energy: rank 1 was not sampled"),
        ({1: [facts(kind="cpu", energy_source=None, is_energy_here=False), step(1000.0), sample(0.5)]},
         "energy: no recorded rank measures the energy of its machine"),
        ({0: [facts(energy_source=None, reason="energy: Permission denied"), step(1000.0), sample(0.5)]},
         "energy: Permission denied"),
    ],
)  # fmt: skip
def test_unknown_energy_has_a_reason(events: dict[int, list[dict[str, Any]]], expected_text: str):
    result = utilisation(events)
    assert (result["energy_j"], result["energy_source"], result["reason"]) == (None, None, expected_text)


def test_sessions_with_other_samplers_are_not_mixed():
    result = utilisation({0: [facts(), sample(0.5), facts(kind="cpu", energy_source="rapl"), sample(0.7)]})
    assert (result["kind"], result["mean"]) == (None, None)
    assert "cpu and nvml" in result["reason"]


def test_missing_samples_have_a_reason():
    assert "sample_every_s" in utilisation({0: [step(10.0)]})["reason"]
    short = utilisation({0: [facts(), step(10.0), sample(0.9, warmup=True)]})
    assert (short["mean"], short["num_samples"]) == (None, 0)
    assert "warm-up" in short["reason"]
