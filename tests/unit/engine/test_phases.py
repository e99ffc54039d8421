"""The clock: where an injected pause shows up, and the arithmetic of CUDA events.

On a busy machine anything may be held up for any time: so all but lower bounds are found with a time of the tests' own.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from exact import RowModel, row_steps
from looping import Bench, NotedKeeper
from torch import Tensor

from paratune.batch import Batch
from paratune.engine import phases
from paratune.engine.optim import OptimizerFactory
from paratune.engine.phases import CudaClock, HostPhaseClock, WatchedClock, make_clock
from paratune.processes.progress import RankProgress
from paratune.records import PHASES

PAUSE_MS = 50.0
NUM_STEPS = 6


class Timeline:
    """A host and a device, each with its own time in milliseconds; the device does what it is given in order."""

    now: ClassVar["Timeline"]
    """That of the test, for `pause`."""

    def __init__(self) -> None:
        self.host = 0.0
        self.device = 0.0
        self.synchronized: list[float] = []

    def works_on_host(self, ms: float) -> None:
        self.host += ms

    def launches(self, ms: float) -> None:
        """Put `ms` of work into the stream; launching takes the host no time."""
        self.device = max(self.device, self.host) + ms

    def perf_counter(self) -> float:
        return self.host / 1000

    def event(self) -> "FakeEvent":
        return FakeEvent(self)


class FakeEvent:
    """A torch.cuda.Event: recorded when the device comes to it."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.at = float("nan")

    def record(self) -> None:
        self.at = max(self._timeline.device, self._timeline.host)

    def elapsed_time(self, end: "FakeEvent") -> float:
        return end.at - self.at

    def synchronize(self) -> None:
        self._timeline.synchronized.append(self.at)


@pytest.fixture
def timeline(monkeypatch: pytest.MonkeyPatch) -> Timeline:
    line = Timeline()
    monkeypatch.setattr(phases.torch.cuda, "Event", lambda enable_timing: line.event())
    monkeypatch.setattr(phases, "time", line)
    monkeypatch.setattr(Timeline, "now", line, raising=False)
    return line


def pause() -> None:
    Timeline.now.works_on_host(PAUSE_MS)


class SlowForward(RowModel):
    def forward(self, batch: Batch) -> Tensor:
        pause()
        return super().forward(batch)


class _SleepInBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        pause()
        return gradient


class SlowBackward(RowModel):
    def forward(self, batch: Batch) -> Tensor:
        return _SleepInBackward.apply(super().forward(batch))


def slow_batches() -> Iterator[Sequence[Batch]]:
    for batches in row_steps(NUM_STEPS):
        pause()
        yield batches


def slow_optimizer(factory: OptimizerFactory) -> Callable[..., torch.optim.Optimizer]:
    def make(named: Any) -> torch.optim.Optimizer:
        optimizer = factory(named)
        optimizer.register_step_pre_hook(lambda *_: pause())
        return optimizer

    return make


CASES: dict[str, dict[str, Callable[[], Any]]] = {
    "get_batch": {"batches": slow_batches},
    "forward": {"model": SlowForward},
    "backward": {"model": SlowBackward},
    "optimizer": {"make_optimizer": lambda: slow_optimizer},
}


@pytest.mark.parametrize("slow", PHASES)
def test_a_pause_counts_only_in_its_phase(tmp_path: Path, slow: str, timeline: Timeline):
    bench = Bench(tmp_path, num_steps=NUM_STEPS, **{key: make() for key, make in CASES[slow].items()})
    bench.run()
    steps = bench.steps()
    for step in steps:
        expected = dict.fromkeys((*PHASES, "other"), 0.0) | {slow: PAUSE_MS}
        assert step["phases_ms"] == pytest.approx(expected)
        assert step["wall_ms"] == pytest.approx(PAUSE_MS)
        assert step["get_batch_host_ms"] == pytest.approx(PAUSE_MS if slow == "get_batch" else 0.0)
    # Steps follow each other without a gap: together they are the time of the loop.
    assert len(steps) * PAUSE_MS == pytest.approx(timeline.host)


