"""Predictions put together: what fits, with which micro-batch, and how long a run is."""

import math
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
from paratune.plan import predict as predict_module
from paratune.plan.advice import plan_advice, recommended, span_text
from paratune.plan.enumerate import Asked, enumerate_options
from paratune.plan.job import PlannedJob
from paratune.plan.lengths import lengths_of_rows
from paratune.plan.machine import Machine, machine_of
from paratune.plan.memory import Memory
from paratune.plan.predict import FigureRange, JobPredictor, Prediction, start_command
from paratune.plan.profiles import Profiles
from paratune.plan.setup import PredictionSetup
from paratune.plan.table import Plan, _in_lines, impossible_lines
from paratune.plan.time import BOUND_OF, TERMS, StepTime

CONFIG = Path(__file__).parents[3] / "configs" / "quickstart" / "ddp.yaml"
GIB = 2**30


@pytest.fixture
def simple(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 GiB of states, shared where weights are, and 1 GiB a sample; 1 ms a step, 2 ms a sample, 4 ms between ranks.

    Where weights are shared it is 8 ms, of which the engine's own Python takes 5.
    """

    def peak(shape: Any, setup: PredictionSetup, on_cuda: bool) -> Memory:
        states = GIB // setup.num_ranks if setup.traits.shards else GIB
        return Memory({"weights": states, "activations": GIB * setup.micro_batch_size}, {}, "backward")

    def time(shape: Any, setup: PredictionSetup, machine: Machine, figures: Any) -> StepTime:
        terms = dict.fromkeys(TERMS, 0.0)
        terms["forward"] = 2e-3 * setup.micro_batch_size * setup.grad_accum_steps
        terms["optimizer"] = 1e-3
        terms["communication_exposed"] = (4e-3 if setup.num_ranks > 1 else 0) * (2 if setup.traits.shards else 1)
        total = math.fsum(terms.values())
        python = 5e-3 if setup.num_ranks > 1 and setup.traits.shards else 0.0
        parts = dict.fromkeys(BOUND_OF, 0.0) | {"compute": terms["forward"], "update": 1e-3, "python": python}
        parts["communication"] = terms["communication_exposed"] - python
        return StepTime(terms, total, total / 1.5, total * 1.5, "compute", (), parts)

    monkeypatch.setattr(predict_module, "peak", peak)
    monkeypatch.setattr(predict_module, "step_time", time)


def predicted(
    *overrides: str,
    strategies: Sequence[str] = ("single", "ddp", "zero3"),
    num_ranks: Sequence[int] = (1, 2, 4),
    machine: Machine | None = None,
) -> list[Prediction]:
    loaded = load_config(CONFIG, ["train.epochs=3", *overrides])
    machine = machine or machine_of("a100-40gb")
    job = PlannedJob(loaded.config, tiny_config(), lengths_of_rows(np.array([20] * 100)), 100, PackedEntry(), None)
    asked = Asked(tuple(num_ranks), tuple(strategies), ("fp32",), are_named=False)
    options, _ = enumerate_options(job, loaded, machine, asked, lambda kind: SimpleNamespace())  # type: ignore[arg-type,return-value]
    traced = SimpleNamespace(why_approximate=None)
    predictor = JobPredictor(job, machine, lambda shape, setup: traced)  # type: ignore[arg-type,return-value]
    return [predictor.predict(option) for option in options]


def one(found: Sequence[Prediction], name: str, num_ranks: int) -> Prediction:
    return next(each for each in found if (each.option.name, each.setup.num_ranks) == (name, num_ranks))


@pytest.mark.usefixtures("simple")
def test_what_is_open_takes_the_largest_micro_batch_that_fits() -> None:
    # 40 GiB hold the states and 39 samples; 64 samples are cut into 2 x 32, and a quarter of them fits whole.
    found = predicted("batch.global=64")
    single, ddp = one(found, "single", 1), one(found, "ddp", 4)
    assert (single.setup.micro_batch_size, single.setup.grad_accum_steps, single.fits) == (32, 2, True)
    assert single.room_bytes == 7 * GIB
    assert single.notes == ("micro-batches of 64 would take 65 GiB",)
    assert (ddp.setup.micro_batch_size, ddp.largest_micro_batch, ddp.notes) == (16, 16, ())


@pytest.mark.usefixtures("simple")
def test_all_of_the_share_may_fit_where_parts_of_it_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # Accumulated gradients take 30 GiB: with them 9 samples and more do not fit into 39 GiB; 32 at once take 33 GiB.
    def peak(shape: Any, setup: PredictionSetup, on_cuda: bool) -> Memory:
        gradients = 30 * GIB if setup.grad_accum_steps > 1 else 0
        return Memory({"gradients": GIB + gradients, "activations": GIB * setup.micro_batch_size}, {}, "backward")

    monkeypatch.setattr(predict_module, "peak", peak)
    found = one(predicted("batch.global=32"), "single", 1)
    assert (found.setup.micro_batch_size, found.setup.grad_accum_steps, found.fits) == (32, 1, True)


@pytest.mark.usefixtures("simple")
def test_a_size_that_was_asked_for_stays() -> None:
    single = one(predicted("batch.global=64", "batch.micro_batch_size=64"), "single", 1)
    assert (single.setup.micro_batch_size, single.fits, single.room_bytes) == (64, False, -25 * GIB)
    assert single.largest_micro_batch == 32


@pytest.mark.usefixtures("simple")
def test_where_nothing_fits_one_sample_is_shown() -> None:
    small = replace(machine_of("a100-40gb"), memory_bytes=GIB)
    found = predicted(machine=small)
    assert {(each.setup.micro_batch_size, each.fits, each.largest_micro_batch) for each in found} == {(1, False, None)}
    assert recommended(found) is None
    assert "Nothing fits. zero3 on 4 devices comes nearest: it lacks 256 MiB" in plan_advice(found)[0]
    assert plan_advice(found)[0].endswith("--strategies all.")
    assert plan_advice(found, all_tried=True)[0].endswith("more devices, or larger ones.")


@pytest.mark.usefixtures("simple")
def test_ranks_share_the_memory_of_a_cpu() -> None:
    cpu = Machine("a CPU", None, is_cuda=False, memory_bytes=40 * GIB, constants=None, num_cores=8)
    assert one(predicted(machine=cpu), "ddp", 4).room_bytes == (10 - 1 - 8) * GIB


@pytest.mark.usefixtures("simple")
def test_times_of_step_epoch_and_run() -> None:
    ddp = one(predicted(machine=replace(machine_of("a100-40gb"), price_per_hour=2.0)), "ddp", 2)
    step = 16 * 2e-3 + 1e-3 + 4e-3  # 32 samples on two ranks
    assert ddp.step is not None
    assert ddp.step.as_list() == pytest.approx([step, step / 1.5, step * 1.5])
    assert ddp.epoch is not None
    assert ddp.epoch.value == pytest.approx(step * 100 / 32)
    assert ddp.run is not None
    assert ddp.run.value == pytest.approx(step * 12)  # three epochs of four steps
    assert ddp.price is not None
    assert ddp.price.value == pytest.approx(step * 12 * 2 / 3600 * 2.0)
    # An A100's sheet says 400 W; steps take half as long again at most.
    assert ddp.energy_j == pytest.approx(1.5 * step * 12 * 2 * 400)


@pytest.mark.usefixtures("simple")
def test_the_advice_says_what_to_run_and_what_not() -> None:
    found = predicted()
    lines = "\n".join(plan_advice(found))
    # single 65 ms, ddp 37 and 21 ms: on four devices 84 ms of a device, below twice 65.
    assert recommended(found) is one(found, "ddp", 4)
    assert lines.startswith("Run ddp on 4 devices, micro-batches of 8: the fastest that fits.")
    assert "Smallest that fits: single on 1 device, 33 GiB a device and 7 GiB to spare." in lines
    assert "Cheapest: single on 1 device, 0.000217 device-hours for the run." in lines  # 0.065 s * 12 / 3600
    assert "Largest micro-batch of ddp on 4 devices: 8, all of a rank's share" in lines
    # 25 ms beside 21 ms
    assert (
        "ddp on 4 devices takes 9 GiB and has 31 GiB to spare, so memory is no reason to shard or offload: "
        "zero3 saves 768 MiB (19.0% longer)." in lines
    )
    assert "ddp on 2 devices takes" not in lines


@pytest.mark.usefixtures("simple")
def test_a_simpler_way_is_not_called_the_fastest_that_another_is() -> None:
    found = predicted(strategies=("ddp", "zero3"), num_ranks=(4,))
    ddp, zero3 = found
    assert ddp.time is not None
    # 20 ms beside ddp's 21: less than a tenth.
    zero3 = replace(zero3, time=replace(ddp.time, total_s=0.02))
    assert recommended([ddp, zero3]) is ddp
    lines = plan_advice([ddp, zero3])
    assert "Run ddp on 4 devices, micro-batches of 8: about as fast as zero3 on 4 devices, the fastest" in lines[0]
    assert any(line.startswith("Fastest: zero3 on 4 devices") for line in lines)


@pytest.mark.usefixtures("simple")
def test_more_devices_that_are_hardly_faster_are_not_advised() -> None:
    two, four = predicted(strategies=("ddp",), num_ranks=(2, 4))
    assert two.time is not None
    # 37 ms, and 5% less on twice as many devices: 1.9 times the device-hours, below the limit of 2.
    four = replace(four, time=replace(two.time, total_s=0.95 * two.time.total_s))
    assert recommended([two, four]) is two
    text = plan_advice([two, four])[0]
    assert "about as fast as ddp on 4 devices, the fastest that fits, and on fewer devices." in text


@pytest.mark.usefixtures("simple")
def test_ways_of_one_strategy_are_told_apart() -> None:
    loaded, machine = load_config(CONFIG), machine_of("a100-40gb")
    job = PlannedJob(loaded.config, tiny_config(), lengths_of_rows(np.array([20] * 100)), 100, PackedEntry(), None)
    asked = Asked((2,), ("ddp",), ("fp32", "bf16"), (4, 8))
    options, _ = enumerate_options(job, loaded, machine, asked, lambda kind: SimpleNamespace())  # type: ignore[arg-type,return-value]
    predictor = JobPredictor(job, machine, lambda shape, setup: SimpleNamespace(why_approximate=None))  # type: ignore[arg-type,return-value]
    found = [predictor.predict(option) for option in options]
    labels = [each.label for each in found]
    assert found[0].in_words == labels[0]
    assert labels[0] == "ddp on 2 devices (fp32, micro-batches of 4)"
    assert len(set(labels)) == 4


@pytest.mark.usefixtures("simple")
def test_more_devices_are_not_advised_at_any_price() -> None:
    found = predicted("batch.global=8")  # 17 ms, 13 ms and 9 ms: 17, 26 and 36 ms of a device
    assert recommended(found) is one(found, "ddp", 2)
    lines = "\n".join(plan_advice(found))
    assert "without taking more than 2 times the device-hours of the cheapest" in lines
    assert (
        "The global batch stays 8, so the curve flattens: from 1 device to 4 it is 1.9 times as fast, not 4 times. "
        # Of 9 ms on four devices, a quarter of one device's 16 + 1 ms would have been left: 4 and 0.25.
        "A device's part of a step shrinks from 8 to 2 samples; what shrinks less: exchanging data (4 ms) and updating "
        "the weights (1 ms), of 9 ms a step." in lines
    )


@pytest.mark.usefixtures("simple")
def test_python_of_the_engine_is_not_called_exchanging_data() -> None:
    found = predicted("batch.global=8", strategies=("zero3",), num_ranks=(2, 4))
    # 8 + 1 + 8 ms on two devices, 4 + 1 + 8 on four. Not halved: Python 5 - 2.5, exchange 3 - 1.5, update 1 - 0.5.
    assert (
        "from 2 devices to 4 it is 1.3 times as fast, not 2 times. A device's part of a step shrinks from 4 to 2 "
        "samples; what shrinks less: the engine's own Python (5 ms), exchanging data (3 ms) and updating the weights "
        "(1 ms), of 13 ms a step." in "\n".join(plan_advice(found))
    )


@pytest.mark.usefixtures("simple")
@pytest.mark.parametrize(("part", "words"), [("launch", "launching operations"), ("python", "the engine's own Python")])
def test_a_step_that_the_host_binds_says_by_what(part: str, words: str) -> None:
    (two,) = predicted(strategies=("zero3",), num_ranks=(2,))
    assert two.time is not None
    busy = replace(two, time=replace(two.time, bound="host", parts=dict(two.time.parts) | {part: 1.0}))
    assert f"bound by the host: most of it is {words}." in "\n".join(plan_advice([busy]))


def test_without_a_time_the_simplest_on_the_fewest_devices_is_advised() -> None:
    cpu = Machine("a CPU", None, is_cuda=False, memory_bytes=40 * GIB, constants=None, num_cores=8)
    loaded = load_config(CONFIG)
    job = PlannedJob(loaded.config, tiny_config(), lengths_of_rows(np.array([20] * 100)), 100, None, "it was not asked")
    asked = Asked((1, 2), ("zero1", "ddp", "single"), ("fp32",), are_named=False)
    options, _ = enumerate_options(job, loaded, cpu, asked, lambda kind: SimpleNamespace())  # type: ignore[arg-type,return-value]
    predictor = JobPredictor(job, cpu, Profiles(job, is_cuda=False).of)
    found = [predictor.predict(option) for option in options]
    assert [each.time for each in found] == [None] * 3
    assert "paratune plan --calibrate" in str(found[0].why_no_time)
    assert recommended(found) is one(found, "single", 1)
    assert "of no way the time is known" in plan_advice(found)[0]
    embeddings, layer = (127 + 64 + 2 + 2) * 32, 4 * (32 * 32 + 32) + (32 * 64 + 64) + (64 * 32 + 32) + 4 * 32
    assert found[0].memory.terms["weights"] == 4 * (embeddings + 2 * layer + (32 * 32 + 32) + (2 * 32 + 2))


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (FigureRange(0.012, 0.009, 0.0175), "12 ms (9 to 17.5)"),
        (FigureRange(0.8, 0.5, 1.25), "800 ms (500 ms to 1.25 s)"),
        (FigureRange(65, 40, 130), "1 min 05 s (40.0 s to 2 min 10 s)"),
        (None, "n/a"),
    ],
)
def test_intervals_are_written_with_one_unit_where_they_have_one(span: FigureRange | None, text: str) -> None:
    assert span_text(span) == text


@pytest.mark.usefixtures("simple")
def test_a_plan_is_plain_data_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    found = predicted()
    plan = Plan(
        ("a [bold]heading",), tuple(found), (), ("an advice",), recommended=recommended(found), about={"model": "x"}
    )
    data = plan.as_dict()
    assert data["options"][data["recommended"]]["strategy"] == "ddp"
    assert data["options"][0]["memory"]["terms"] == {"weights": GIB, "activations": 32 * GIB}
    assert data["options"][0]["step_s"] == pytest.approx([0.065, 0.065 / 1.5, 0.065 * 1.5])
    for width in (80, 160):
        Console(width=width).print(plan)
        text = capsys.readouterr().out
        assert "a [bold]heading" in text
        assert max(map(len, text.splitlines())) <= width
        assert text.count("strategy") == {80: 4, 160: 2}[width]
        # ddp on 4 devices is advised: 1 GiB of states, and 8 samples.
        assert "At its fullest ddp on 4 devices holds activations 8 GiB, weights 1 GiB." in text
        assert all(name in text for name in ("states", "activations"))
        assert "CUDA" not in text


def test_a_long_strategy_is_written_below_itself() -> None:
    name = "deepspeed:3:offload_optimizer=true:offload_parameters=true"
    assert _in_lines(name, 26).splitlines() == [
        "deepspeed:3",
        "  :offload_optimizer=true",
        "  :offload_parameters=true",
    ]
    assert _in_lines("zero2:cpu_offload=true", 26) == "zero2:cpu_offload=true"


def test_what_is_impossible_is_told_by_its_reason() -> None:
    from paratune.plan.enumerate import Impossible

    why = [Impossible(name, "fp32", number, "why") for name, number in (("a", 2), ("b", 2), ("d", 4), ("d", 1))]
    found = [*why, Impossible("c", "fp32", None, "not")]
    assert impossible_lines(found) == ["a, b on 2 devices; d on 1 or 4 devices: why", "c: not"]


@pytest.mark.usefixtures("simple")
def test_how_it_is_started() -> None:
    found = predicted()
    assert start_command(Path("x.yaml"), one(found, "single", 1)) == "paratune train x.yaml"
    assert start_command(Path("x.yaml"), one(found, "ddp", 4)) == "paratune train x.yaml --nproc 4"
