"""What each process of the tests in dist does: it runs jobs one after another and writes what came out.

A job is plain data. All ranks, and the one process that they are compared with, run the same function.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from safetensors.torch import load_file, save_file
from tiny import tiny_model
from tiny_data import tiny_collator

from paratune import checkpoint
from paratune.batch import Batch
from paratune.config.sections import Train
from paratune.data.loader import TrainBatches, eval_batches
from paratune.engine.evaluate import evaluate
from paratune.engine.optim import OptimizerFactory
from paratune.engine.stop import StopRequest
from paratune.models.task_model import SequenceModel, find_blocks
from paratune.place import RENDEZVOUS_VARIABLE, Place
from paratune.precision import POLICIES
from paratune.strategies import strategy_class
from paratune.strategies.process_group import close_process_group, open_process_group

CPU = torch.device("cpu")
SPAWN_LIMIT_S = 240


@dataclass(frozen=True)
class Job:
    """One training, the same whatever the number of ranks."""

    name: str
    strategy: str = "single"
    options: dict[str, Any] = field(default_factory=dict)
    num_classes: int = 3
    """0 for regression."""
    accumulation: int = 1
    """Micro-batches a step of one process; more ranks take fewer."""
    num_samples: int = 27
    """With 8 a step: the fourth step has 3 samples, of which two ranks get 2 and 1."""
    num_steps: int = 10
    max_grad_norm: float | None = 0.5
    num_evaluated: int = 11
    seed: int = 7
    violation: str = ""
    save_at: int | None = None
    load_from: str | None = None


GLOBAL_BATCH_SIZE = 8


def train(job: Job, rank: int, world_size: int, folder: Path) -> None:
    """Run a job and write its outcome to `folder`: losses and scores on every rank, tensors on the first."""
    strategy = strategy_class(job.strategy)(
        device=CPU, precision=POLICIES["fp64"], rank=rank, world_size=world_size, **job.options
    )
    kind = "classification" if job.num_classes else "regression"
    model = SequenceModel(tiny_model(num_labels=max(1, job.num_classes), dropout=0.0), kind).double()
    # With a first decay rate of 0 the first moment after a step is its gradient: so gradients show through the states.
    factory = OptimizerFactory(Train(learning_rate=2e-3, betas=[0.0, 0.99], warmup_steps=2), job.num_steps)
    strategy.prepare(model, find_blocks(model), factory)
    begin = 0
    if job.load_from:
        reader = checkpoint.Reader(folder.parent / job.load_from / "checkpoint")
        strategy.state().load(reader.read, reader.keys())
        begin = reader.step
    outcome: dict[str, Any] = {"losses": [], "norms": [], "indices": []}
    batches = _batches(job, strategy.layout.data_rank, strategy.layout.data_world_size)
    for step in range(begin, job.num_steps):
        micro_batches = _spoil(job, batches.step(step), world_size)
        loss = strategy.forward_backward(micro_batches, _no_clock)
        factory.set_learning_rate(step)
        # The first step is not clipped, so that its gradient can be compared.
        norm = strategy.optimizer_step(None if step == 0 else job.max_grad_norm)
        outcome["losses"].append(float(strategy.reduce(loss.double(), "sum")))
        outcome["norms"].append(float(norm))
        outcome["indices"].append([int(i) for batch in micro_batches for i in batch.index if i >= 0])
        if step == 0:
            _write_tensors(folder / "first.safetensors", strategy.state().tensors())
        if step + 1 == job.save_at:
            checkpoint.save(folder / "checkpoint", strategy.state().tensors(), {}, step=step + 1, is_writer=rank == 0)
    _write_tensors(folder / "last.safetensors", strategy.state().tensors())
    outcome["evaluation"] = _evaluation(job, strategy, model)
    (folder / f"rank{rank}.json").write_text(json.dumps(outcome))
    strategy.close()


def _batches(job: Job, data_rank: int, data_world_size: int) -> TrainBatches:
    # One process cuts its step into `accumulation` parts; ranks share them, as a user would have it.
    num_micro_steps = max(1, job.accumulation // data_world_size) if job.accumulation > 1 else 1
    return TrainBatches(
        tiny_collator(job.num_samples, num_classes=job.num_classes),
        seed=job.seed + (data_world_size if job.violation == "order" else 0),
        global_batch_size=GLOBAL_BATCH_SIZE,
        micro_batch_size=GLOBAL_BATCH_SIZE // data_world_size // num_micro_steps,
        num_micro_steps=num_micro_steps,
        data_rank=data_rank,
        data_world_size=data_world_size,
    )


def _spoil(job: Job, batches: list[Batch], world_size: int) -> list[Batch]:
    if job.violation != "mean of means":
        return batches
    # Each rank takes the mean over its own samples, and the mean of those is taken over ranks.
    own = sum(batch.num_samples for batch in batches)
    return [replace(batch, loss_denominator=float(max(1, own) * world_size)) for batch in batches]


def _evaluation(job: Job, strategy: Any, model: SequenceModel) -> dict[str, Any]:
    layout = strategy.layout
    result = evaluate(
        strategy,
        model,
        eval_batches(
            tiny_collator(job.num_evaluated, num_classes=job.num_classes, seed=1),
            batch_size=2,
            data_rank=layout.data_rank,
            data_world_size=layout.data_world_size,
        ),
        device=CPU,
        should_stop=lambda: StopRequest().agreed(strategy),
    )
    assert result.labels is not None
    return {"outputs": result.outputs.tolist(), "labels": result.labels.tolist(), "loss": result.loss}


def reduce_all(rank: int, world_size: int, folder: Path) -> None:
    """Try the collectives of each strategy that has several ranks, and what they decide."""
    strategy = strategy_class("ddp")(device=CPU, precision=POLICIES["fp64"], rank=rank, world_size=world_size)
    value = torch.tensor([1.0 + rank, 10.0 * rank], dtype=torch.float64)
    outcome: dict[str, Any] = {op: strategy.reduce(value, op).tolist() for op in ("sum", "max", "min", "concat")}
    outcome["left alone"] = value.tolist()
    rows = torch.arange(6).reshape(3, 2)[: 3 if rank == 0 else 1] + 100 * rank
    outcome["rows"] = strategy.reduce(rows, "concat").tolist()
    outcome["one is empty"] = strategy.reduce(rows if rank == 1 else rows[:0], "concat").tolist()
    stop = StopRequest()
    outcome["nobody stops"] = stop.agreed(strategy)
    stop.signal = "SIGTERM" if rank == 1 else None
    outcome["one stops"] = stop.agreed(strategy)
    (folder / f"rank{rank}.json").write_text(json.dumps(outcome))


def _write_tensors(path: Path, tensors: Iterator[tuple[str, torch.Tensor | None]]) -> None:
    whole = {key: value.clone().contiguous() for key, value in tensors if value is not None}
    if whole:
        save_file(whole, path)


class _NoClock:
    def __call__(self, phase: str) -> "_NoClock":
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


_no_clock = _NoClock()


def one_rank(rank: int, world_size: int, folder: str, jobs: Sequence[dict[str, Any]]) -> None:
    """Run all jobs as one of several processes that find each other through a file."""
    os.environ[RENDEZVOUS_VARIABLE] = (Path(folder) / f"rendezvous{world_size}").as_uri()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    open_process_group(Place(rank, rank, world_size), CPU)
    try:
        for values in jobs:
            job = Job(**values)
            train(job, rank, world_size, Path(folder) / job.name)
        reduce_all(rank, world_size, Path(folder) / f"reduce{world_size}")
    finally:
        close_process_group()


def spawn(folder: Path, jobs: Sequence[Job], world_size: int = 2) -> None:
    """Run jobs in several processes; raise what one of them raised."""
    for name in (*(job.name for job in jobs), f"reduce{world_size}"):
        (folder / name).mkdir(parents=True)
    context = torch.multiprocessing.spawn(
        one_rank, (world_size, str(folder), [asdict(job) for job in jobs]), nprocs=world_size, join=False
    )
    deadline = time.monotonic() + SPAWN_LIMIT_S
    while not context.join(timeout=1):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            raise TimeoutError(f"{world_size} processes were not done after {SPAWN_LIMIT_S} s")


@dataclass(frozen=True)
class Outcome:
    """What a job left behind."""

    folder: Path

    def rank(self, rank: int = 0) -> dict[str, Any]:
        return json.loads((self.folder / f"rank{rank}.json").read_text())

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        return load_file(self.folder / f"{name}.safetensors")
