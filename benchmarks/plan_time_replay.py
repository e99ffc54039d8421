"""Plan the recorded steps of plan_time_cpu_202611.md again, each from the measured step of some of them; a minute.

OMP_NUM_THREADS=1 python benchmarks/plan_time_replay.py
"""

import math
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import BertConfig

from paratune.config.strategy_sections import (
    DDPOptions,
    PipelineOptions,
    SingleOptions,
    Zero1Options,
    Zero2Options,
    Zero3Options,
)
from paratune.config.task_sections import ClassificationTask
from paratune.config.traits import strategy_traits
from paratune.models.packed import enable_packed_batches
from paratune.planning.build import build_model
from paratune.planning.constants import assumed_cpu_constants
from paratune.planning.machine import Machine
from paratune.planning.profile import Shape, profile
from paratune.planning.states import PredictionSetup
from paratune.planning.time import MeasuredStep, refit, step_time
from paratune.planning.work import StepCase
from paratune.precision import POLICIES

RECORD = Path(__file__).parent / "plan_time_cpu_202611.md"
ROW = r"^\| ((\d+) x (\d+), (\d+), (\d+)(?: x (\d+))? (packed|padded)(, checkpointing)?) \| ((\w+) x (\d)) \| (\d+) "
STRATEGIES: dict[str, Any] = {
    "single": SingleOptions, "ddp": DDPOptions, "zero1": Zero1Options, "zero2": Zero2Options, "zero3": Zero3Options,
    "pipeline": PipelineOptions,
}  # fmt: skip
ANCHORS = ([3], [0], [4], [8], [13], [16], [20], [22], [3, 16], [3, 22], [5, 17, 22])
"""Rows of the first table, from 0, whose measured step is known."""
CPU = Machine("cpu", None, False, 2**34, assumed_cpu_constants(), num_cores=2)
Case = tuple[str, StepCase, float]


def recorded() -> Iterator[Case]:
    """Yield name, inputs of the plan, and measured seconds of each row of the first table."""
    task, fp32 = ClassificationTask(kind="classification", labels=["a", "b"]), POLICIES["fp32"]
    for row in re.findall(ROW, RECORD.read_text(encoding="utf-8"), re.MULTILINE):
        name, *sizes, accumulation, layout, checkpointing, way, kind, ranks, milliseconds = row
        width, blocks, length, size = map(int, sizes)
        model = BertConfig(
            vocab_size=30522, hidden_size=width, num_hidden_layers=blocks, num_attention_heads=width // 64,
            intermediate_size=4 * width,
        )  # fmt: skip
        built = build_model(model, task, fp32, None)
        enable_packed_batches(built)
        options = {"stages": 2} if kind == "pipeline" else {}
        every = 1 if checkpointing else None
        traced = profile(
            model, task, Shape((length,) * size, layout=layout), fp32, on_cuda=False,
            entry=built.entry if layout == "packed" else None, activation_checkpointing=every,
            with_division=kind == "pipeline",
        )  # fmt: skip
        traits = strategy_traits(kind, options)
        assert traits is not None
        setup = PredictionSetup(
            strategy=STRATEGIES[kind](kind=kind, **options), traits=traits, precision=fp32, num_ranks=int(ranks),
            ranks_per_node=int(ranks), micro_batch_size=size, grad_accum_steps=int(accumulation or 1),
            activation_checkpointing=every, layout=layout,
        )  # fmt: skip
        yield f"{name}, {way}", StepCase(traced, setup, CPU, size * length), int(milliseconds) / 1000


def replay(cases: Sequence[Case], anchors: Sequence[int]) -> Iterator[tuple[str, float, bool, float]]:
    """Yield name, planned over measured, whether the interval has the measured time, and high over low, of others."""
    constants = CPU.constants
    assert constants is not None
    fitted, _, _ = refit(constants, [MeasuredStep(cases[at][1], cases[at][2]) for at in anchors])
    for at, (name, case, measured_s) in enumerate(cases):
        if at not in anchors:
            time = step_time(replace(case, machine=replace(CPU, constants=fitted)))[0]
            assert time is not None
            step = time.total
            yield name, step.value / measured_s, step.low <= measured_s <= step.high, step.high / step.low


def main() -> None:
    cases = list(recorded())
    print("| anchor | others | within 20% | median error | in the interval | high / low, median |")
    print("|---|---|---|---|---|---|")
    for anchors in ANCHORS:
        found = list(replay(cases, anchors))
        error = math.exp(statistics.median(abs(math.log(ratio)) for _, ratio, *_ in found)) - 1
        near, inside = sum(abs(ratio - 1) <= 0.2 for _, ratio, *_ in found), sum(is_in for *_, is_in, _ in found)
        width = statistics.median(width for *_, width in found)
        names = "; ".join(cases[at][0] for at in anchors)
        print(f"| {names} | {len(found)} | {near} | {error:.0%} | {inside} | {width:.3g} |")


if __name__ == "__main__":
    main()
