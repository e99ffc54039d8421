"""Cost of paratune's loop per step, compared with a hand-written loop on the same batches.

    OMP_NUM_THREADS=1 python benchmarks/overhead.py
    OMP_NUM_THREADS=1 python benchmarks/overhead.py --rounds 3      # a short run

This measures only the engine's loop: batches are padded in advance, dropout is off, layers are PyTorch's own. The cost
of a whole step of `paratune train`, with packing, attention of packed rows and dropout, is measured by `loop_cost.py`.

Four loops take turns, in blocks of steps and in an order that rotates from round to round, so that other load of the
machine affects all of them equally: `plain` (peers/plain_loop.py), `paratune` (engine.loop with the single strategy,
the recorder and the stop flag), `sampled` (the same with a sample of utilisation every second, as in a run) and
`unmeasured` (without clock and recorder). Dropout is off, and the script checks that all loops end with the same
weights, so they do the same work. The last table of each model is the cost of measuring, which a run cannot switch off.
The cost of a single CPU sample is printed before the tables.
"""

import argparse
import copy
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine_lines
from peers.plain_loop import PlainLoop
from transformers import BertConfig, BertForSequenceClassification

from paratune.batch import Batch
from paratune.config.sections import ModelOptions, Train
from paratune.engine.loop import Loop, Progress, run
from paratune.engine.memory import peak_memory
from paratune.engine.noise import NoiseMeter
from paratune.engine.optim import OptimizerFactory
from paratune.engine.phases import HostPhaseClock
from paratune.engine.probes import make_probe
from paratune.engine.profiling import StepProfiler
from paratune.engine.recorder import Recorder
from paratune.engine.sampler import Sampler
from paratune.engine.stop import StopRequest
from paratune.models.load import Head, load_model
from paratune.models.task_model import TaskModel, find_blocks
from paratune.models.tokenizer import load_tokenizer
from paratune.precision import POLICIES
from paratune.processes.place import Place
from paratune.records import EventLog
from paratune.strategies.single import SingleStrategy

CPU = torch.device("cpu")
LEARNING_RATE = 1e-5
NUM_BATCHES = 8
DROPOUT_OFF = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclass(frozen=True)
class Case:
    """A model and the size of its batches."""

    name: str
    make: Callable[[], TaskModel]
    B: int
    """Samples a batch."""
    S: int
    """Tokens a sample."""
    vocab_size: int
    num_steps: int
    """Steps of a block."""
    num_rounds: int


class Unclocked:
    """See `phases.Clock`: measures nothing."""

    def __call__(self, phase: str) -> AbstractContextManager[None]:
        return nullcontext()

    def restart(self) -> None: ...

    def end_step(self) -> None: ...


class Unrecorded:
    """See `recorder.Recorder`: notes nothing."""

    def step(self, **values: Any) -> None: ...

    def resume(self) -> None: ...

    def flush(self) -> None: ...


class NoKeeper:
    """See `loop.Keeper`; nothing is due in this benchmark."""