def test_time_between_the_phases_is_other(tmp_path: Path, timeline: Timeline):
    bench = Bench(tmp_path, num_steps=NUM_STEPS, on_log=lambda event: pause())
    bench.run()
    # The log of a step is written after it ended: its time is in the next one.
    other = [step["phases_ms"]["other"] for step in bench.steps()]
    assert other == pytest.approx([0.0, *[PAUSE_MS] * (NUM_STEPS - 1)])


def test_the_time_of_an_evaluation_is_in_no_step(tmp_path: Path, timeline: Timeline):
    keeper = NotedKeeper([], on_evaluate=lambda progress: pause())
    bench = Bench(tmp_path, num_steps=NUM_STEPS, keeper=keeper, evaluation_due=lambda step: step > 0)
    bench.run()
    assert [call[0] for call in keeper.calls] == ["evaluate"] * NUM_STEPS
    # Before each step but the first, there was one.
    assert [step["wall_ms"] for step in bench.steps()] == pytest.approx([0.0] * NUM_STEPS)


def test_phases_are_summed_over_micro_batches():
    clock = HostPhaseClock()
    for _ in range(3):
        with clock("forward"):
            time.sleep(0.005)
    clock.end_step()
    (step,) = clock.take()
    assert step.phases_ms["forward"] >= 15.0
    assert step.phases_ms["backward"] == 0.0
    assert clock.take() == []


def test_the_bubble_is_the_time_between_the_passes_of_a_schedule(timeline: Timeline):
    clock = HostPhaseClock()
    timeline.works_on_host(5.0)
    with clock("schedule"):
        timeline.works_on_host(2.0)
        with clock("forward"):
            timeline.works_on_host(10.0)
        timeline.works_on_host(3.0)
        with clock("backward"):
            timeline.works_on_host(20.0)
    with clock("backward"):  # the sum of gradients over replicas
        timeline.works_on_host(4.0)
    clock.end_step()
    clock.end_step()
    step, without = clock.take()
    assert (step.schedule_ms, step.bubble_ms) == (pytest.approx(35.0), pytest.approx(5.0))
    assert step.phases_ms["other"] == pytest.approx(10.0)
    assert step.wall_ms == pytest.approx(44.0)
    assert (without.schedule_ms, without.bubble_ms) == (None, None)


def test_cuda_the_bubble_is_the_time_between_the_passes_of_a_schedule(timeline: Timeline):
    clock = CudaClock()
    with clock("schedule"):
        timeline.launches(2.0)
        with clock("forward"):
            timeline.launches(10.0)
        timeline.launches(3.0)
        with clock("backward"):
            timeline.launches(20.0)
    with clock("backward"):
        timeline.launches(4.0)
    clock.end_step()
    (step,) = clock.take()
    assert (step.schedule_ms, step.bubble_ms) == (35.0, 5.0)
    assert step.phases_ms["backward"] == 24.0


def test_a_restart_discards_the_current_step(timeline: Timeline):
    clock = HostPhaseClock()
    with clock("forward"):
        pause()
    clock.restart()
    clock.end_step()
    (step,) = clock.take()
    assert step.phases_ms["forward"] == 0.0
    assert step.wall_ms == 0.0


def test_a_phase_that_raises_is_still_timed():
    clock = HostPhaseClock()

    def fail() -> None:
        with clock("backward"):
            time.sleep(0.002)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    clock.end_step()
    assert clock.take()[0].phases_ms["backward"] >= 2.0


def one_step(
    clock: CudaClock, line: Timeline, *, get_batch: float, before_forward: float = 0.0, forward: float, backward: float
) -> None:
    with clock("get_batch"):
        line.works_on_host(get_batch)
    line.works_on_host(before_forward)
    with clock("forward"):
        line.launches(forward)
    with clock("backward"):
        line.launches(backward)
    with clock("optimizer"):
        line.launches(1.0)
    clock.end_step()


def test_cuda_a_device_that_waits_for_the_batch_is_in_get_batch(timeline: Timeline):
    clock = CudaClock()
    one_step(clock, timeline, get_batch=8.0, forward=10.0, backward=20.0)
    (step,) = clock.take()
    assert step.phases_ms == {"get_batch": 8.0, "forward": 10.0, "backward": 20.0, "optimizer": 1.0, "other": 0.0}
    assert step.wall_ms == 39.0
    assert step.get_batch_host_ms == 8.0


