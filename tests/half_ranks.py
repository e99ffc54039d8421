"""The work of each rank in the tests of 16-bit weights: steps with bf16 weights, autocast, and float64.

A job is plain data. One process and several processes run the same function.
"""

import importlib.util
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from architectures import CONFIGS, model_of
from ranks import CPU, _no_clock, save, saved
from safetensors.torch import save_file
from tiny_data import tiny_collator, tiny_masking

from paratune.config.sections import Train
from paratune.data.loader import TrainBatches
from paratune.engine.optim import OptimizerFactory
from paratune.models.packed import enable_packed_batches
from paratune.models.task_model import find_blocks
from paratune.precision import POLICIES
from paratune.processes.place import RENDEZVOUS_VARIABLE, Place
from paratune.strategies import strategy_class
from paratune.strategies.process_group import close_process_group, open_process_group
from paratune.training.certify import zero_dropout

GLOBAL_BATCH_SIZE = 8
NUM_STEPS = 4


@dataclass(frozen=True)
class Job:
    """A few steps of a small model."""

    strategy: str = "single"
    options: dict[str, Any] = field(default_factory=dict)
    precision: str = "fp64"
    architecture: str = "bert"
    task: str = "classification"
    micro_batches: int = 1
    save_at: int | None = None
    load_from: str | None = None

    @property
    def name(self) -> str:
        options = [f"{key}={value}" for key, value in self.options.items()]
        parts = [self.strategy, *options, self.precision, self.architecture, self.task, f"x{self.micro_batches}"]
        return " ".join([*parts, *([f"from {self.load_from}"] if self.load_from else [])])


BF16 = {"param_dtype": "bf16"}
ARCHITECTURES = ("bert", "modernbert-mean", "deberta-v2", "eurobert", "roberta")


def engines() -> list[tuple[str, dict[str, Any]]]:
    """Return the strategies for weights of 16 bits, on any number of ranks; the buckets of DeepSpeed are small."""
    strategies: list[tuple[str, dict[str, Any]]] = [("zero2", BF16), ("zero3", BF16)]
    if importlib.util.find_spec("deepspeed"):
        strategies += [("deepspeed", {**BF16, "stage": stage, "reduce_bucket_size": 20_000}) for stage in (1, 2, 3)]
    return strategies


def references() -> list[Job]:
    """Return jobs with the same steps in float64, in one process."""
    return [*(Job(architecture=name) for name in ARCHITECTURES), Job(task="mlm")]


def jobs() -> list[Job]:
    """Return the jobs of one and two processes: each strategy with two tasks, one interrupted; all models for zero3."""
    halves = [Job(*way, "bf16", save_at=2, micro_batches=2) for way in engines()]
    jobs = [*halves, *map(resumed, halves)]
    jobs += [Job(*way, "bf16", task="mlm") for way in engines()]
    jobs += [Job("zero3", BF16, "bf16", name) for name in ARCHITECTURES[1:]]
    return [*jobs, Job("zero3", {}, "bf16", ARCHITECTURES[1])]  # autocast


def resumed(job: Job) -> Job:
    """Return the job that continues from the checkpoint of another."""
    return replace(job, save_at=None, load_from=job.name)


def run(job: Job, rank: int, world_size: int, folder: Path) -> None:
    """Run the steps; write losses and norms of each step, and the gradients of the first."""
    strategy = strategy_class(job.strategy)(
        device=CPU, precision=POLICIES[job.precision], rank=rank, world_size=world_size, **job.options
    )
    model = model_of(CONFIGS[job.architecture](), job.task, POLICIES[job.precision].param_dtype)
    zero_dropout(model)
    enable_packed_batches(model)
    # With a first decay rate of 0 the first moment after a step is its gradient.
    factory = OptimizerFactory(Train(learning_rate=1e-3, betas=[0.0, 0.99]), NUM_STEPS)
    strategy.prepare(model, find_blocks(model), factory)
    initial = {key: value.clone() for key, value in strategy.state().tensors("model/") if value is not None}
    collate = tiny_masking(16, seed=0) if job.task == "mlm" else tiny_collator(16, num_classes=2, seed=0)
    batches = TrainBatches(
        collate,
        seed=3,
        global_batch_size=GLOBAL_BATCH_SIZE,
        micro_batch_size=GLOBAL_BATCH_SIZE // world_size // job.micro_batches,
        num_micro_steps=job.micro_batches,
        data_rank=rank,
        data_world_size=world_size,
    )
    begin = 0
    if job.load_from:
        reader = saved(folder / job.load_from)
        strategy.state().load(reader.read, reader.keys())
        begin = reader.step
    outcome: dict[str, Any] = {"losses": [], "norms": []}
    gradients = {}
    for step in range(begin, NUM_STEPS):
        loss = strategy.forward_backward(batches.step(step), _no_clock)
        factory.set_learning_rate(step)
        norm = strategy.optimizer_step(None if step == 0 else 1.0)
        outcome["losses"].append(float(strategy.reduce(loss.double().cpu(), "sum")))
        outcome["norms"].append(float(norm))
        if step == 0:
            moments = ((key, value) for key, value in strategy.state().tensors("optimizer/") if key.endswith("exp_avg"))
            gradients = {key: value.clone() for key, value in moments if value is not None}
        if step + 1 == job.save_at:
            save(strategy, folder / job.name, step + 1)
    last = {key: value.clone().contiguous() for key, value in strategy.state().tensors() if value is not None}
    strategy.close()
    output = folder / job.name
    output.mkdir(parents=True, exist_ok=True)
    if rank == 0:
        for name, tensors in (("initial", initial), ("gradients", gradients), ("last", last)):
            save_file({key: value.contiguous() for key, value in tensors.items()}, output / f"{name}.safetensors")
    (output / f"rank{rank}.json").write_text(json.dumps(outcome))


def one_rank(rank: int, folder: str, world_size: int, jobs: list[Job]) -> None:
    """Run jobs as one of several processes that connect through a file."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    os.environ[RENDEZVOUS_VARIABLE] = str(Path(folder) / f"rendezvous{world_size}")
    open_process_group(Place(rank, rank, world_size), CPU)
    try:
        for job in jobs:
            try:
                run(job, rank, world_size, Path(folder) / str(world_size))
            except Exception as error:
                error.add_note(f"in the job: {job.name}")
                raise
    finally:
        close_process_group()
