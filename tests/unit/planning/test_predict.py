"""Predictions put together: what fits, with which micro-batch, and how long a run is."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny import tiny_config

from paratune.config.load import load_config
from paratune.models.task_model import PackedEntry
from paratune.planning import predict as predict_module
from paratune.planning.constants import Bounded
from paratune.planning.enumerate import PlanRequest, list_options
from paratune.planning.job import PlannedJob, lengths_of_rows
from paratune.planning.machine import Machine, find_machine
from paratune.planning.memory import Memory
from paratune.planning.predict import JobPredictor, Prediction
from paratune.planning.states import PredictionSetup
from paratune.planning.table import Plan, impossible_lines, plan_advice, recommended
from paratune.planning.time import TERMS, StepTime
from paratune.planning.work import StepCase, Transfer

CONFIG = Path(__file__).parents[3] / "configs" / "quickstart" / "ddp.yaml"
GIB, MIB = 2**30, 2**20
TRACED = SimpleNamespace(parameters=(), weight_bytes=4, num_parameters=2**28)
EQUAL = [("ddp", 1), ("zero3", 1)]
"""Options that equal `single`; a plan leaves them out unless the user names them."""


@pytest.fixture
def simple(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 GiB of states, shared where weights are, and 1 GiB a sample; 1 ms a step, 2 ms a sample, 4 ms between ranks.

    Where weights are shared it is 8 ms. Short runs are not kept on one device.
    """

    def peak(shape: Any, setup: PredictionSetup, on_cuda: bool) -> Memory:
        states = GIB // setup.num_ranks if setup.traits.shards else GIB
        return Memory({"weights": states, "activations": GIB * setup.micro_batch_size}, {})

    def time(case: StepCase) -> tuple[StepTime, None]:
        setup = case.setup
        terms = dict.fromkeys(TERMS, 0.0)
        terms["forward"] = 2e-3 * setup.micro_batch_size * setup.grad_accum_steps
        terms["optimizer"] = 1e-3
        terms["communication_exposed"] = (4e-3 if setup.num_ranks > 1 else 0) * (2 if setup.traits.shards else 1)
        total = sum(terms.values())
        return StepTime(terms, Bounded(total, total / 1.5, total * 1.5)), None

    monkeypatch.setattr(predict_module, "peak", peak)
    monkeypatch.setattr(predict_module, "step_time", time)
    monkeypatch.setattr("paratune.planning.table.SHORT_RUN_S", 0.0)


def predicted(
    *overrides: str,
    strategies: Sequence[str] = ("single", "ddp", "zero3"),
    num_ranks: Sequence[int] = (1, 2, 4),
    machine: Machine | None = None,
) -> list[Prediction]:
    loaded = load_config(CONFIG, ["train.epochs=3", *overrides])
    machine = machine or find_machine("a100-40gb")
    job = PlannedJob(loaded.config, tiny_config(), lengths_of_rows(np.array([20] * 100)), 100, PackedEntry(), None)
    options, _ = list_options(job, loaded, machine, PlanRequest(tuple(num_ranks), tuple(strategies), ("fp32",)))
    predictor = JobPredictor(job, machine)
    predictor.profile_of = lambda shape, setup: TRACED  # type: ignore[assignment,return-value,method-assign]
    chosen = [option for option in options if (option.name, option.setup.num_ranks) not in EQUAL]
    return [prediction for option in chosen for prediction in predictor.candidates(option)]


def find_prediction(predictions: Sequence[Prediction], name: str, num_ranks: int) -> Prediction:
    return next(
        prediction
        for prediction in predictions
        if (prediction.option.name, prediction.option.setup.num_ranks) == (name, num_ranks)
    )


@pytest.mark.usefixtures("simple")
def test_open_micro_batch_is_the_largest_that_fits() -> None:
    # 39.5 GiB hold the states and 39 samples; 64 samples are cut into 2 x 32, and a quarter of them fits whole.
    predictions = predicted("batch.global=64")
    single, ddp = find_prediction(predictions, "single", 1), find_prediction(predictions, "ddp", 4)
    assert (single.option.setup.micro_batch_size, single.option.setup.grad_accum_steps, single.fits) == (32, 2, True)
    assert single.room_bytes == 6.5 * GIB
    assert single.notes == ("micro-batches of 64 would take 65 GiB",)
    assert (ddp.option.setup.micro_batch_size, ddp.largest_micro_batch, ddp.notes) == (16, 16, ())


