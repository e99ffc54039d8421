"""The bubble of a pipeline whose first stage is delayed by a known time: every stage measures the whole schedule."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
from ranks import CPU
from tiny import tiny_model
from tiny_data import tiny_collator
from torch import Tensor, nn

from paratune.config.sections import Train
from paratune.data.loader import TrainBatches
from paratune.engine.optim import OptimizerFactory
from paratune.engine.phases import HostPhaseClock
from paratune.models.task_model import TaskModel, find_blocks
from paratune.precision import POLICIES
from paratune.processes.place import RENDEZVOUS_VARIABLE, Place
from paratune.strategies.pipeline.strategy import PipelineStrategy
from paratune.strategies.process_group import close_process_group, open_process_group

FORWARD_S, BACKWARD_S = 0.05, 0.5
NUM_MICRO_BATCHES = 2


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        time.sleep(FORWARD_S)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(BACKWARD_S)
        return gradient


def _slowly(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
    return _Slow.apply(output) if torch.is_grad_enabled() else output


def _one_rank(rank: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    os.environ[RENDEZVOUS_VARIABLE] = str(Path(folder) / "rendezvous")
    open_process_group(Place(rank, rank, 2), CPU)
    strategy = PipelineStrategy(
        device=CPU, precision=POLICIES["fp32"], rank=rank, world_size=2, stages=2, balance=[1, 1]
    )
    model = TaskModel(tiny_model(), "classification")
    blocks = find_blocks(model)
    blocks[0].intermediate.register_forward_hook(_slowly)
    strategy.prepare(model, blocks, OptimizerFactory(Train(), 1))
    batches = TrainBatches(
        tiny_collator(8),
        seed=0,
        global_batch_size=8,
        micro_batch_size=8 // NUM_MICRO_BATCHES,
        num_micro_steps=NUM_MICRO_BATCHES,
        data_rank=0,
        data_world_size=1,
        equal_shapes=True,
    )
    clock = HostPhaseClock()
    strategy.forward_backward(batches.step(0), clock)
    with clock("optimizer"):
        strategy.optimizer_step(None)
    clock.end_step()
    (times,) = clock.take()
    values = {
        "schedule_ms": times.schedule_ms,
        "bubble_ms": times.bubble_ms,
        "optimizer_ms": times.phases_ms["optimizer"],
        "wall_ms": times.wall_ms,
    }
    (Path(folder) / f"rank{rank}.json").write_text(json.dumps(values))
    close_process_group()


@pytest.mark.slow
def test_the_last_stage_waits_for_the_first_within_the_schedule(tmp_path: Path):
    torch.multiprocessing.spawn(_one_rank, (str(tmp_path),), nprocs=2)
    first, last = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    # The first stage sleeps through two forward and two backward passes. The last stage finishes before the backward
    # passes of the first, and waits for them; this time is neither backward nor optimizer.
    slept_ms = 1000 * NUM_MICRO_BATCHES * (FORWARD_S + BACKWARD_S)
    assert first["schedule_ms"] - first["bubble_ms"] > slept_ms
    assert last["schedule_ms"] > slept_ms
    assert last["bubble_ms"] > slept_ms / 2
    assert last["schedule_ms"] + last["optimizer_ms"] <= last["wall_ms"]
