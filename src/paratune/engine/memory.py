"""Detects out-of-memory errors, and measures what used the memory when one happened."""

import gc
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from paratune import hardware
from paratune.base.units import format_bytes
from paratune.errors import ParatuneError

_SIGNS = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""Texts of libraries that raise a plain RuntimeError when memory runs out."""
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_AMOUNT = r"([\d.]+) (bytes|[KMGT]iB)"
_CUDA_MESSAGE = {
    "asked": rf"Tried to allocate {_AMOUNT}",
    "total": rf"total capacity of {_AMOUNT}",
    "free": rf"of which {_AMOUNT} is free",
    "allocated": rf"{_AMOUNT} is allocated by PyTorch",
    "unallocated": rf"{_AMOUNT} is reserved by PyTorch but unallocated",
}
"""Figures in the message of c10/cuda/CUDACachingAllocator.cpp, measured at the time of the failure."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, on a device or on the host; also if it is only the cause of the error."""
    if isinstance(error, ParatuneError):
        return False
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS):
        return True
    # torch.distributed.pipelining raises its own error from the error of a stage.
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)


@dataclass(frozen=True)
class MemoryUse:
    """The use of a device's memory, in bytes; None if unknown."""

    device: str
    """cpu, or the GPU's name."""
    weights_bytes: int
    """Parameters and buffers of this rank: shards, and gathered weights."""
    gradients_bytes: int
    optimizer_bytes: int
    """Moments, and the optimizer's own copies of weights."""
    rest_bytes: int | None
    """Other memory of this process: activations, and buffers such as those of communication."""
    unallocated_bytes: int | None
    """Reserved by PyTorch but not in use, because of fragmentation (GPU only)."""
    others_bytes: int | None
    """Other processes, the driver and libraries (GPU), or the rest of the machine (CPU)."""
    free_bytes: int | None
    total_bytes: int | None
    """Memory of the GPU; on a CPU of the machine or the container."""
    asked_bytes: int | None = None
    """Size of the request that failed."""

    def text(self) -> str:
        """Return all figures in one line."""
        parts = {
            "weights": self.weights_bytes,
            "gradients": self.gradients_bytes,
            "optimizer states": self.optimizer_bytes,
            "activations and buffers": self.rest_bytes,
            "reserved but unallocated": self.unallocated_bytes,
            "other processes and the driver" if self.device != "cpu" else "the rest of the machine": self.others_bytes,
            "free": self.free_bytes,
        }
        total = f" of {format_bytes(self.total_bytes)}" if self.total_bytes else ""
        return f"memory{total}: " + ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())


def memory_use(model: nn.Module | None, device: torch.device, error: BaseException | None = None) -> MemoryUse:
    """Return the use of the memory of `device` now, or when `error` was raised, by PyTorch's figures in its message."""
    parameters = list(model.parameters()) if model is not None else []
    buffers = list(model.buffers()) if model is not None else []
    owned = {
        "weights_bytes": _local_bytes([*parameters, *buffers]),
        "gradients_bytes": _local_bytes(p.grad for p in parameters if p.grad is not None),
        "optimizer_bytes": _optimizer_bytes(parameters),
    }
    reported = _parse_message(_messages(error))
    figures = _cuda_figures(device, reported) if device.type == "cuda" else _cpu_figures(reported)
    allocated = figures.pop("allocated_bytes")
    rest = None if allocated is None else max(0, allocated - sum(owned.values()))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return MemoryUse(device=name, **owned, rest_bytes=rest, **figures)


def _cuda_figures(device: torch.device, reported: dict[str, int]) -> dict[str, Any]:
    free, total = torch.cuda.mem_get_info(device)
    allocated = reported.get("allocated", torch.cuda.memory_allocated(device))
    unallocated = reported.get("unallocated", torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    free, total = reported.get("free", free), reported.get("total", total)
    return {
        "allocated_bytes": allocated,
        "unallocated_bytes": unallocated,
        "others_bytes": max(0, total - free - allocated - unallocated),
        "free_bytes": free,
        "total_bytes": total,
        "asked_bytes": reported.get("asked"),
    }


def _cpu_figures(reported: dict[str, int]) -> dict[str, Any]:
    total, free = hardware.total_memory_bytes(), hardware.available_memory_bytes()
    resident = hardware.resident_memory_bytes()  # None on some systems
    return {
        "allocated_bytes": resident,
        "unallocated_bytes": None,
        "others_bytes": None if resident is None else max(0, total - free - resident),
        "free_bytes": free,
        "total_bytes": total,
        "asked_bytes": reported.get("asked"),
    }


def _messages(error: BaseException | None) -> str:
    """Return the texts of an error and its causes."""
    return "" if error is None else f"{error}\n{_messages(error.__cause__)}"


def _parse_message(message: str) -> dict[str, int]:
    """Return the figures in an allocator's message."""
    figures = {}
    for name, pattern in _CUDA_MESSAGE.items():
        if match := re.search(pattern, message):
            figures[name] = round(float(match.group(1)) * _UNITS[match.group(2)])
    if match := re.search(r"you tried to allocate (\d+) bytes", message):
        figures["asked"] = int(match.group(1))
    return figures


def _optimizer_bytes(parameters: Iterable[nn.Parameter]) -> int:
    """Return the bytes of the states of all optimizers in this process.

    All objects are searched for optimizers, because a strategy may wrap an optimizer in another object.
    """
    model = {id(parameter) for parameter in parameters}
    tensors_by_id: dict[int, Any] = {}
    for optimizer in [found for found in gc.get_objects() if issubclass(type(found), Optimizer)]:
        # Before the first step of a wrapped optimizer there may be no states at all.
        states = [state for state in getattr(optimizer, "state", {}).values() if isinstance(state, dict)]
        values = [value for state in states for value in state.values()]
        own = [p for group in getattr(optimizer, "param_groups", []) for p in group["params"] if id(p) not in model]
        tensors_by_id.update({id(value): value for value in [*values, *own] if isinstance(value, Tensor)})
    return _local_bytes(tensors_by_id.values())


def _local_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.to_local().nbytes if isinstance(tensor, DTensor) else tensor.nbytes for tensor in tensors)


def peak_memory(device: torch.device) -> int | None:
    """Return this process's peak memory in bytes: allocated on the GPU, or resident on the host."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else hardware.peak_memory_bytes()


def free_memory(device: torch.device) -> None:
    """Free the memory of work before the training, and reset peaks: they must be those of the training."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    hardware.reset_peak_memory()