def main() -> None:
    """Time all cases and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, help="blocks of each loop; default: 30 (demo model), 60 (tiny)")
    options = parser.parse_args()
    cases = [
        Case("demo:minilm, 8 x 32 tokens", _demo_model, 8, 32, 30_000, num_steps=10, num_rounds=options.rounds or 30),
        Case("2 layers of width 32, 8 x 16 tokens", _tiny_model, 8, 16, 1_000, 100, num_rounds=options.rounds or 60),
    ]
    print("\n".join([*machine_lines(), "", _cost_of_a_sample()]))
    for case in cases:
        print("\n".join(["", *_measured(case)]), flush=True)


def _demo_model() -> TaskModel:
    section = ModelOptions(name="demo:minilm", overrides=DROPOUT_OFF)
    head = Head("AutoModelForSequenceClassification", num_outputs=2, names=("a", "b"))
    return load_model(section, "classification", head, load_tokenizer(section), POLICIES["fp32"], seed=1)


def _tiny_model() -> TaskModel:
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=1_000,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        **DROPOUT_OFF,
    )
    return TaskModel(BertForSequenceClassification(config), "classification")


def _measured(case: Case) -> list[str]:
    """Run the three loops in turn and return the lines to print."""
    model = case.make()
    batches = list(_batches(case))
    with tempfile.TemporaryDirectory() as scratch:
        loops: dict[str, Callable[[], None]] = {}
        models: dict[str, torch.nn.Module] = {}
        for name in ("plain", "paratune", "sampled", "unmeasured"):
            models[name] = copy.deepcopy(model).hf if name == "plain" else copy.deepcopy(model)
            loops[name] = (
                _plain(case, models[name], batches)
                if name == "plain"
                else _ours(
                    case,
                    models[name],
                    batches,
                    None if name == "unmeasured" else Path(scratch) / name,
                    interval_s=1.0 if name == "sampled" else None,
                )
            )
        for loop in loops.values():
            loop()  # warm-up: the first steps make optimizer states and fill the allocator
        times = _times(case, loops)
    weights = {
        name: torch.cat([p.detach().flatten() for p in made.parameters()]).double() for name, made in models.items()
    }
    apart = max(float((weights["plain"] - weights[name]).abs().max()) for name in models if name != "plain")
    return _report(case, times, apart)


def _batches(case: Case) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(7)
    for _ in range(NUM_BATCHES):
        yield Batch(
            input_ids=torch.randint(5, case.vocab_size, (case.B, case.S), generator=generator),
            row_weight=torch.ones(case.B),
            index=torch.arange(case.B),
            num_samples=case.B,
            num_tokens=case.B * case.S,
            num_padded_tokens=case.B * case.S,
            loss_denominator=float(case.B),
            attention_mask=torch.ones(case.B, case.S, dtype=torch.int64),
            token_type_ids=torch.zeros(case.B, case.S, dtype=torch.int64),
            max_seqlen=case.S,
            labels=torch.randint(0, 2, (case.B,), generator=generator),
        )


def _plain(case: Case, model: torch.nn.Module, batches: Sequence[Batch]) -> Callable[[], None]:
    names = ("input_ids", "attention_mask", "token_type_ids", "labels")
    inputs = [{name: getattr(batch, name) for name in names} for batch in batches]
    loop = PlainLoop(model, learning_rate=LEARNING_RATE, weight_decay=0.01)
    return lambda: loop.run(itertools.islice(itertools.cycle(inputs), case.num_steps))


def _ours(
    case: Case, model: TaskModel, batches: Sequence[Batch], folder: Path | None, *, interval_s: float | None
) -> Callable[[], None]:
    """Return one block of the engine's loop, with clock and recorder if there is a folder for the events."""
    train = Train(max_steps=case.num_steps, learning_rate=LEARNING_RATE, schedule="constant", weight_decay=0.01)
    optimizer = OptimizerFactory(train, case.num_steps)
    strategy = SingleStrategy(device=CPU, precision=POLICIES["fp32"], rank=0, world_size=1)
    strategy.prepare(model, find_blocks(model), optimizer)
    clock: Any = HostPhaseClock() if folder else Unclocked()
    recorder: Any = Unrecorded()
    if folder:
        folder.mkdir()
        probe, _ = make_probe(CPU, Place(0, 0, 1))
        recorder = Recorder(
            EventLog(folder, 0),
            strategy,
            clock,
            warmup_steps=5,
            log_every=10,
            peak_memory=lambda: peak_memory(CPU),
            on_log=lambda event: None,
            sampler=Sampler(probe, name="CPU", interval_s=interval_s, is_warmup=False),
        )

    def block() -> None:
        steps = ([batch] for batch in itertools.islice(itertools.cycle(batches), case.num_steps))
        loop = Loop(
            strategy=strategy,
            optimizer=optimizer,
            batches=steps,
            keeper=NoKeeper(),  # type: ignore[arg-type]
            recorder=recorder,
            clock=clock,
            stop=StopRequest(),
            device=CPU,
            seed=1,
            num_steps=case.num_steps,
            steps_per_epoch=case.num_steps,
            max_grad_norm=1.0,
            evaluation_due=lambda step: False,
            checkpoint_due=lambda step: False,
            noise=NoiseMeter(strategy, None),
            profiler=StepProfiler(CPU, 0, warmup_steps=0, folder=folder),
        )
        run(loop, Progress())
        recorder.flush()

    return block


