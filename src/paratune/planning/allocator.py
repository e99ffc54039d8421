"""PyTorch's caching allocator, simulated: the memory that it reserves for the allocations of a training.

The allocator takes memory from CUDA in segments, divides them, and joins free neighbours. Memory that it cannot use
again is fragmentation: between gradients and moments that are allocated among activations, and in segments of 20 MiB
with a rest that is too small for another weight.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paratune.base.units import MIB
from paratune.planning.trace import Timeline, rounded

_MIN_BLOCK = 512
_SMALL_SIZE, _SMALL_SEGMENT = MIB, 2 * MIB
"""Allocations of at most 1 MiB share segments of 2 MiB."""
_MIN_LARGE, _LARGE_SEGMENT = 10 * MIB, 20 * MIB
"""Other allocations below 10 MiB share segments of 20 MiB."""
_SEGMENT_ROUNDING = 2 * MIB
"""A larger allocation has its own segment, rounded up to a multiple of it.

Source of these constants and rules: PyTorch, c10/cuda/CUDACachingAllocator.cpp (kMinBlockSize, kSmallSize,
kSmallBuffer, kMinLargeAlloc, kLargeBuffer, kRoundLarge; get_free_block, should_split), without
`PYTORCH_CUDA_ALLOC_CONF`. Compared with measurements of PyTorch 1.10, 2.0 and 2.3: benchmarks/plan_published_202611.md.
"""
NUM_STEPS = 3
"""Simulated steps. The moments exist from the second step on; what the allocator reserves changes little afterwards."""


class Address(NamedTuple):
    """A block: number of its segment, and bytes from the beginning of the segment."""

    segment: int
    offset: int


class _Block(NamedTuple):
    size: int
    is_free: bool


class CachingAllocator:
    """Allocations on one stream of one device, without memory."""

    def __init__(self) -> None:
        self.reserved = 0
        """Bytes of all segments; they are never given back to CUDA."""
        self.allocated = 0
        self.most_allocated = 0
        self._num_segments = 0
        self._blocks: dict[Address, _Block] = {}
        self._by_end: dict[Address, Address] = {}
        """Each block by the address behind it."""
        self._free: dict[bool, list[tuple[int, Address]]] = {True: [], False: []}
        """Free blocks in ascending order, in small segments and in others."""
        self._small_segments: set[int] = set()

    def allocate(self, num_bytes: int) -> Address:
        """Return the block of an allocation: the smallest free one that is large enough, or of a new segment."""
        size = rounded(max(1, num_bytes), _MIN_BLOCK)
        is_small = size <= _SMALL_SIZE
        pool = self._free[is_small]
        index = bisect_left(pool, (size, Address(-1, 0)))
        if index < len(pool):
            found, address = pool.pop(index)
        else:  # a new segment
            found = _SMALL_SEGMENT if is_small else _LARGE_SEGMENT
            if size >= _MIN_LARGE:
                found = rounded(size, _SEGMENT_ROUNDING)
            self.reserved += found
            self._num_segments += 1
            address = Address(self._num_segments, 0)
            if is_small:
                self._small_segments.add(address.segment)
        rest = found - size
        if rest >= _MIN_BLOCK if is_small else rest > _SMALL_SIZE:
            self._put(Address(address.segment, address.offset + size), rest, is_free=True)
        else:  # too small for another allocation: it stays a part of this block
            size = found
        self._put(address, size)
        self.allocated += size
        self.most_allocated = max(self.most_allocated, self.allocated)
        return address

    def free(self, address: Address) -> None:
        """Free a block, and join it with free neighbours."""
        size = self._blocks[address].size
        self.allocated -= size
        pool = self._free[address.segment in self._small_segments]
        behind = Address(address.segment, address.offset + size)
        following = self._blocks.get(behind)
        if following is not None and following.is_free:
            pool.pop(bisect_left(pool, (following.size, behind)))
            del self._blocks[behind]
            size += following.size
        before = self._by_end.get(address)
        if before is not None and self._blocks[before].is_free:
            pool.pop(bisect_left(pool, (self._blocks[before].size, before)))
            del self._blocks[address], self._by_end[address]
            address, size = before, size + self._blocks[before].size
        self._put(address, size, is_free=True)

    def _put(self, address: Address, size: int, *, is_free: bool = False) -> None:
        self._blocks[address] = _Block(size, is_free)
        self._by_end[Address(address.segment, address.offset + size)] = address
        if is_free:
            insort(self._free[address.segment in self._small_segments], (size, address))


@dataclass(frozen=True)
class StepAllocations:
    """The allocations of the steps of a process with the whole model; all numbers are bytes."""

    timeline: Timeline
    """Of a forward and backward pass."""
    weights: Sequence[int]
    """Weights, buffers and everything else that exists before the first step, in its order."""
    gradients: Sequence[int] = ()
    """Memory of gradients that exists all the time (DDP's buckets), into which each gradient is copied."""
    batch: Sequence[int] = ()
    """Tensors of all micro-batches of a step."""
    moments: Sequence[int] = ()
    """States of the optimizer; the first update allocates them."""
    update: Sequence[int] = ()
    """Temporary memory of an update, which exists at the same time."""
    workspace: int = 0
    """Workspace of cuBLAS for one thread; the forward and the backward pass have one each."""
    accumulates: bool = False
    """Whether a step has several micro-batches; two are simulated."""
    keeps_gradients: bool = False
    """Whether gradients are set to zero after a step, instead of being freed."""


def reserve(step: StepAllocations) -> CachingAllocator:
    """Return the allocator after `NUM_STEPS` steps: with the largest allocated and the reserved memory."""
    allocator = CachingAllocator()
    for size in (*step.weights, *step.gradients):
        allocator.allocate(size)
    # Positions in the first pass before which the workspaces are allocated.
    workspaces = [0, step.timeline.num_forward] if step.workspace else []
    kept: dict[int, Address] = {}
    for number in range(NUM_STEPS):
        batch = [allocator.allocate(size) for size in step.batch]
        for _ in range(2 if step.accumulates else 1):
            _run_passes(step, allocator, kept, workspaces)
            workspaces = []
        if number == 0:
            for size in step.moments:
                allocator.allocate(size)
        update = [allocator.allocate(size) for size in step.update]
        for address in (*update, *batch):
            allocator.free(address)
        if not step.keeps_gradients:
            for address in kept.values():
                allocator.free(address)
            kept.clear()
    return allocator


def _run_passes(
    step: StepAllocations, allocator: CachingAllocator, kept: dict[int, Address], workspaces: Sequence[int]
) -> None:
    """Simulate a forward and a backward pass; `kept` are existing gradients by the number of their parameter."""
    timeline, complete = step.timeline, step.timeline.positions("gradient")
    live: dict[int, Address] = {}
    ends: dict[int, list[int]] = {}
    for position, change in enumerate(timeline.changes):
        if position in workspaces:
            allocator.allocate(step.workspace)
        for number in ends.pop(position, ()):
            allocator.free(live.pop(number))
        if change < 0:
            if ~change in live:
                allocator.free(live.pop(~change))
            continue
        live[change] = allocator.allocate(timeline.sizes[change])
        parameter = timeline.gradients.get(change)
        if parameter is None:
            continue
        if parameter in kept or (step.gradients and not step.accumulates):
            # It is added to the gradient of earlier micro-batches, or copied into its bucket.
            ends.setdefault(complete[parameter], []).append(change)
        else:
            kept[parameter] = live.pop(change)
    for address in live.values():
        allocator.free(address)
