"""Running out of memory: how it is known, and who owned the memory when it happened."""

import gc
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
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
"""What libraries say that raise a plain RuntimeError for it."""
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_AMOUNT = r"([\d.]+) (bytes|[KMGT]iB)"
_CUDA_MESSAGE = {
    "asked": rf"Tried to allocate {_AMOUNT}",
    "total": rf"total capacity of {_AMOUNT}",
    "free": rf"of which {_AMOUNT} is free",
    "allocated": rf"{_AMOUNT} is allocated by PyTorch",
    "unallocated": rf"{_AMOUNT} is reserved by PyTorch but unallocated",
}
"""From c10/cuda/CUDACachingAllocator.cpp: at the moment of the failure, which later figures no longer are."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, on a device or on the host; also of what a library made of such an error."""
    if isinstance(error, ParatuneError):
        return False
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS):
        return True
    # torch.distributed.pipelining raises an error of its own from that of a stage.
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)


@dataclass(frozen=True)
class MemoryUse:
    """Who owns the memory of a device, in bytes; None where it is not known."""

    device: str
    """cpu, or the GPU's name."""
    weights_bytes: int
    """Parameters and buffers, as this rank holds them: shards, and what is gathered of them."""
    gradients_bytes: int
    optimizer_bytes: int
    """Moments, and the optimizer's own copies of weights."""
    rest_bytes: int | None
    """What else this process allocated: activations, and buffers such as those of communication."""
    unallocated_bytes: int | None
    """Reserved by PyTorch and not in use: fragments (GPU only)."""
    others_bytes: int | None
    """Other processes, and what the driver and libraries take (GPU), or the rest of the machine (CPU)."""
    free_bytes: int | None
    total_bytes: int | None
    """Of the GPU; on a CPU what the machine or the container has."""
    asked_bytes: int | None = None
    """Of the request that failed."""

    @property
    def states_bytes(self) -> int:
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """Return one line."""
        parts = {
            "weights": self.weights_bytes,
            "gradients": self.gradients_bytes,
            "optimizer states": self.optimizer_bytes,
            "activations and buffers": self.rest_bytes,
            "reserved but unallocated": self.unallocated_bytes,
            "other processes and the driver" if self.device != "cpu" else "the rest of the machine": self.others_bytes,
            "free": self.free_bytes,
        }
        of = f" of {format_bytes(self.total_bytes)}" if self.total_bytes else ""
        return f"memory{of}: " + ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())


def memory_use(model: nn.Module | None, device: torch.device, error: BaseException | None = None) -> MemoryUse:
    """Return who owns the memory of `device` now, or when `error` was raised.

    Args:
        model: Its parameters as this rank holds them; None before there is one.
        device: Where the model computes.
        error: What was raised; its message holds PyTorch's own figures of that moment.
    """
    parameters = list(model.parameters()) if model is not None else []
    buffers = list(model.buffers()) if model is not None else []
    owned = {
        "weights_bytes": _local_bytes([*parameters, *buffers]),
        "gradients_bytes": _local_bytes(p.grad for p in parameters if p.grad is not None),
        "optimizer_bytes": _optimizer_bytes(parameters),
    }
    said = _said(_messages(error))
    figures = _cuda_figures(device, said) if device.type == "cuda" else _cpu_figures(said)
    allocated = figures.pop("allocated_bytes")
    rest = None if allocated is None else max(0, allocated - sum(owned.values()))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return MemoryUse(device=name, **owned, rest_bytes=rest, **figures)


def _cuda_figures(device: torch.device, said: dict[str, int]) -> dict[str, Any]:
    free, total = torch.cuda.mem_get_info(device)
    allocated = said.get("allocated", torch.cuda.memory_allocated(device))
    unallocated = said.get("unallocated", torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    free, total = said.get("free", free), said.get("total", total)
    return {
        "allocated_bytes": allocated,
        "unallocated_bytes": unallocated,
        "others_bytes": max(0, total - free - allocated - unallocated),
        "free_bytes": free,
        "total_bytes": total,
        "asked_bytes": said.get("asked"),
    }


def _cpu_figures(said: dict[str, int]) -> dict[str, Any]:
    total, free = hardware.total_memory_bytes(), hardware.available_memory_bytes()
    resident = hardware.resident_memory_bytes()  # of which not every system says anything
    return {
        "allocated_bytes": resident,
        "unallocated_bytes": None,
        "others_bytes": None if resident is None else max(0, total - free - resident),
        "free_bytes": free,
        "total_bytes": total,
        "asked_bytes": said.get("asked"),
    }


def _messages(error: BaseException | None) -> str:
    """Return the text of an error and of those that it was made of."""
    return "" if error is None else f"{error}\n{_messages(error.__cause__)}"


def _said(message: str) -> dict[str, int]:
    """Return the figures in an allocator's message."""
    found = {}
    for name, pattern in _CUDA_MESSAGE.items():
        if match := re.search(pattern, message):
            found[name] = round(float(match.group(1)) * _UNITS[match.group(2)])
    if match := re.search(r"you tried to allocate (\d+) bytes", message):
        found["asked"] = int(match.group(1))
    return found


def _optimizer_bytes(parameters: Iterable[nn.Parameter]) -> int:
    """Return the bytes of the states of all optimizers in this process.

    They are looked up among all objects: some strategies wrap theirs in others that the engine does not know.
    """
    model = {id(parameter) for parameter in parameters}
    held: dict[int, Any] = {}
    for optimizer in [each for each in gc.get_objects() if issubclass(type(each), Optimizer)]:
        # Before the first step of a wrapped optimizer there may be no states at all.
        states = [value for state in getattr(optimizer, "state", {}).values() for value in _values(state)]
        own = [p for group in getattr(optimizer, "param_groups", []) for p in group["params"] if id(p) not in model]
        held.update({id(value): value for value in [*states, *own] if isinstance(value, Tensor)})
    return _local_bytes(held.values())


def _values(state: Any) -> Iterable[Any]:
    return state.values() if isinstance(state, dict) else ()


def _local_bytes(tensors: Iterable[Tensor]) -> int:
    local = (each.to_local() if isinstance(each, DTensor) else each for each in tensors)
    return sum(each.numel() * each.element_size() for each in local)


def peak_memory_of(device: torch.device) -> int | None:
    """Return this process's peak memory in bytes: allocated on the GPU, or resident on the host."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else hardware.peak_memory_bytes()
