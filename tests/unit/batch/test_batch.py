from dataclasses import fields, replace

import pytest
import torch
from exact import RowModel, row_batch
from tiny import tiny_model
from torch import Tensor

from paratune import batch as module
from paratune.batch import BatchModel
from paratune.models.task_model import TaskModel


def test_to_moves_all_tensors_and_keeps_counts():
    batch = replace(row_batch(range(3), 3), token_type_ids=torch.zeros(3, 5), cu_seqlens=torch.tensor([0, 3]))
    moved = batch.to("meta")
    for field in fields(batch):
        before, after = getattr(batch, field.name), getattr(moved, field.name)
        if isinstance(before, Tensor):
            assert after.device.type == "meta", field.name
            assert (after.shape, after.dtype) == (before.shape, before.dtype)
        else:
            assert after == before, field.name


def test_a_non_blocking_copy_to_a_gpu_is_one_copy_of_pinned_memory(monkeypatch):
    """No GPU is needed: what would be pinned and moved is noted."""
    lengths = torch.tensor([0, 3], dtype=torch.int32)
    real, done = row_batch(range(3), 3), []
    real = replace(real, cu_seqlens=lengths, slots=torch.zeros(0, dtype=torch.int64), position_ids=real.input_ids.T)
    monkeypatch.setattr(module, "_pinned", lambda size: done.append("pin") or torch.empty(size, dtype=torch.uint8))
    monkeypatch.setattr(Tensor, "to", lambda tensor, device, **_: done.append(str(device)) or tensor.clone())
    tensors = {field.name: getattr(real, field.name) for field in fields(real)}
    tensors = {name: value for name, value in tensors.items() if isinstance(value, Tensor)}
    assert {value.dtype for value in tensors.values()} == {torch.int64, torch.float32, torch.int32}
    for device, non_blocking, expected in (
        ("cuda:1", True, ["pin", "cuda:1"]),
        (torch.device("cuda"), False, ["cuda"] * len(tensors)),
        ("cpu", True, []),
    ):
        done.clear()
        moved = real.to(device, non_blocking=non_blocking)
        assert done == expected
        for name, value in tensors.items():
            found = getattr(moved, name)
            assert found.dtype == value.dtype
            assert torch.equal(found, value), name
    moved = real.to("cuda", non_blocking=True)
    assert len({getattr(moved, name).untyped_storage().data_ptr() for name in tensors}) == 1


def test_tensors_in_a_buffer_are_aligned():
    tensors = [torch.arange(3, dtype=torch.uint8), torch.tensor(2.5), torch.arange(5), torch.ones(2, 3).half()]
    buffers = []

    def send(buffer: Tensor) -> Tensor:
        buffers.append(buffer)
        return buffer

    sent = module.send_together(tensors, lambda size: torch.zeros(size, dtype=torch.uint8), send)
    (buffer,) = buffers
    # 3, 4, 40 and 12 bytes, each from a multiple of 16 on.
    assert [tensor.data_ptr() - buffer.data_ptr() for tensor in sent] == [0, 16, 32, 80]
    assert buffer.nbytes == 96
    for received, tensor in zip(sent, tensors, strict=True):
        assert (received.shape, received.dtype) == (tensor.shape, tensor.dtype)
        assert torch.equal(received, tensor)


@pytest.mark.parametrize("is_pinned", [True, False])
def test_tensors_in_one_pinned_buffer_are_sent_without_a_copy(monkeypatch, is_pinned: bool):
    monkeypatch.setattr(Tensor, "is_pinned", lambda tensor: is_pinned)
    memory = torch.arange(256, dtype=torch.uint8)
    tensors = [memory[64:80].view(torch.int64), memory[96:104].view(torch.float32), memory[128:128]]
    made = []

    def make(size: int) -> Tensor:
        made.append(size)
        return torch.empty(size, dtype=torch.uint8)

    sent = module.send_together(tensors, make, Tensor.clone)
    # From the first byte of the first to the last of the last, 64 bytes; else 16 bytes for each that has any.
    assert made == ([] if is_pinned else [32])
    assert sent[0].untyped_storage().nbytes() == (64 if is_pinned else 32)
    assert all(torch.equal(*pair) for pair in zip(sent, tensors, strict=True))


def test_a_batch_with_cu_seqlens_is_packed():
    batch = row_batch(range(3), 3)
    assert not batch.is_packed
    assert replace(batch, cu_seqlens=torch.tensor([0, 3], dtype=torch.int32)).is_packed


def test_models_implement_the_protocol():
    assert isinstance(TaskModel(tiny_model(), "classification"), BatchModel)
    assert isinstance(RowModel(), BatchModel)
    assert not isinstance(torch.nn.Linear(1, 1), BatchModel)
