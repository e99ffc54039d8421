"""The loop: what happens in which order, at which steps, and how it ends."""

import json
import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from exact import row_batch, row_steps
from looping import Bench, NotedKeeper, single
from raised import raises_code

from paratune.batch import Batch
from paratune.engine import loop
from paratune.engine.evaluate import Interrupted
from paratune.engine.phases import HostPhaseClock
from paratune.precision import POLICIES
from paratune.strategies.single import SingleStrategy


class NotedStrategy:
    """A strategy that notes its calls; all else is that of the one it holds."""

    def __init__(self, calls: list[Any]) -> None:
        self._inner, self._calls = single(), calls
        self.layout = self._inner.layout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Any) -> torch.Tensor:
        self._calls.append(("forward_backward", len(micro_batches)))
        return self._inner.forward_backward(micro_batches, phases)

    def optimizer_step(self, max_grad_norm: float | None) -> torch.Tensor:
        self._calls.append(("optimizer_step", max_grad_norm))
        return self._inner.optimizer_step(max_grad_norm)


class NotedClock(HostPhaseClock):
    def __init__(self, calls: list[Any]) -> None:
        super().__init__()
        self._calls = calls

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self._calls.append(phase)
        with super().__call__(phase):
            yield

    def end_step(self) -> None:
        self._calls.append("end_step")
        super().end_step()


def test_a_step_goes_through_its_phases_in_order_and_is_logged_after_its_end(tmp_path: Path):
    calls: list[Any] = []
    bench = Bench(
        tmp_path,
        num_steps=2,
        calls=calls,
        strategy=NotedStrategy(calls),
        clock=NotedClock(calls),
        batches=[[row_batch(range(2), 4), row_batch(range(2, 4), 4)]] * 2,
        evaluation_due=lambda step: step == 1,
        checkpoint_due=lambda step: step == 1,
        on_log=lambda event: calls.append(("log", event["step"])),
    )
    bench.run()
    two = ["forward", "backward", "forward", "backward"]
    step = ["get_batch", ("forward_backward", 2), *two, "optimizer", ("optimizer_step", 1.0), "end_step"]
    between = [("evaluate", 1), ("save", 1, "scheduled")]
    assert calls == [*step, ("log", 1), *between, *step, ("log", 2)]


def test_evaluations_and_checkpoints_come_at_their_steps_and_never_before_the_first(tmp_path: Path):
    bench = Bench(
        tmp_path, num_steps=7, evaluation_due=lambda step: step % 2 == 0, checkpoint_due=lambda step: step % 3 == 0
    )
    bench.run()
    assert bench.calls == [
        ("evaluate", 2),
        ("save", 3, "scheduled"),
        ("evaluate", 4),
        ("evaluate", 6),
        ("save", 6, "scheduled"),
    ]


def test_the_log_has_the_values_of_each_step(tmp_path: Path):
    bench = Bench(tmp_path, num_steps=5, steps_per_epoch=2, log_every=2, warmup_steps=3)
    bench.run()
    steps = bench.steps()
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5]
    assert [step["epoch"] for step in steps] == [0.5, 1.0, 1.5, 2.0, 2.5]
    assert [step["warmup"] for step in steps] == [True, True, True, False, False]
    # Linear from 0.01 to 0 in five steps, before each update.
    assert [step["learning_rate"] for step in steps] == pytest.approx([0.01, 0.008, 0.006, 0.004, 0.002])
    batches = [batch for (batch,) in row_steps(5)]
    for name in ("num_samples", "num_tokens", "num_padded_tokens"):
        assert [step[name] for step in steps] == [getattr(batch, name) for batch in batches]
    assert all(step["memory_bytes"] == 1000 and math.isfinite(step["loss"]) for step in steps)


@pytest.mark.parametrize("log_every", [1, 3, 100])
def test_log_every_changes_no_number(tmp_path: Path, log_every: int):
    def figures(every: int) -> list[tuple[float, float]]:
        folder = tmp_path / str(every)
        folder.mkdir(exist_ok=True)
        bench = Bench(folder, num_steps=5, log_every=every)
        bench.run()
        return [(step["loss"], step["grad_norm"]) for step in bench.steps()]

    assert figures(log_every) == figures(2)


