"""How gradients travel; what a pipeline trains is held to one process in tests/two_processes."""

import numpy as np
import pytest
import torch
from tiny import tiny_model
from tiny_questions import tiny_windows
from torch import Tensor, nn

from paratune.config.sections import Train
from paratune.engine.optim import OptimizerFactory
from paratune.models.task_model import TaskModel, find_blocks
from paratune.precision import POLICIES
from paratune.processes.place import Place
from paratune.strategies.pipeline import strategy
from paratune.strategies.pipeline.parts import parts_of
from paratune.strategies.process_group import close_process_group, open_process_group


def test_gradients_are_summed_in_buckets_of_bounded_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(strategy, "_BUCKET_BYTES", 100)
    sent: list[int] = []

    def as_if_two_ranks_had_the_same(tensor: Tensor, group: None) -> None:
        sent.append(tensor.nbytes)
        tensor.mul_(2)

    monkeypatch.setattr(strategy.dist, "all_reduce", as_if_two_ranks_had_the_same)
    # Of 40, 60, 160, 4, none, and 80 bytes; the last but one is not contiguous.
    parameters = [nn.Parameter(torch.empty(shape)) for shape in [(10,), (3, 5), (8, 5), (1,), (2,), (5, 4)]]
    for number, parameter in enumerate(parameters):
        parameter.grad = torch.full_like(parameter, float(number)) if number != 4 else None
    parameters[5].grad = torch.arange(20.0).view(4, 5).t()
    large = parameters[2].grad
    strategy._sum(parameters, None)
    assert sent == [100, 160, 84]
    assert parameters[2].grad is large
    assert [float(p.grad.max()) for p in parameters[:4] if p.grad is not None] == [0, 2, 4, 6]
    assert parameters[4].grad is None
    assert parameters[5].grad is not None
    assert torch.equal(parameters[5].grad, 2 * torch.arange(20.0).view(4, 5).t())


def test_a_large_gradient_that_is_not_contiguous_is_summed_too(monkeypatch: pytest.MonkeyPatch):
    def whole_memory_only(tensor: Tensor, group: None) -> None:
        assert tensor.is_contiguous()  # as gloo and NCCL ask for
        tensor.add_(1)

    monkeypatch.setattr(strategy, "_BUCKET_BYTES", 10)
    monkeypatch.setattr(strategy.dist, "all_reduce", whole_memory_only)
    parameter = nn.Parameter(torch.empty(3, 2))
    parameter.grad = torch.zeros(2, 3).t()
    strategy._sum([parameter], None)
    assert torch.equal(parameter.grad, torch.ones(3, 2))


def test_a_batch_is_divided_with_all_values_of_its_rows():
    collate = tiny_windows(5)
    batch = collate(np.arange(5), 5.0)
    parts = parts_of(batch, 2)
    assert [len(part.index) for part in parts] == [3, 2]
    for name in ("input_ids", "attention_mask", "row_weight", "index", "labels", "row_bounds"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(batch, name)), name


def test_stages_are_found_with_the_dtypes_of_training():
    open_process_group(Place(0, 0, 1), torch.device("cpu"))
    try:
        pipeline = strategy.PipelineStrategy(
            device=torch.device("cpu"), precision=POLICIES["fp32"], rank=0, world_size=1, stages=1
        )
        model = TaskModel(tiny_model(num_labels=3).bfloat16(), "classification")
        model.hf.classifier.float()  # new, the rest is as in its file
        pipeline.prepare(model, find_blocks(model), OptimizerFactory(Train(), 1))
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    finally:
        close_process_group()
