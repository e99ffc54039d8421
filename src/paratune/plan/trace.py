"""What a pass of a model allocates, moves and computes: counted operation by operation, on tensors without data.

The real model runs on the meta device, where operators compute shapes and nothing else; a dispatch mode sees each of
them. Storages are followed until Python lets go of them, as PyTorch's allocator would; so are the tensors that autograd
keeps.
"""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

from paratune.plan.timeline import Mark, Timeline, rounded

CUDA_ROUNDING = 512
"""Bytes to a multiple of which PyTorch's allocator of CUDA memory rounds every request (kMinBlockSize)."""
_NO_KERNEL = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "resize_"),
        *("unsafe_split_with_sizes", "_unsafe_view"),
    }
)
"""Operators beside views that launch nothing."""


class Operation(NamedTuple):
    """What decides how long one kernel takes."""

    flops: int
    """Floating-point operations of a matrix product; 0 for everything else."""
    num_bytes: int
    """Bytes of its inputs and outputs together."""
    dtype: str
    """Of its first output, such as float32 or bfloat16."""
    name: str
    """Of its operator, such as addmm or native_layer_norm."""


@dataclass
class Phase:
    """What happened between two marks of a trace."""

    kernels: list[Operation] = field(default_factory=list)
    """In their order."""

    @cached_property
    def operations(self) -> Counter[Operation]:
        """How often each kernel ran; to be asked when all have."""
        return Counter(self.kernels)

    @property
    def flops(self) -> int:
        return sum(operation.flops * count for operation, count in self.operations.items())

    @property
    def num_bytes(self) -> int:
        """Bytes that all kernels read and write, if none stays in a cache."""
        return sum(operation.num_bytes * count for operation, count in self.operations.items())

    @property
    def num_kernels(self) -> int:
        return len(self.kernels)


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows what is alive, and counts operations into the phase that is open.

    Args:
        rounding: Bytes to a multiple of which every allocation is rounded: `CUDA_ROUNDING`, or 1.
    """

    def __init__(self, rounding: int = CUDA_ROUNDING) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rounding = rounding
        self._alive: dict[int, tuple[int, int]] = {}
        """Rounded bytes of each storage, and its number in the timeline; -1 of what was there before."""
        self._sizes: list[int] = []
        self._changes: list[int] = []
        self._marks: list[Mark] = []
        self.live_bytes = 0
        self.peak_bytes = 0
        """Most bytes alive at once since a `recording` began, all that was there before included."""
        self.phase = Phase()

    @contextmanager
    def recording(self) -> Iterator[Phase]:
        """Give what runs inside a phase of its own."""
        before, self.phase = self.phase, Phase()
        self.peak_bytes = self.live_bytes
        try:
            yield self.phase
        finally:
            self.phase = before

    def hold(self, tensor: Tensor, *, is_base: bool = False) -> None:
        """Count a tensor's storage as alive, once, until it is gone.

        Args:
            tensor: Any.
            is_base: It was there before, and is not in the timeline.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        number = -1
        if not is_base:
            number = len(self._sizes)
            self._sizes.append(storage.nbytes())
            self._changes.append(number)
        num_bytes = rounded(storage.nbytes(), self._rounding)
        self._alive[key] = num_bytes, number
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        num_bytes, number = self._alive.pop(key, (0, -1))
        self.live_bytes -= num_bytes
        if number >= 0:
            self._changes.append(~number)

    def mark(self, kind: str, number: int) -> None:
        """Note in the timeline that something happens now; see `Mark`."""
        self._marks.append(Mark(len(self._changes), kind, number))

    def numbers(self, tensors: Iterable[Tensor]) -> list[int]:
        """Return the number in the timeline of each tensor's storage, -1 of those that are not in it."""
        return [self._alive.get(each.untyped_storage()._cdata, (0, -1))[1] for each in tensors]

    @property
    def num_changes(self) -> int:
        return len(self._changes)

    def timeline(self, num_forward: int, gradients: Mapping[int, int], casts: Iterable[int]) -> Timeline:
        """Return what happened until now."""
        lists = tuple(self._sizes), tuple(self._changes), tuple(self._marks)
        return Timeline(*lists, num_forward, dict(gradients), frozenset(casts))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        tensors = [each for each in tree_iter(outputs) if isinstance(each, Tensor)]
        for tensor in tensors:
            self.hold(tensor)
        packet = func._overloadpacket
        inputs = [each for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)]
        # Operators on lists, such as _foreach_copy_, return nothing: they change their inputs.
        touches = tensors or (inputs and func._schema.is_mutable)
        if touches and not func.is_view and packet.__name__ not in _NO_KERNEL:
            count = flop_registry.get(packet)
            flops = int(count(*args, **kwargs, out_val=outputs)) if count is not None else 0
            self.count(flops, [*tensors, *inputs], packet.__name__)
        return outputs

    def count(self, flops: int, tensors: Sequence[Tensor], name: str) -> None:
        """Count a kernel into the open phase.

        Args:
            flops: Its floating-point operations.
            tensors: What it reads and writes, the first output first.
            name: Of its operator.
        """
        num_bytes = sum(each.numel() * each.element_size() for each in tensors)
        dtype = str(tensors[0].dtype).removeprefix("torch.")
        self.phase.kernels.append(Operation(flops, num_bytes, dtype, name))


class Saved:
    """The storages that autograd keeps for the backward pass, each once: activations, as the word is used.

    Args:
        known: Tensors that are there anyhow and do not count: weights, buffers, the batch.
    """

    def __init__(self, known: Iterator[Tensor]) -> None:
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._found: dict[int, tuple[int, Any]] = {}
        self.num_bytes = 0

    @contextmanager
    def watching(self) -> Iterator["Saved"]:
        """Look at what the forward passes inside save."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, _same):
            yield self

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known and storage._cdata not in self._found:
            # The storage is held as well, so that no other one gets its address.
            self._found[storage._cdata] = storage.nbytes(), storage
            self.num_bytes += storage.nbytes()
        return tensor.detach()  # an operation that saves its own output would hold itself, which nothing collects

    def forget(self) -> None:
        """Let go of the storages; the count stays."""
        self._found.clear()


def _same(tensor: Tensor) -> Tensor:
    return tensor
