"""The work of each process in the test of DeepSpeed's collectives: two steps; the second is recorded."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from ranks import CPU, Job, _batches, _model, _no_clock
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paratune.config.sections import Train
from paratune.engine.optim import OptimizerFactory
from paratune.models.task_model import find_blocks, freeze_encoder
from paratune.precision import POLICIES
from paratune.processes.place import RENDEZVOUS_VARIABLE, Place
from paratune.strategies import strategy_class
from paratune.strategies.process_group import close_process_group, open_process_group


@dataclass(frozen=True)
class Call:
    """A collective that a process called."""

    name: str
    """Name of PyTorch's operator, such as allreduce_."""
    num_numbers: int
    """Size of its largest input or output: the full tensor that is reduced, gathered or scattered."""
    dtype: str


class Calls(TorchDispatchMode):
    """Records the collectives that this thread calls inside its `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            tensors = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)]
            largest = max(tensors, key=lambda tensor: tensor.numel(), default=torch.empty(0))
            self.calls.append(Call(func.__name__.partition(".")[0], largest.numel(), str(largest.dtype)))
        return func(*args, **(kwargs or {}))


def _second_step(job: Job, rank: int, world_size: int) -> list[Call]:
    strategy: Any = strategy_class(job.strategy)(
        device=CPU, precision=POLICIES["fp32"], rank=rank, world_size=world_size, **job.options
    )
    model = _model(job)
    if job.freeze:
        freeze_encoder(model)
    factory = OptimizerFactory(Train(), 2)
    strategy.prepare(model, find_blocks(model), factory)
    batches = _batches(job, strategy)
    for step in range(2):
        with Calls() as recorder:
            strategy.forward_backward(batches.step(step), _no_clock)
            strategy.optimizer_step(0.5)
    strategy.close()
    return recorder.calls


def one_rank(rank: int, folder: str, jobs: list[dict[str, Any]], world_size: int) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    os.environ[RENDEZVOUS_VARIABLE] = str(Path(folder) / "rendezvous")
    open_process_group(Place(rank, rank, world_size), CPU)
    calls = {}
    for values in jobs:
        job = Job(**values)
        calls[job.name] = [asdict(call) for call in _second_step(job, rank, world_size)]
    (Path(folder) / f"{rank}.json").write_text(json.dumps(calls))
    close_process_group()
