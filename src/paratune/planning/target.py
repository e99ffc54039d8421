"""The device that a calibration measures: its clock, and the sizes of the measured operations.

On a GPU the sizes depend on the device. An operation must take longer than its launch, and must use memory, not only
the L2 cache: the largest operation of each kind takes at least 100 us on the fastest GPU of `devices`, and the largest
tensors are several times the L2 cache.
"""

from dataclasses import dataclass
from typing import Any

import torch

from paratune.planning.clock import CallClock, EventClock, HostCallClock


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measured operations; each sequence is ascending."""

    products: tuple[tuple[int, int, int], ...]
    """Tokens, input and output features of linear layers."""
    num_heads: int
    """Heads of all rows together, 64 wide."""
    lengths: tuple[int, ...]
    """Tokens of a row, in the products of attention."""
    numbers: tuple[int, ...]
    """Elements of the tensors of elementwise operations; multiples of 256."""
    num_ids: int
    """Tokens that an embedding looks up."""
    widths: tuple[int, ...]
    """Widths of embeddings."""
    cold: tuple[int, int, int, int]
    """Tokens, input and output features of linear layers, and their number: together they exceed the caches."""
    weights: tuple[int, ...]
    """Elements of the updated weights; one is as large as an embedding."""


ON_CPU = Sizes(
    products=(
        (128, 128, 128),
        (256, 256, 256),
        (512, 256, 1024),
        (512, 512, 2048),
        (1024, 768, 768),
        (1024, 768, 3072),
    ),
    num_heads=48,
    lengths=(32, 64, 128, 256, 384),
    numbers=(1 << 14, 1 << 16, 1 << 18, 1 << 21, 1 << 23),
    num_ids=1024,
    # glibc takes memory of 32 MiB and more from the system for each call, which costs a page fault per 4 KiB: the
    # gradient of a table 256 wide has 30 MiB, of one 288 wide 34 MiB.
    widths=(64, 256, 288, 768),
    cold=(64, 768, 3072, 16),
    weights=(1 << 23, *(1 << 18,) * 16),
)
_L2_MULTIPLE = 8
"""The largest tensors are larger than the L2 cache by this factor."""
_LEAST_NUMBERS = 1 << 26
"""256 MiB in float32, if the L2 cache is small or unknown."""
_MEMORY_SHARE = 1 / 16
"""Largest share of the free memory for one tensor: up to six are alive at a time."""


def sizes_on_gpu(*, num_multiprocessors: int, l2_bytes: int, memory_bytes: int) -> Sizes:
    """Return sizes for a GPU.

    The largest linear layer has 128 tokens for each multiprocessor, 1024 features in and 4096 out: 3.2 GFLOP of its
    three products, 200 us of a B200's dense peak in bf16 and more on all others.

    The L2 cache is 0 where it is not known; `memory_bytes` are free, at least 1 GiB.
    """
    tokens = 1024 * -(-128 * num_multiprocessors // 1024)
    wanted = 1 << (max(_LEAST_NUMBERS, _L2_MULTIPLE * l2_bytes // 4) - 1).bit_length()
    largest = min(wanted, 1 << ((int(memory_bytes * _MEMORY_SHARE) // 4).bit_length() - 1))
    return Sizes(
        products=(
            *((tokens // part, 768, 768) for part in (16, 4)),
            *((tokens // part, 768, 3072) for part in (4, 2)),
            (tokens, 1024, 4096),
        ),
        num_heads=2 * num_multiprocessors,
        lengths=(64, 128, 256, 512),
        numbers=tuple(largest >> bits for bits in (10, 8, 6, 4, 2, 0)),
        num_ids=8192,
        widths=(256, 768, 2048),
        cold=(64, 768, 3072, 16),
        weights=(largest // 2, *(largest // 64,) * 16),
    )


@dataclass(frozen=True)
class MeasuredDevice:
    """A device with its clock and the sizes to measure."""

    device: torch.device
    clock: CallClock
    sizes: Sizes
    is_cuda: bool
    """Whether calls are put into a queue and the device has its own memory."""
    precision: str = "fp32"
    """Precision in which whole models are measured."""


def cpu_target() -> MeasuredDevice:
    """Return this process's CPU."""
    return MeasuredDevice(torch.device("cpu"), HostCallClock(), ON_CPU, is_cuda=False)


def cuda_target() -> MeasuredDevice:
    """Return the current CUDA device; its clock warms it up for a second."""
    device = torch.device("cuda", torch.cuda.current_device())
    facts: Any = torch.cuda.get_device_properties(device)
    sizes = sizes_on_gpu(
        num_multiprocessors=facts.multi_processor_count,
        l2_bytes=int(getattr(facts, "L2_cache_size", 0) or 0),
        memory_bytes=torch.cuda.mem_get_info(device)[0],
    )
    precision = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return MeasuredDevice(device, EventClock(device), sizes, is_cuda=True, precision=precision)