def test_cuda_a_batch_that_is_made_while_the_device_works_costs_nothing(timeline: Timeline):
    clock = CudaClock()
    one_step(clock, timeline, get_batch=8.0, forward=10.0, backward=20.0)
    # The host is 31 ms ahead of the device now; its next 8 ms are hidden behind the first step.
    one_step(clock, timeline, get_batch=8.0, forward=10.0, backward=20.0)
    step = clock.take()[1]
    assert step.phases_ms == {"get_batch": 0.0, "forward": 10.0, "backward": 20.0, "optimizer": 1.0, "other": 0.0}
    assert step.wall_ms == 31.0
    assert step.get_batch_host_ms == pytest.approx(8.0)


def test_cuda_only_the_part_of_get_batch_that_is_not_overlapped_counts(timeline: Timeline):
    clock = CudaClock()
    one_step(clock, timeline, get_batch=0.0, forward=2.0, backward=3.0)
    one_step(clock, timeline, get_batch=8.0, forward=2.0, backward=3.0)
    step = clock.take()[1]
    assert step.phases_ms["get_batch"] == pytest.approx(2.0)  # of 8 ms, the device was busy for 6
    assert step.wall_ms == pytest.approx(8.0)


def test_cuda_idle_time_outside_get_batch_is_other(timeline: Timeline):
    clock = CudaClock()
    one_step(clock, timeline, get_batch=8.0, before_forward=4.0, forward=10.0, backward=20.0)
    (step,) = clock.take()
    assert step.phases_ms["get_batch"] == 8.0
    assert step.phases_ms["other"] == 4.0
    assert sum(step.phases_ms.values()) == step.wall_ms == 43.0


def test_cuda_phases_are_summed_over_micro_batches(timeline: Timeline):
    clock = CudaClock()
    for _ in range(3):
        with clock("forward"):
            timeline.launches(4.0)
        with clock("backward"):
            timeline.launches(5.0)
    clock.end_step()
    (step,) = clock.take()
    assert (step.phases_ms["forward"], step.phases_ms["backward"], step.wall_ms) == (12.0, 15.0, 27.0)


def test_cuda_the_time_of_an_evaluation_is_in_no_step(timeline: Timeline):
    clock = CudaClock()
    one_step(clock, timeline, get_batch=1.0, forward=2.0, backward=3.0)
    timeline.works_on_host(1000.0)
    timeline.launches(1000.0)
    clock.restart()
    one_step(clock, timeline, get_batch=1.0, forward=2.0, backward=3.0)
    assert [step.wall_ms for step in clock.take()] == [7.0, 6.0]


def test_cuda_events_are_waited_for_once_when_they_are_read(timeline: Timeline):
    clock = CudaClock()
    for _ in range(4):
        one_step(clock, timeline, get_batch=0.0, forward=2.0, backward=3.0)
    assert timeline.synchronized == []
    assert len(clock.take()) == 4
    assert timeline.synchronized == [24.0]
    assert clock.take() == []
    assert timeline.synchronized == [24.0]


def test_cuda_the_first_steps_are_read_without_waiting_for_later_ones(timeline: Timeline):
    clock = CudaClock()
    for _ in range(3):
        one_step(clock, timeline, get_batch=0.0, forward=2.0, backward=3.0)
    assert len(clock.take(2)) == 2
    assert timeline.synchronized == [12.0], "the end of the second step"
    assert len(clock.take()) == 1


def test_a_cpu_gets_the_host_clock():
    assert isinstance(make_clock(torch.device("cpu")), HostPhaseClock)


def test_the_reported_phase_is_correct_even_after_an_error():
    rank_progress = RankProgress()
    clock = WatchedClock(HostPhaseClock(), rank_progress)
    with clock("schedule"):
        with suppress(ZeroDivisionError), clock("forward"):
            assert rank_progress.phase == "forward"
            raise ZeroDivisionError
        assert rank_progress.phase == "schedule"
    assert rank_progress.phase is None
    assert rank_progress.num_beats == 4
    clock.end_step()
    (times,) = clock.take()
    assert times.phases_ms["forward"] > 0
    assert times.schedule_ms is not None
    assert times.schedule_ms >= times.phases_ms["forward"]