@pytest.mark.usefixtures("simple")
def test_a_recommended_micro_batch_fits_with_the_upper_bound_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # 39.5 GiB. 32 samples: 1 + 32 x 1.1 + 0.5 = 36.7 GiB, and up to 600 MiB more for the context and 12% of 35.2 GiB in
    # fragments, 41.5 GiB. 16 samples: 19.1 GiB, at most 21.8.
    def peak(shape: Any, setup: PredictionSetup, on_cuda: bool) -> Memory:
        activations = round(1.1 * GIB * setup.micro_batch_size)
        return Memory({"weights": GIB, "activations": activations, "context": 500 * MIB}, {})

    monkeypatch.setattr(predict_module, "peak", peak)
    single = find_prediction(predicted("batch.global=32"), "single", 1)
    assert (single.option.setup.micro_batch_size, single.fit) == (16, "yes")
    assert (single.largest_micro_batch, single.may_fit_micro_batch) == (16, 32)
    assert single.memory.bounds[1] <= single.memory.total + (single.room_bytes or 0)
    assert any("Micro-batches of 32 may fit" in line for line in plan_advice([single]))
    given = find_prediction(predicted("batch.global=32", "batch.micro_batch_size=32"), "single", 1)
    assert (given.fit, recommended([given])[0]) == ("tight", None)


