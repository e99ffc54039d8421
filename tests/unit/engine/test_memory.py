"""What counts as running out of memory, and who owned it, counted from real tensors."""

import pytest
import torch
from looping import CPU
from torch import nn
from torch.optim import AdamW

from paratune import hardware
from paratune.engine import memory
from paratune.engine.memory import is_out_of_memory, memory_use
from paratune.errors import OutOfMemory

# As PyTorch 2.11 writes it (c10/cuda/CUDACachingAllocator.cpp).
CUDA = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB of which 12.50 MiB is "
    "free. Process 77 has 1.50 GiB memory in use. Including non-PyTorch memory, this process has 77.59 GiB memory in "
    "use. Of the allocated memory 76.00 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True"
)
CPU_ALLOCATOR = "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to"


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError(CUDA), True),
        (RuntimeError(CPU_ALLOCATOR), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (MemoryError(), True),
        (RuntimeError("The size of tensor a (3) must match"), False),
        (OutOfMemory("said already", code="memory.out"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_errors_that_mean_out_of_memory(error: BaseException, is_one: bool):
    assert is_out_of_memory(error) is is_one


def test_an_error_caused_by_out_of_memory_counts():
    # As torch.distributed.pipelining's forward_one_chunk does.
    error = RuntimeError("[Stage 1] failed to run forward")
    error.__cause__ = torch.OutOfMemoryError(CUDA)
    assert is_out_of_memory(error)
    error.__cause__ = ValueError("no")
    assert not is_out_of_memory(error)


def test_the_allocator_message_of_this_pytorch_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)  # a pebibyte
    assert is_out_of_memory(caught.value)
    assert memory_use(None, CPU, caught.value).asked_bytes == 2**50


def test_memory_is_counted_from_tensors():
    model = nn.Sequential(nn.Linear(100, 50), nn.Linear(50, 10, dtype=torch.float64))
    model.register_buffer("mean", torch.zeros(7))
    optimizer = AdamW(model.parameters())
    # 5000 + 50 values of 4 bytes, 500 + 10 of 8, and 7 of 4.
    weights = 5050 * 4 + 510 * 8
    before = memory_use(model, CPU)
    assert (before.weights_bytes, before.gradients_bytes) == (weights + 28, 0)
    model[1](model[0](torch.ones(1, 100)).double()).sum().backward()
    optimizer.step()
    after = memory_use(model, CPU)
    assert after.gradients_bytes == weights
    # Two moments, and a step count of one float32 for each of four parameters.
    assert after.optimizer_bytes - before.optimizer_bytes == 2 * weights + 4 * 4
    assert after.rest_bytes is not None
    assert after.rest_bytes > 10 * 2**20  # Python and PyTorch themselves
    assert after.total_bytes is not None
    assert after.total_bytes > (after.free_bytes or 0) > 0


def test_an_optimizers_own_copies_count_as_its_states():
    model = nn.Linear(10, 10, dtype=torch.bfloat16)
    before = memory_use(model, CPU).optimizer_bytes
    master = [nn.Parameter(p.detach().float()) for p in model.parameters()]
    optimizer = AdamW(master)
    assert memory_use(model, CPU).optimizer_bytes - before == 110 * 4
    assert optimizer.param_groups


def test_a_gpus_figures_come_from_the_error_message(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, 2))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 3)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 4)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA X")
    model = nn.Linear(2**10, 2**10, bias=False)
    gib, mib = 2**30, 2**20
    use = memory_use(model, torch.device("cuda", 0), torch.OutOfMemoryError(CUDA))
    assert use.weights_bytes == 4 * mib
    assert use.rest_bytes == 76 * gib - 4 * mib - use.optimizer_bytes
    assert use.unallocated_bytes == 512 * mib
    assert use.free_bytes == 12.5 * mib
    # 79.11 GiB less what is free, allocated and unallocated: the other process, and the driver's part.
    assert use.others_bytes == pytest.approx(79.11 * gib - 12.5 * mib - 76 * gib - 512 * mib, abs=0.01 * gib)
    assert use.asked_bytes == 20 * mib
    for part in ("of 79.1 GiB", "weights 4 MiB", "reserved but unallocated 512 MiB", "free 12.5 MiB"):
        assert part in use.text()


def test_without_a_message_figures_come_from_the_allocator(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 300)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 450)
    figures = memory._cuda_figures(torch.device("cuda", 0), {})
    assert figures["others_bytes"] == 1000 - 100 - 450
    assert (figures["unallocated_bytes"], figures["asked_bytes"]) == (150, None)


@pytest.mark.parametrize(
    ("resident", "rest", "others"),
    [
        (300, 300, 500),  # 1000 less 200 free and 300 of this process
        (900, 900, 0),  # what is free is counted a moment later, and may be more by then
        (None, None, None),
    ],
)
def test_on_a_host_the_rest_is_neither_free_nor_of_this_process(
    monkeypatch: pytest.MonkeyPatch, resident: int | None, rest: int | None, others: int | None
):
    monkeypatch.setattr(hardware, "total_memory_bytes", lambda: 1000)
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: 200)
    monkeypatch.setattr(hardware, "resident_memory_bytes", lambda: resident)
    figures = memory._cpu_figures({"asked": 7})
    assert (figures["allocated_bytes"], figures["others_bytes"]) == (rest, others)
    assert (figures["free_bytes"], figures["total_bytes"], figures["asked_bytes"]) == (200, 1000, 7)
