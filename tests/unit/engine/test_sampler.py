"""What is sampled when, with a probe whose counters a test sets and a clock that it turns."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from patience import wait_for

from paratune.engine import sampler as module
from paratune.engine.probes import Reading
from paratune.engine.sampler import Sampler


class SetProbe:
    """Reads what it is told."""

    kind = "nvml"
    window_s = 1.0
    is_energy_here = True
    energy_source: Any = "nvml counter"

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.reading = Reading(utilisation=0.5, memory_bytes=100, power_w=200.0, energy_j=0.0)

    def read(self) -> Reading:
        return self.reading


class Turned:
    """A clock that a test turns, and a probe that takes 100 W all the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)
        self.probe = SetProbe()
        # The thread waits for longer than a test takes: samples are asked for here.
        self.sampler = Sampler(self.probe, name="GPU", interval_s=1000.0)

    def pass_s(self, seconds: float, *, utilisation: float = 0.5) -> None:
        self.now += seconds
        energy_j = 100.0 * (self.now - 100.0)
        self.probe.reading = Reading(utilisation=utilisation, memory_bytes=100, power_w=100.0, energy_j=energy_j)

    def tick(self, seconds: float = 1.0, **values: float) -> None:
        self.pass_s(seconds, **values)
        with self.sampler._lock:
            if self.sampler._begin_s is not None:
                self.sampler._sample(self.sampler._step)


@pytest.fixture
def turned(monkeypatch) -> Iterator[Turned]:
    made = Turned(monkeypatch)
    yield made
    made.sampler.close()


def test_evaluations_are_not_sampled(turned):
    turned.sampler.resume()
    turned.tick(2.0)
    turned.pass_s(0.5)
    turned.sampler.pause()
    turned.tick(60.0)  # an evaluation
    turned.sampler.resume()
    turned.tick(2.0)
    turned.pass_s(0.25)
    turned.sampler.pause()
    samples = turned.sampler.take()
    assert [sample["seconds"] for sample in samples] == [2.0, 0.5, 2.0, 0.25]
    assert sum(sample["energy_j"] for sample in samples) == pytest.approx(100 * 4.75)
    assert turned.sampler.take() == []


def test_utilisation_covers_only_time_within_steps(turned):
    turned.sampler.resume()
    turned.tick(0.75, utilisation=0.1)  # of the last second, which began before the steps
    turned.tick(0.5, utilisation=0.9)
    first, second = turned.sampler.take()
    assert "utilisation" not in first
    assert second["utilisation"] == 0.9


def test_no_sample_has_warm_up_and_measured_steps(turned):
    turned.sampler.resume()
    turned.tick(2.0)
    turned.sampler.next_step(2, is_warmup=True)
    turned.pass_s(0.5)
    turned.sampler.next_step(3, is_warmup=False)
    turned.tick(0.5)
    turned.tick(1.0)
    samples = turned.sampler.take()
    assert [(sample["step"], sample["warmup"], sample["seconds"]) for sample in samples] == [
        (1, True, 2.0),
        (2, True, 0.5),
        (3, False, 0.5),
        (3, False, 1.0),
    ]
    assert ["utilisation" in sample for sample in samples] == [True, True, False, True], "the window begins anew"


def test_the_last_sample_belongs_to_the_step_of_the_checkpoint(turned):
    # Read back after a resume from step 3, which drops what came behind it: the last sample ends with that step.
    turned.sampler.resume()
    for step in (2, 3, 4):
        turned.pass_s(1.0)
        turned.sampler.next_step(step, is_warmup=True)
    turned.sampler.pause()
    assert [(sample["step"], sample["seconds"]) for sample in turned.sampler.take()] == [(3, 3.0)]


def test_busy_time_becomes_a_share(turned):
    turned.probe.window_s = 0.0
    turned.probe.reading = Reading(busy_s=10.0, machine_busy_s=5.0)
    turned.sampler.resume()
    turned.now += 2.0
    turned.probe.reading = Reading(busy_s=11.5, machine_busy_s=7.5)
    turned.sampler.next_step(2, is_warmup=True)
    turned.sampler.pause()
    (sample,) = turned.sampler.take()
    assert sample == {"step": 1, "warmup": True, "seconds": 2.0, "utilisation": 0.75, "machine": 1.0}


def test_utilisation_is_at_most_1(turned):
    turned.probe.window_s = 0.0
    turned.probe.reading = Reading(busy_s=10.0)
    turned.sampler.resume()
    turned.now += 2.0
    turned.probe.reading = Reading(busy_s=13.0)  # 3 s of its cores in 2 s
    turned.sampler.pause()
    assert turned.sampler.take()[0]["utilisation"] == 1.0


def test_samples_under_the_profiler_are_marked(turned):
    for is_profiled in (False, True, False):
        turned.sampler.resume(is_profiled=is_profiled)
        turned.pass_s(2.0)
        turned.sampler.pause()
    assert [sample.get("profiled", False) for sample in turned.sampler.take()] == [False, True, False]


def test_without_a_counter_energy_is_computed_from_power(turned):
    turned.probe.energy_source = "nvml power"
    turned.probe.reading = Reading(power_w=100.0)
    turned.sampler.resume()
    turned.now += 2.0
    turned.probe.reading = Reading(power_w=300.0)
    turned.sampler.pause()
    # (100 W + 300 W) / 2 x 2 s
    assert turned.sampler.take()[0]["energy_j"] == 400.0


def test_a_sample_that_is_too_short_has_no_utilisation(turned):
    turned.probe.reading = Reading(busy_s=10.0, memory_bytes=7)
    turned.sampler.resume()
    turned.now += 0.1
    turned.sampler.pause()
    assert turned.sampler.take() == []


def test_a_counter_that_fails_is_left_out(turned):
    turned.sampler.resume()
    turned.now += 2.0
    turned.probe.reading = Reading(memory_bytes=9)
    turned.probe.reasons.append("utilisation: GPU is lost")
    turned.sampler.next_step(2, is_warmup=True)
    turned.sampler.pause()
    assert turned.sampler.take() == [{"step": 1, "warmup": True, "seconds": 2.0, "memory_bytes": 9}]
    facts = turned.sampler.facts()
    assert facts is not None
    assert facts["reason"] == "utilisation: GPU is lost"


def test_the_thread_samples_by_itself_and_ends():
    probe = SetProbe()
    probe.window_s = 0.0
    sampler = Sampler(probe, name="GPU", interval_s=0.25)
    sampler.resume()
    wait_for(lambda: len(sampler._samples) >= 2)
    sampler.close()
    assert len(sampler.take()) >= 2
    assert "paratune-sampler" not in {thread.name for thread in threading.enumerate()}


def test_a_sampler_that_is_off_has_neither_thread_nor_facts():
    probe = SetProbe()
    sampler = Sampler(probe, name="GPU", interval_s=None)
    sampler.resume()
    sampler.next_step(2, is_warmup=False)
    sampler.pause()
    sampler.close()
    assert (sampler.take(), sampler.facts(), sampler._thread) == ([], None, None)


def test_without_a_probe_the_facts_have_a_reason():
    sampler = Sampler(None, name="GPU", interval_s=1.0, reason="pynvml is not installed")
    sampler.resume()
    sampler.pause()
    assert sampler.take() == []
    facts = sampler.facts()
    assert facts is not None
    assert (facts["kind"], facts["reason"]) == (None, "pynvml is not installed")
