"""What is DDP's own; tests/two_processes holds it to one process."""

from contextlib import nullcontext

import pytest
import torch
from exact import RowModel, row_batch
from raised import raises_code

from paratune.config.sections import Train
from paratune.engine.optim import OptimizerFactory
from paratune.precision import POLICIES
from paratune.processes.place import Place
from paratune.strategies.ddp import DDPStrategy
from paratune.strategies.process_group import close_process_group, open_process_group

CPU = torch.device("cpu")


@pytest.mark.parametrize("find", [False, True])
def test_unused_parameters_are_an_error_with_the_option_that_helps(find: bool):
    open_process_group(Place(0, 0, 1), CPU)
    try:
        model = RowModel()
        model.unused = torch.nn.Linear(2, 2)
        strategy = DDPStrategy(
            device=CPU, precision=POLICIES["fp32"], rank=0, world_size=1, find_unused_parameters=find
        )
        strategy.prepare(model, [], OptimizerFactory(Train(), 10))
        outcome = nullcontext() if find else raises_code("strategy.unused_parameters", "find_unused_parameters")
        with outcome:
            for _ in range(2):
                strategy.forward_backward([row_batch([0, 1], 2.0)], lambda phase: nullcontext())
                strategy.optimizer_step(None)
        strategy.close()
    finally:
        close_process_group()