def _times(case: Case, loops: dict[str, Callable[[], None]]) -> dict[str, dict[str, Any]]:
    """Return milliseconds a step of each loop and round, by the wall and by this process's CPU time."""
    times: dict[str, dict[str, list[float]]] = {"wall": {n: [] for n in loops}, "CPU": {n: [] for n in loops}}
    names = list(loops)
    for number in range(case.num_rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            wall, cpu = time.perf_counter(), time.process_time()
            loops[name]()
            times["wall"][name].append(1000 * (time.perf_counter() - wall) / case.num_steps)
            times["CPU"][name].append(1000 * (time.process_time() - cpu) / case.num_steps)
    return {
        kind: {name: np.array(values) for name, values in values_by_loop.items()}
        for kind, values_by_loop in times.items()
    }


def _report(case: Case, times: dict[str, dict[str, Any]], apart: float) -> list[str]:
    lines = [
        f"### {case.name}",
        "",
        f"{case.num_rounds} blocks of {case.num_steps} steps of each loop, in turn. Largest difference between the "
        f"weights of the loops at the end: {apart:.1e}.",
        "",
        "| clock | loop | ms a step: median (p10 to p90) | more than plain, paired: median (p10 to p90) | share |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind, values_by_loop in times.items():
        base = float(np.median(values_by_loop["plain"]))
        for name, values in values_by_loop.items():
            more = values - values_by_loop["plain"]
            cells = [kind, name, _range(values, 3)]
            cells += ["", ""] if name == "plain" else [_range(more, 3), f"{100 * float(np.median(more)) / base:+.2f}%"]
            lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", *_cost_of_measuring(times)]


def _cost_of_measuring(times: dict[str, dict[str, Any]]) -> list[str]:
    """Return the cost of clock, recorder and sampler: the loop with them over the loop without, in the same round."""
    lines = ["| clock | measured | with / without, paired: median (p10 to p90) |", "| --- | --- | --- |"]
    for kind, values_by_loop in times.items():
        ratios = {
            "steps": values_by_loop["paratune"] / values_by_loop["unmeasured"],
            "steps, and utilisation every second": values_by_loop["sampled"] / values_by_loop["unmeasured"],
            "utilisation every second, beside steps": values_by_loop["sampled"] / values_by_loop["paratune"],
        }
        lines += [f"| {kind} | {measured} | {_range(ratio, 4)} |" for measured, ratio in ratios.items()]
    return lines


def _cost_of_a_sample(num_samples: int = 500) -> str:
    probe, _ = make_probe(CPU, Place(0, 0, 1))
    assert probe is not None
    probe.read()  # searches child processes; later readings do not, for half a minute
    wall, cpu = time.perf_counter(), time.thread_time()
    for _ in range(num_samples):
        probe.read()
    wall_us, cpu_us = (
        1e6 * (now - then) / num_samples for now, then in ((time.perf_counter(), wall), (time.thread_time(), cpu))
    )
    return f"A reading of a CPU, mean of {num_samples}: {cpu_us:.0f} us of CPU time, {wall_us:.0f} us by the wall."


def _range(values: Any, digits: int) -> str:
    low, middle, high = np.percentile(values, [10, 50, 90])
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


if __name__ == "__main__":
    main()
