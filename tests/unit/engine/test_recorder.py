"""What the recorder costs and when it waits; what it writes is in test_loop."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from exact import row_batch
from looping import single
from raised import raises_code
from waits import watched_for_waits

from paratune.engine import recorder as recorder_module
from paratune.engine.noise import NoiseSample
from paratune.engine.phases import StepTimes
from paratune.engine.recorder import Figures, Recorder
from paratune.engine.sampler import Sampler
from paratune.records import EventLog, read_events


class Counted:
    """A strategy of two ranks and a clock, both of which count how often they are asked."""

    def __init__(self) -> None:
        self.layout = replace(single().layout, data_rank=3)
        self.num_reductions = self.num_ended = self.num_takes = 0

    def reduce(self, value: torch.Tensor, op: str) -> torch.Tensor:
        self.num_reductions += 1
        return 2 * value

    def take(self, num_steps: int) -> list[StepTimes]:
        self.num_takes += 1
        self.num_ended -= num_steps
        assert self.num_ended >= 0
        return [StepTimes({"get_batch": 1.0, "other": 2.00004}, 3.00004, 1.0)] * num_steps


class Later(Figures):
    """Figures that arrive later, as those of a GPU; counts and lengthens the waits for them."""

    num_waits = 0
    wait_s = 0.0
    is_on_host = False

    def wait(self) -> None:
        Later.num_waits += 1
        time.sleep(self.wait_s)

    def read(self) -> list[list[float]]:
        assert Later.num_waits, "read before they have arrived"
        return super().read()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "Figures", Later)
    monkeypatch.setattr(Later, "num_waits", 0)


@pytest.fixture
def events(tmp_path: Path) -> Iterator[EventLog]:
    log = EventLog(tmp_path, 0)
    yield log
    log.close()


def make(
    events: EventLog,
    counted: Counted,
    *,
    log_every: int = 3,
    memory: int | None = None,
    sampler: Sampler | None = None,
) -> Recorder:
    return Recorder(
        events,
        counted,
        counted,
        warmup_steps=1,
        log_every=log_every,
        peak_memory=lambda: memory,
        on_log=lambda event: None,
        sampler=sampler,
    )


def step(
    recorder: Recorder,
    counted: Counted,
    number: int,
    loss: float = 0.25,
    grad_norm: float = 1.5,
    noise: NoiseSample | None = None,
) -> None:
    counted.num_ended += 1
    recorder.step(
        step=number,
        epoch=number / 3,
        learning_rate=1e-3,
        loss=torch.tensor(loss, dtype=torch.float64),
        grad_norm=torch.tensor(grad_norm),
        micro_batches=[row_batch(range(2), 4), row_batch(range(2, 4), 4)],
        noise=noise,
    )


def test_ranks_reduce_once_for_many_steps(tmp_path: Path, events: EventLog):
    counted = Counted()
    recorder = make(events, counted)
    for number in range(1, 8):
        step(recorder, counted, number)
    assert (counted.num_reductions, counted.num_takes) == (2, 2)
    assert len(list(read_events(tmp_path))) == 6
    recorder.flush()
    recorder.flush()
    assert (counted.num_reductions, counted.num_takes) == (3, 3)
    written = list(read_events(tmp_path))
    assert [event["step"] for event in written] == list(range(1, 8))
    assert {event["loss"] for event in written} == {0.5}, "the sum over ranks"
    assert {event["grad_norm"] for event in written} == {1.5}, "the same on every rank"
    assert {event["data_rank"] for event in written} == {3}, "the strategy's layout says whose data it is"
    assert {event["memory_bytes"] for event in written} == {None}
    assert written[0]["phases_ms"] == {"get_batch": 1.0, "other": 2.0}
    assert (recorder.num_steps, recorder.cost_s > 0) == (7, True)


@pytest.mark.usefixtures("later")
def test_figures_of_a_gpu_are_written_one_interval_later(tmp_path: Path, events: EventLog):
    counted, written = Scaled(), []
    recorder = make(events, counted)
    noise = NoiseSample(torch.tensor(3.0, dtype=torch.float64), 0.5, 4.0)
    with watched_for_waits() as waits:
        for number in range(1, 6):  # the third step copies
            step(recorder, counted, number, loss=float(number), noise=noise)
    assert waits.found == []
    for number in range(6, 8):
        written.append((Later.num_waits, counted.num_reductions, counted.num_takes, len(list(read_events(tmp_path)))))
        step(recorder, counted, number, loss=float(number))
    written.append((Later.num_waits, counted.num_reductions, counted.num_takes, len(list(read_events(tmp_path)))))
    assert written == [(0, 0, 0, 0), (1, 1, 1, 3), (1, 1, 1, 3)]
    recorder.flush()
    assert (Later.num_waits, counted.num_takes) == (3, 3)
    figures = [
        (event["step"], event["loss"], event["grad_norm"], event["loss_scale"]) for event in read_events(tmp_path)
    ]
    assert figures == [(number, 2.0 * number, 1.5, 1024.0) for number in range(1, 8)]
    assert ["noise_scale" in event for event in read_events(tmp_path)] == [True] * 5 + [False] * 2


@pytest.mark.usefixtures("later")
def test_waiting_for_a_gpu_is_no_cost(monkeypatch: pytest.MonkeyPatch, events: EventLog):
    monkeypatch.setattr(Later, "wait_s", 0.5)
    counted = Counted()
    recorder = make(events, counted, log_every=1)
    for number in range(1, 4):
        step(recorder, counted, number)
    recorder.flush()
    assert Later.num_waits == 3
    assert 0 < recorder.cost_s < 0.5


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("is_flushed", [False, True])
def test_a_gpu_ends_the_run_one_interval_later_and_writes_nothing_after_it(
    tmp_path: Path, events: EventLog, is_flushed: bool
):
    counted = Counted()
    recorder = make(events, counted)
    for number in range(1, 6):
        step(recorder, counted, number, math.nan if number in (2, 4) else 0.25)
    with raises_code("train.not_finite", step=2):
        recorder.flush() if is_flushed else step(recorder, counted, 6)
    recorder.flush()  # as the loop does before it ends
    assert [event["step"] for event in read_events(tmp_path)] == [1, 2, 3]


def test_other_events_are_written_at_once(tmp_path: Path, events: EventLog):
    recorder = make(events, Counted(), memory=5)
    recorder.add("evaluation", step=3, scores={"f1": math.nan})
    (event,) = read_events(tmp_path)
    assert (event["event"], event["step"], event["scores"]) == ("evaluation", 3, {"f1": None})


def test_all_steps_are_written_before_one_that_is_not_finite_ends_the_run(tmp_path: Path, events: EventLog):
    counted = Counted()
    recorder = make(events, counted)
    step(recorder, counted, 1)
    step(recorder, counted, 2, math.inf)
    with raises_code("train.not_finite", "step 2", "inf", "5", "001"):
        step(recorder, counted, 3)
    assert [event["loss"] for event in read_events(tmp_path)] == [0.5, None, 0.5]


class Scaled(Counted):
    """A strategy that scales the loss, in its last step by `loss_scale`."""

    loss_scale: torch.Tensor | float | None = 1024.0


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_overflow_is_logged_once_and_by_one_rank(
    events: EventLog, rank: int, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    counted = Scaled()
    counted.layout = replace(counted.layout, rank=rank)
    recorder = make(events, counted, log_every=2)
    for number in range(1, 5):
        counted.loss_scale = torch.tensor(65536.0 / number)
        step(recorder, counted, number, grad_norm=math.inf if number > 1 else 1.0)
    assert len(caplog.records) == (rank == 0)
    for record in caplog.records:
        assert record.args == (2, 32768.0)


@pytest.mark.parametrize(("scale", "ends"), [(2.0, False), (1.0, True), (0.5, True)])
def test_an_overflow_with_a_scale_of_1_ends_the_run(events: EventLog, scale: float, ends: bool):
    counted = Scaled()
    counted.loss_scale = torch.tensor(scale)
    recorder = make(events, counted, log_every=1)
    with raises_code("train.fp16_overflow", key="precision") if ends else nullcontext():
        step(recorder, counted, 1, grad_norm=math.inf)


def test_a_step_without_loss_scale_has_no_field_for_it(tmp_path: Path, events: EventLog):
    counted = Scaled()
    recorder = make(events, counted, log_every=1)
    step(recorder, counted, 1)
    counted.loss_scale = None
    step(recorder, counted, 2)
    scaled, plain = read_events(tmp_path)
    assert (scaled["loss_scale"], scaled["skipped"]) == (1024.0, False)
    assert {"loss_scale", "skipped"}.isdisjoint(plain)


@pytest.mark.parametrize("loss", [0.25, math.inf, math.nan])
def test_a_skipped_step_is_marked_and_does_not_end_the_run(tmp_path: Path, events: EventLog, loss: float):
    counted = Scaled()
    recorder = make(events, counted, log_every=2)
    step(recorder, counted, 1, loss, grad_norm=math.inf)
    counted.loss_scale = 512.0
    step(recorder, counted, 2)
    skipped, taken = read_events(tmp_path)
    assert (skipped["loss_scale"], skipped["skipped"], skipped["grad_norm"]) == (1024.0, True, None)
    assert skipped["loss"] == (0.5 if math.isfinite(loss) else None)
    assert (taken["loss_scale"], taken["skipped"], taken["grad_norm"]) == (512.0, False, 1.5)


def test_a_loss_that_is_not_finite_ends_the_run_unless_its_step_is_skipped(events: EventLog):
    counted = Scaled()
    recorder = make(events, counted, log_every=1)
    with raises_code("train.not_finite", step=1, loss=math.inf, norm=1.5, learning_rate=1e-3):
        step(recorder, counted, 1, math.inf)


def test_facts_of_the_sampler_are_written_first_and_again_when_they_change(tmp_path: Path, events: EventLog):
    counted, reasons = Counted(), ["no counter of energy"]
    sampler = Sampler(None, name="CPU", interval_s=1.0)
    sampler.facts = lambda: {"reason": reasons[-1]}
    recorder = make(events, counted, log_every=1, sampler=sampler)
    for number in (1, 2):
        step(recorder, counted, number)
    reasons.append("no counter of power")
    step(recorder, counted, 3)
    written = [event["reason"] for event in read_events(tmp_path) if event["event"] == "sampler"]
    assert written == ["no counter of energy", "no counter of power"]
