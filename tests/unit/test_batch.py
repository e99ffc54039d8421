from dataclasses import fields, replace

import torch
from exact import RowModel, row_batch
from tiny import tiny_model
from torch import Tensor

from paratune.batch import BatchModel
from paratune.models.task_model import TaskModel


def test_moving_moves_every_tensor_and_no_count():
    batch = replace(row_batch(range(3), 3), token_type_ids=torch.zeros(3, 5), cu_seqlens=torch.tensor([0, 3]))
    moved = batch.to("meta")
    for field in fields(batch):
        before, after = getattr(batch, field.name), getattr(moved, field.name)
        if isinstance(before, Tensor):
            assert after.device.type == "meta", field.name
            assert (after.shape, after.dtype) == (before.shape, before.dtype)
        else:
            assert after == before, field.name


def test_only_a_copy_to_a_gpu_that_is_not_waited_for_is_pinned(monkeypatch):
    """No GPU is needed: what would be pinned and moved is noted."""
    batch, done = row_batch(range(3), 3), []
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: done.append("pin") or tensor)
    monkeypatch.setattr(Tensor, "to", lambda tensor, device, **_: done.append(str(device)) or tensor)
    num_tensors = sum(isinstance(getattr(batch, field.name), Tensor) for field in fields(batch))
    for device, non_blocking, expected in (
        ("cuda:1", True, ["pin", "cuda:1"] * num_tensors),
        (torch.device("cuda"), False, ["cuda"] * num_tensors),
        ("cpu", True, ["cpu"] * num_tensors),
    ):
        done.clear()
        batch.to(device, non_blocking=non_blocking)
        assert done == expected


def test_a_batch_with_cu_seqlens_is_packed():
    batch = row_batch(range(3), 3)
    assert not batch.is_packed
    assert replace(batch, cu_seqlens=torch.tensor([0, 3], dtype=torch.int32)).is_packed


def test_models_meet_the_protocol():
    assert isinstance(TaskModel(tiny_model(), "classification"), BatchModel)
    assert isinstance(RowModel(), BatchModel)
    assert not isinstance(torch.nn.Linear(1, 1), BatchModel)