@pytest.mark.usefixtures("simple")
@pytest.mark.parametrize("width", [80, 120])
def test_a_short_plan_has_15_lines_with_its_command(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    kinds = [find_machine(kind) for kind in ("a100-40gb", "h100-80gb", "v100-16gb", "t4")]
    many = [replace(kinds[0], name=f"device-{number}") for number in range(14)]
    of_many = [one for machine in many for one in predicted(num_ranks=(1,), machine=machine)]
    predictions = [one for machine in kinds for one in predicted(num_ranks=(1, 2, 4, 8), machine=machine)]
    heading = ("configuration.yaml: " + "a long name " * 8, "a machine")
    notes = tuple(f"note {number} " + "of several words " * 7 for number in range(9))
    start = "paratune train configuration.yaml " + "--set section.key=value " * 8
    machines = {"machines": []}
    for shown, about in (predictions, machines), (of_many, machines), (predictions[:7], {}), (predictions[:1], {}):
        best, lines = recommended(shown)[0], tuple(plan_advice(shown))
        Console(width=width).print(Plan(heading, tuple(shown), (), lines, notes, best, about, start))
        printed = capsys.readouterr().out.splitlines()
        assert 8 <= len(printed) <= 15
        assert max(map(len, printed)) <= width
        assert printed[0].startswith(("Run ", "a100-40gb: Run ", "device-0: Run "))
        assert sum(line.startswith("note 0") for line in printed) <= 1
        rows = [line for line in printed if line.split()[-1] in ("yes", "may", "no", "same") or "GiB  " in line]
        hint = next(line for line in printed if f"of {len(shown)} options" in line)
        assert int(hint.split()[0]) == len(rows)
        names = {one.machine.name for one in shown}
        if 1 < len(names) < len(many):
            assert {line.split()[0] for line in printed} >= names


@pytest.mark.usefixtures("simple")
def test_whole_share_may_fit_when_its_parts_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # Accumulated gradients take 30 GiB: with them 9 samples and more do not fit into 39 GiB; 32 at once take 33 GiB.
    def peak(shape: Any, setup: PredictionSetup, on_cuda: bool) -> Memory:
        gradients = 30 * GIB if setup.grad_accum_steps > 1 else 0
        return Memory({"gradients": GIB + gradients, "activations": GIB * setup.micro_batch_size}, {})

    monkeypatch.setattr(predict_module, "peak", peak)
    prediction = find_prediction(predicted("batch.global=32"), "single", 1)
    assert (prediction.option.setup.micro_batch_size, prediction.option.setup.grad_accum_steps, prediction.fits) == (
        32,
        1,
        True,
    )


@pytest.mark.usefixtures("simple")
@pytest.mark.parametrize("kind", ["zero2", "zero3", "hsdp:2"])
def test_gradients_are_reduced_in_each_micro_step_only_where_nothing_else_fits(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 4 GiB of whole gradients, a quarter of them as shards on 4 ranks; 1 GiB a sample.
    def peak(shape: Any, setup: PredictionSetup, on_cuda: bool) -> Memory:
        is_whole = setup.grad_accum_steps > 1 and not setup.traits.reduces_each_micro_step
        return Memory({"gradients": 4 * GIB if is_whole else GIB, "activations": GIB * setup.micro_batch_size}, {})

    def transfers(profile: Any, setup: PredictionSetup) -> list[Transfer]:
        num_calls = setup.grad_accum_steps if setup.traits.reduces_each_micro_step else 1
        return [Transfer("reduce_scatter", 4 * GIB, 4, num_calls)]

    monkeypatch.setattr(predict_module, "peak", peak)
    monkeypatch.setattr(predict_module, "step_transfers", transfers)

    def plan(gib: int, *overrides: str) -> list[tuple[str, int, int, bool | None]]:
        # With the upper bound of NCCL's buffers; 384 MiB of them are expected.
        machine = replace(find_machine("a100-40gb"), memory_bytes=gib * GIB + 1536 * MIB)
        found = predicted("batch.global=32", *overrides, strategies=(kind,), num_ranks=(4,), machine=machine)
        notes.extend(note for prediction in found for note in prediction.notes)
        return [
            (each.option.name, each.option.setup.micro_batch_size, each.option.setup.grad_accum_steps, each.fits)
            for each in found
        ]

    notes: list[str] = []
    reducing = f"{kind}:reduce_each_micro_step=true"
    assert plan(9) == [(kind, 8, 1, True)], "the whole share fits at once"
    assert plan(8) == [(kind, 4, 2, True)], "with whole gradients"
    assert plan(3) == [(kind, 1, 8, False), (reducing, 2, 4, True)]
    # Three quarters of 4 GiB with each of 4 micro-batches.
    assert "instead of 3 GiB" in notes[-1]
    assert "sends 12 GiB" in notes[-1]
    assert plan(0) == [(kind, 1, 8, False)], "neither fits"
    assert plan(3, "batch.micro_batch_size=4") == [(kind, 4, 2, False)], "a given size is kept"
    own = "strategy.kind=zero3", "strategy.reduce_each_micro_step=true"
    if kind == "zero3":
        assert plan(3, *own) == [(kind, 2, 4, True)], "the user has it already"


@pytest.mark.usefixtures("simple")
def test_given_micro_batch_is_kept() -> None:
    single = find_prediction(predicted("batch.global=64", "batch.micro_batch_size=64"), "single", 1)
    assert (single.option.setup.micro_batch_size, single.fits, single.room_bytes) == (64, False, -25.5 * GIB)
    assert single.largest_micro_batch == 32


@pytest.mark.usefixtures("simple")
def test_micro_batch_is_1_when_nothing_fits() -> None:
    small = replace(find_machine("a100-40gb"), memory_bytes=GIB)
    predictions = predicted(machine=small)
    assert {
        (prediction.option.setup.micro_batch_size, prediction.fits, prediction.largest_micro_batch)
        for prediction in predictions
    } == {(1, False, None)}
    assert recommended(predictions)[0] is None
    (line,) = plan_advice(predictions)
    assert "Nothing fits. zero3 on 4 devices, fp32, micro-batches of 1 comes nearest: it lacks 640 MiB" in line
    assert line.endswith("--strategies all.")
    assert next(plan_advice(predictions, all_tried=True)).endswith("more devices, or larger ones.")


@pytest.mark.usefixtures("simple")
def test_ranks_share_the_memory_of_a_cpu() -> None:
    cpu = Machine("a CPU", None, is_cuda=False, memory_bytes=40 * GIB, constants=None, num_cores=8)
    ddp = find_prediction(predicted(machine=cpu), "ddp", 4)
    # 8 samples would have 9 GiB and a process, of 10 GiB: the upper bound of the process does not fit.
    assert (ddp.largest_micro_batch, ddp.may_fit_micro_batch) == (4, 8)
    assert ddp.room_bytes == (10 - 1 - 4) * GIB - 550 * MIB
    # The process of a rank is expected to have 550 MiB, and may have 450 to 1,400.
    assert ddp.memory.bounds == (ddp.memory.total - 100 * MIB, ddp.memory.total + 850 * MIB)


@pytest.mark.usefixtures("simple")
def test_times_of_step_epoch_and_run() -> None:
    ddp = find_prediction(predicted(machine=replace(find_machine("a100-40gb"), price_per_hour=2.0)), "ddp", 2)
    step = 16 * 2e-3 + 1e-3 + 4e-3  # 32 samples on two ranks
    figures = ddp.figures
    assert figures["step_s"] is not None
    low, high = figures["step_s"].low, figures["step_s"].high
    assert (low, high) == pytest.approx((step / 1.5, step * 1.5))
    values = {name: figure and figure.value for name, figure in figures.items()}
    run = step * 12  # three epochs of four steps
    expected = {"step_s": step, "epoch_s": step * 100 / 32, "run_s": run, "price": run * 2 / 3600 * 2.0}
    assert values == pytest.approx(expected)


@pytest.mark.usefixtures("simple")
def test_advice_recommends_and_warns() -> None:
    predictions = predicted()
    (line,) = plan_advice(predictions)
    # single 65 ms, ddp 37 and 21 ms: on four devices 84 ms of a device, below twice 65.
    assert recommended(predictions)[0] is find_prediction(predictions, "ddp", 4)
    assert line.startswith("Run ddp on 4 devices, fp32, micro-batches of 8: the fastest that fits; 9.38 GiB, ")


@pytest.mark.usefixtures("simple")
def test_simpler_option_is_not_called_the_fastest() -> None:
    predictions = predicted(strategies=("ddp", "zero3"), num_ranks=(4,))
    ddp, zero3 = predictions
    assert ddp.time is not None
    # 20 ms beside ddp's 21: less than a tenth.
    zero3 = replace(zero3, time=replace(ddp.time, total=Bounded(0.02, 0.02, 0.02)))
    assert recommended([ddp, zero3])[0] is ddp
    line = next(plan_advice([ddp, zero3]))
    assert line.startswith("Run ddp on 4 devices")
    assert "about as fast as zero3 on 4 devices, fp32, micro-batches of 8, the fastest that fits, and simpler; " in line


@pytest.mark.usefixtures("simple")
def test_more_devices_that_are_hardly_faster_are_not_advised() -> None:
    two, four = predicted(strategies=("ddp",), num_ranks=(2, 4))
    assert two.time is not None
    # 37 ms, and 5% less on twice as many devices: 1.9 times the device-hours, below the limit of 2.
    four = replace(four, time=replace(two.time, total=two.time.total.times(0.95)))
    assert recommended([two, four])[0] is two
    assert "the fastest that fits, and on fewer devices; " in next(plan_advice([two, four]))


@pytest.mark.usefixtures("simple")
def test_more_devices_are_not_advised_above_twice_the_cost() -> None:
    predictions = predicted("batch.global=8")  # 17 ms, 13 ms and 9 ms: 17, 26 and 36 ms of a device
    assert recommended(predictions)[0] is find_prediction(predictions, "ddp", 2)
    (line,) = plan_advice(predictions)
    assert "without taking more than 2 times the device-hours of the cheapest" in line


def test_without_a_time_the_simplest_on_the_fewest_devices_is_advised() -> None:
    cpu = Machine("a CPU", None, is_cuda=False, memory_bytes=40 * GIB, constants=None, num_cores=8)
    loaded = load_config(CONFIG)
    job = PlannedJob(loaded.config, tiny_config(), lengths_of_rows(np.array([20] * 100)), 100, None, "it was not asked")
    options, _ = list_options(job, loaded, cpu, PlanRequest((1, 2), ("zero1", "ddp", "single"), ("fp32",)))
    predictions = [JobPredictor(job, cpu).predict(option) for option in options]
    assert {prediction.time for prediction in predictions} == {None}
    assert "--measured RUN" in str(predictions[0].why_no_time)
    assert recommended(predictions)[0] is find_prediction(predictions, "single", 1)
    assert "single on 1 device" in next(plan_advice(predictions))
    embeddings, layer = (127 + 64 + 2 + 2) * 32, 4 * (32 * 32 + 32) + (32 * 64 + 64) + (64 * 32 + 32) + 4 * 32
    assert find_prediction(predictions, "single", 1).memory.terms["weights"] == 4 * (
        embeddings + 2 * layer + (32 * 32 + 32) + (2 * 32 + 2)
    )


@pytest.mark.usefixtures("simple")
def test_a_plan_is_plain_data_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    predictions = predicted()
    plan = Plan(
        ("a [bold]heading",),
        tuple(predictions),
        (),
        ("an advice",),
        recommended=recommended(predictions)[0],
        about={"model": "x"},
    )
    data = plan.as_dict()
    assert data["options"][data["recommended"]]["strategy"] == "ddp"
    assert data["options"][0]["memory"]["terms"] == {"weights": GIB, "activations": 32 * GIB}
    assert data["options"][0]["step_s"] == pytest.approx([0.065, 0.065 / 1.5, 0.065 * 1.5])
    for width in (80, 160):
        Console(width=width).print(replace(plan, shows_all=True))
        text = capsys.readouterr().out
        assert "a [bold]heading" in text
        assert max(map(len, text.splitlines())) <= width
        assert text.count("strategy") == 2
        # ddp on 4 devices is advised: 1 GiB of states, 8 samples, and NCCL.
        words = " ".join(text.split())
        assert (
            "The peak memory of ddp on 4 devices, fp32, micro-batches of 8 is activations 8 GiB, weights 1 GiB" in words
        )


def test_impossible_options_are_grouped_by_reason() -> None:
    from paratune.planning.enumerate import Impossible

    why = [Impossible(name, "fp32", number, "why") for name, number in (("a", 2), ("b", 2), ("d", 4), ("d", 1))]
    impossible = [*why, Impossible("c", "fp32", None, "not")]
    assert impossible_lines(impossible) == ["a, b on 2 devices; d on 1 or 4 devices: why", "c: not"]


@pytest.mark.usefixtures("simple")
def test_option_is_tight_if_only_the_upper_bound_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    # 1,100 MiB in place of 500 for the context; 12% of 19 GiB in place of 1 GiB of fragmentation.
    def peak(shape: Any, setup: PredictionSetup, on_cuda: bool) -> Memory:
        terms = {"weights": 10 * GIB, "activations": 19 * GIB, "context": 500 * MIB, "fragmentation": GIB}
        return Memory(terms, {})

    monkeypatch.setattr(predict_module, "peak", peak)
    base = find_machine("a100-40gb")
    total = 30 * GIB + 500 * MIB
    for usable, fit in ((total - 1, "no"), (total, "tight"), (total + 1.9 * GIB, "yes"), (None, "unknown")):
        machine = replace(base, memory_bytes=None if usable is None else int(usable))
        (prediction,) = predicted(strategies=("single",), num_ranks=(1,), machine=machine)
        assert prediction.fit == fit
    high = total + 600 * MIB + round(0.12 * 19 * GIB) - GIB
    assert prediction.memory.bounds == (total - 200 * MIB - GIB, high)


@pytest.mark.usefixtures("simple")
def test_tight_option_is_never_recommended() -> None:
    predictions = predicted(num_ranks=(1, 2))
    single, ddp = find_prediction(predictions, "single", 1), find_prediction(predictions, "ddp", 2)
    tight = replace(ddp, memory=Memory({"context": 500 * MIB}, {}), room_bytes=MIB)
    assert tight.fit == "tight"
    assert recommended([single, ddp])[0] is ddp
    assert recommended([single, tight])[0] is single
    assert recommended([tight])[0] is None
    (line,) = plan_advice([tight])
    assert line.startswith("ddp on 2 devices, fp32, micro-batches of 16 may fit: ")


@pytest.mark.usefixtures("simple")
def test_a_run_of_a_minute_stays_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paratune.planning.table.SHORT_RUN_S", 120.0)
    predictions = predicted()
    single, ddp = find_prediction(predictions, "single", 1), find_prediction(predictions, "ddp", 4)
    assert single.time is not None
    assert recommended([single, ddp])[0] is single  # 12 steps of 65 ms
    long = [replace(each, num_steps=100_000) for each in (single, ddp)]
    assert recommended(long)[0] is long[1]