def test_the_loss_of_a_step_is_the_sum_of_its_micro_batches(tmp_path: Path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder, batches in (
        (whole, [[row_batch(range(6), 6)]]),
        (cut, [[row_batch(range(4), 6), row_batch(range(4, 6), 6), row_batch([], 6, filler=True)]]),
    ):
        folder.mkdir()
        Bench(folder, num_steps=1, batches=batches).run()
    (whole_step,), (cut_step,) = Bench(whole).steps(), Bench(cut).steps()
    assert cut_step["loss"] == pytest.approx(whole_step["loss"], rel=1e-6)
    assert cut_step["grad_norm"] == pytest.approx(whole_step["grad_norm"], rel=1e-5)
    assert (cut_step["num_samples"], cut_step["num_tokens"]) == (whole_step["num_samples"], whole_step["num_tokens"])


def test_early_stopping_ends_the_loop_after_the_checkpoint_that_is_due(tmp_path: Path):
    def notice(progress: loop.Progress) -> None:
        progress.is_stopped_early = progress.step >= 4

    calls: list[Any] = []
    bench = Bench(
        tmp_path,
        num_steps=9,
        keeper=NotedKeeper(calls, on_evaluate=notice),
        evaluation_due=lambda step: step % 2 == 0,
        checkpoint_due=lambda step: step % 4 == 0,
    )
    bench.run()
    assert len(bench.steps()) == 4
    assert calls == [("evaluate", 2), ("evaluate", 4), ("save", 4, "scheduled")]


def stops_at(bench: Bench, step: int, number: signal.Signals = signal.SIGTERM) -> Bench:
    """Let the signal come while that step is computed."""

    def batches() -> Iterator[Sequence[Batch]]:
        for place, batches_of_step in enumerate(row_steps(bench.num_steps), start=1):
            if place == step:
                bench.stop._note(number, None)
            yield batches_of_step

    bench.batches = batches()
    return bench


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_ends_the_loop_after_the_step_with_a_checkpoint(tmp_path: Path, number: signal.Signals):
    bench = stops_at(Bench(tmp_path, log_every=100, evaluation_due=lambda step: step == 3), 3, number)
    with raises_code("stopped.signal", number.name, "step 3", "--resume"):
        bench.run()
    # The evaluation of step 3 is left to the run that goes on.
    assert bench.calls == [("save", 3, "signal")]
    events = bench.logged()
    assert [event["event"] for event in events] == ["step", "step", "step", "stop"]
    assert (events[-1]["step"], events[-1]["signal"]) == (3, number.name)


def test_a_signal_in_the_last_step_saves_too(tmp_path: Path):
    bench = stops_at(Bench(tmp_path, num_steps=3), 3)
    with raises_code("stopped.signal", "step 3", "--resume"):
        bench.run()
    assert bench.calls == [("save", 3, "signal")]


def test_a_signal_before_the_first_step_stops_after_it(tmp_path: Path):
    bench = Bench(tmp_path)
    bench.stop._note(signal.SIGTERM, None)
    with raises_code("stopped.signal", "step 1"):
        bench.run()
    assert bench.calls == [("save", 1, "signal")]


def interrupt(progress: loop.Progress) -> None:
    raise Interrupted


def test_a_signal_in_an_evaluation_saves_and_the_resumed_run_evaluates_first(tmp_path: Path):
    bench = Bench(
        tmp_path,
        evaluation_due=lambda step: step % 2 == 0,
        checkpoint_due=lambda step: step % 2 == 0,
        keeper=NotedKeeper([], on_evaluate=interrupt),
    )
    progress = loop.Progress()
    with raises_code("stopped.signal", "step 2"):
        bench.run(progress)
    assert bench.keeper.calls == [("evaluate", 2), ("save", 2, "signal")]
    assert (progress.evaluated_step, progress.saved_step) == (0, 2)
    calls: list[Any] = []
    again = replace(bench, keeper=None, calls=calls, batches=None)
    again.run(loop.Progress(**progress.as_dict()))
    # What was saved is not saved again.
    assert calls == [
        ("evaluate", 2),
        ("evaluate", 4),
        ("save", 4, "scheduled"),
        ("evaluate", 6),
        ("save", 6, "scheduled"),
    ]


def test_a_signal_in_the_evaluation_of_a_resumed_run_keeps_the_checkpoint(tmp_path: Path):
    bench = Bench(tmp_path, evaluation_due=lambda step: step % 2 == 0, keeper=NotedKeeper([], on_evaluate=interrupt))
    with raises_code("stopped.signal", "step 2"):
        bench.run(loop.Progress(step=2, saved_step=2))
    assert bench.keeper.calls == [("evaluate", 2)]


def test_a_resumed_run_with_all_steps_done_only_evaluates(tmp_path: Path):
    bench = Bench(tmp_path, num_steps=4, evaluation_due=lambda step: step == 4)
    assert bench.run(loop.Progress(step=4, saved_step=4)) == []
    assert bench.calls == [("evaluate", 4)]


def spoilt(num_steps: int, step: int, value: float) -> list[list[Batch]]:
    """Return the batches of `row_steps`, with an infinite or undefined loss in one of them."""
    steps = row_steps(num_steps)
    (batch,) = steps[step - 1]
    steps[step - 1] = [replace(batch, row_weight=torch.full_like(batch.row_weight, value))]
    return steps


@pytest.mark.parametrize("log_every", [1, 4, 100])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_names_its_step_and_nothing_is_saved_after_it(
    tmp_path: Path, log_every: int, value: float
):
    bench = Bench(
        tmp_path,
        num_steps=9,
        log_every=log_every,
        batches=spoilt(9, 5, value),
        checkpoint_due=lambda step: step % 3 == 0,
    )
    with raises_code("train.not_finite", "nan", step=5) as caught:
        bench.run()
    assert "learning_rate" in str(caught.value)
    assert bench.calls == [("save", 3, "scheduled")]
    steps = bench.steps()
    assert [step["loss"] is None for step in steps[:5]] == [False] * 4 + [True]


def test_a_loss_that_is_not_finite_is_not_saved_by_a_signal_either(tmp_path: Path):
    bench = stops_at(Bench(tmp_path, log_every=100), 3)
    good = bench.batches
    bench.batches = (
        [replace(batch, row_weight=torch.full_like(batch.row_weight, math.nan)) for batch in batches]
        for batches in good or ()
    )
    with raises_code("train.not_finite", step=1):
        bench.run()
    assert bench.calls == []


@pytest.mark.parametrize(("log_every", "num_logged"), [(1, 22), (4, 24), (100, 40)])
def test_an_overflow_at_the_smallest_loss_scale_ends_the_run_with_a_complete_log(
    tmp_path: Path, log_every: int, num_logged: int
):
    scaled = SingleStrategy(
        device=torch.device("cpu"), precision=replace(POLICIES["fp32"], scales_loss=True), rank=0, world_size=1
    )
    bench = Bench(tmp_path, num_steps=40, log_every=log_every, strategy=scaled)
    # From the sixth step on all losses are infinite: 17 steps, with scales of 2**16 to 2**0, end the run when the log
    # is written next. Until then nothing is trained.
    good = row_steps(40)
    bench.batches = [*good[:5], *([replace(batch, row_weight=batch.row_weight * math.inf)] for (batch,) in good[5:])]
    with raises_code("train.fp16_overflow", "1"):
        bench.run()
    steps = bench.steps()
    assert [step["skipped"] for step in steps] == [False] * 5 + [True] * (num_logged - 5)
    scales = [2.0 ** (16 - step) for step in range(num_logged - 5)]
    assert [step["loss_scale"] for step in steps] == [65536] * 5 + scales
    rates = [0.01 * (1 - step / 40) for step in range(num_logged)]
    assert [step["learning_rate"] for step in steps] == pytest.approx(rates)
    assert bench.calls == []


def test_progress_survives_json():
    progress = loop.Progress(step=5, best={"step": 3, "metric": "f1", "value": 0.5}, num_without_gain=2, saved_step=4)
    again = loop.Progress(**json.loads(json.dumps(progress.as_dict())))
    assert replace(again, seconds=progress.seconds) == progress


def test_the_times_of_a_run_are_sums_over_its_sessions():
    first = loop.Progress(seconds={"startup": 2.0, "tokenize": 3.0})
    first.began -= 60
    second = loop.Progress(**first.as_dict())
    second.seconds["startup"] += 2.5
    second.began -= 30
    third = loop.Progress(**second.as_dict())
    assert third.seconds["startup"] == 4.5
    assert third.seconds["tokenize"] == 3.0
    assert third.total_s() == pytest.approx(90, abs=20)
    assert first.total_s() == pytest.approx(60, abs=20), "saving does not change it"
