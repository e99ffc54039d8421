"""Counts the allocations, bytes and operations of a pass of a model, on tensors without data.

The real model runs on the meta device, where operators compute only shapes, inside a dispatch mode that sees each
operator. Models that cannot run on plain meta tensors run on PyTorch's fake tensors. Storages count from their creation
until Python frees them, including those that autograd keeps.

The timeline has the allocations in their order, to which the memory of an engine can be added. A change allocates or
frees memory. Position `p` is the moment after the first `p` changes.
"""

import logging
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

from paratune.errors import ParatuneError

CUDA_ROUNDING = 512
"""Bytes to a multiple of which PyTorch's allocator of CUDA memory rounds every request (kMinBlockSize)."""
_NO_KERNEL = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "resize_"),
        *("unsafe_split_with_sizes", "_unsafe_view"),
    }
)
"""Operators besides views that launch no kernel."""
T = TypeVar("T")
_IS_TRACING = "is_tracing"
"""Name of a function that transformers calls before it reads the values of a mask; it is true for fake tensors, but not
for meta tensors, and `on_meta` makes it true for these."""


class Mark(NamedTuple):
    """An event between two changes."""

    position: int
    kind: str
    """forward or backward (a block begins), forward_end (a block ends), inner_end (the backward pass of all blocks has
    ended), gradient (the gradient of a parameter is complete), or use (a module with the parameter begins, in forward
    or backward)."""
    number: int
    """Number of the block, or of the parameter."""


class Delta(NamedTuple):
    """Memory that an engine allocates, or frees if it is negative."""

    position: int
    term: str
    num_bytes: int


@dataclass(frozen=True)
class Timeline:
    """Allocations of a traced forward and backward pass."""

    sizes: tuple[int, ...] = ()
    """Bytes of each allocation, not rounded."""
    changes: tuple[int, ...] = ()
    """Number n of an allocation when it is made, and its complement (~n) when it is freed."""
    marks: tuple[Mark, ...] = ()
    num_forward: int = 0
    """Changes of the forward pass."""
    gradients: Mapping[int, int] = field(default_factory=dict)
    """Number of the parameter, by the number of the allocation of its gradient."""
    casts: frozenset[int] = frozenset()
    """Allocations of weights in the lower precision of autocast."""

    def positions(self, kind: str) -> dict[int, int]:
        """Return the position of the last mark of a kind for each block or parameter."""
        return {mark.number: mark.position for mark in self.marks if mark.kind == kind}

    def level(self, rounding: int, *, without: Collection[int] = ()) -> np.ndarray:
        """Return the allocated bytes before the first change and after each change.

        Every allocation is rounded up to a multiple of `rounding` bytes; those with numbers in `without` are left out.
        """
        sizes = np.array([rounded(size, rounding) for size in self.sizes], dtype=np.int64)
        sizes[list(without)] = 0
        changes = np.array(self.changes, dtype=np.int64)
        made = changes >= 0
        steps = np.where(made, sizes[np.where(made, changes, ~changes)], -sizes[np.where(made, changes, ~changes)])
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(steps)])


def rounded(num_bytes: int, rounding: int) -> int:
    """Return a size rounded up as by an allocator."""
    return -(-num_bytes // rounding) * rounding


def find_fullest(level: np.ndarray, deltas: Sequence[Delta]) -> tuple[int, dict[str, int]]:
    """Return the position at which the sum of allocations and engine memory is largest.

    Changes of engines at equal positions happen in their order, after the change that leads to the position.

    Returns:
        The position, and the memory of engines at this moment, in bytes by term.
    """
    order = sorted(range(len(deltas)), key=lambda at: deltas[at].position)
    positions = np.array([deltas[at].position for at in order], dtype=np.int64)
    sums = np.concatenate([[0], np.cumsum([deltas[at].num_bytes for at in order])]).astype(np.int64)
    # After each change: all deltas of earlier positions; after each delta: the level of its position.
    after_changes = level + sums[np.searchsorted(positions, np.arange(len(level)), side="left")]
    after_deltas = level[positions] + sums[1:] if len(deltas) else np.array([-1])
    position, delta = int(after_changes.argmax()), int(after_deltas.argmax())
    if after_deltas[delta] > after_changes[position]:
        position, num = int(positions[delta]), delta + 1
    else:
        num = int(np.searchsorted(positions, position, side="left"))
    taken: dict[str, int] = {}
    for at in order[:num]:
        taken[deltas[at].term] = taken.get(deltas[at].term, 0) + deltas[at].num_bytes
    return position, taken


class Operation(NamedTuple):
    """The inputs of the time of one kernel."""

    flops: int
    """Floating-point operations of a matrix product; 0 for everything else."""
    num_bytes: int
    """Bytes of its inputs and outputs together."""
    dtype: str
    """Of its first output, such as float32 or bfloat16."""
    name: str
    """Of its operator, such as addmm or native_layer_norm."""
    rows: int = 0
    """Of the output of a matrix product, all of its dimensions but the last; 0 for everything else."""
    columns: int = 0
    """The last dimension of that output."""


@dataclass
class Phase:
    """The operations between two marks of a trace."""

    kernels: list[Operation] = field(default_factory=list)
    """In their order."""

    @cached_property
    def operations(self) -> Counter[Operation]:
        """How often each kernel ran; read it only after the phase."""
        return Counter(self.kernels)


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records allocations, and counts operations in the current phase.

    Args:
        rounding: Every allocation is rounded up to a multiple of so many bytes: `CUDA_ROUNDING`, or 1.
    """

    def __init__(self, rounding: int = CUDA_ROUNDING) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rounding = rounding
        self._alive: dict[int, tuple[int, int]] = {}
        """Rounded bytes of each storage, and its number in the timeline; -1 if it existed before."""
        self.sizes: list[int] = []
        self.changes: list[int] = []
        self.marks: list[Mark] = []
        """All three as those of a `Timeline`."""
        self.live_bytes = 0
        self.peak_bytes = 0
        """Most bytes alive at once since a `recording` began, those from before included."""
        self.phase = Phase()

    @contextmanager
    def recording(self) -> Iterator[Phase]:
        """Count the operations of the block in a separate phase."""
        before, self.phase = self.phase, Phase()
        self.peak_bytes = self.live_bytes
        try:
            yield self.phase
        finally:
            self.phase = before

    def hold(self, tensor: Tensor, *, is_base: bool = False) -> None:
        """Count the storage of a tensor once, until it is freed; `is_base` is whether it existed before the trace."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        number = -1
        if not is_base:
            number = len(self.sizes)
            self.sizes.append(storage.nbytes())
            self.changes.append(number)
        num_bytes = rounded(storage.nbytes(), self._rounding)
        self._alive[key] = num_bytes, number
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        # PyTorch keeps one Python object for each storage, and finalizes it when the storage is freed. A later storage
        # may have the same address, which is the key.
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        num_bytes, number = self._alive.pop(key, (0, -1))
        self.live_bytes -= num_bytes
        if number >= 0:
            self.changes.append(~number)

    def mark(self, kind: str, number: int) -> None:
        """Add a mark at the current position of the timeline; see `Mark`."""
        self.marks.append(Mark(len(self.changes), kind, number))

    def numbers(self, tensors: Iterable[Tensor]) -> list[int]:
        """Return the number of each tensor's storage in the timeline, -1 if it is not in it."""
        return [self._alive.get(tensor.untyped_storage()._cdata, (0, -1))[1] for tensor in tensors]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        tensors = [tensor for tensor in tree_iter(outputs) if isinstance(tensor, Tensor)]
        for tensor in tensors:
            self.hold(tensor)
        packet = func._overloadpacket
        inputs = [tensor for tensor in tree_iter((args, kwargs)) if isinstance(tensor, Tensor)]
        if packet.__name__ == "embedding":
            inputs[0] = tensors[0]  # of its table it reads as many rows as it writes
        # Operators on lists, such as _foreach_copy_, return nothing: they change their inputs.
        touches = tensors or (inputs and func._schema.is_mutable)
        if touches and not func.is_view and packet.__name__ not in _NO_KERNEL:
            count = flop_registry.get(packet)
            flops = int(count(*args, **kwargs, out_val=outputs)) if count is not None else 0
            self.count(flops, [*tensors, *inputs], packet.__name__)
        return outputs

    def count(self, flops: int, tensors: Sequence[Tensor], name: str) -> None:
        """Count a kernel by the name of its operator; `tensors` are read and written, the first output first."""
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        dtype = str(tensors[0].dtype).removeprefix("torch.")
        columns = tensors[0].shape[-1] if flops else 0
        rows = tensors[0].numel() // columns if columns else 0
        self.phase.kernels.append(Operation(flops, num_bytes, dtype, name, rows, columns))


class Saved:
    """The storages that autograd keeps for the backward pass (activations), each once.

    Args:
        known: Tensors that exist before and do not count: weights, buffers, the batch.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self.storages: dict[int, Any] = {}
        """They are held, so that no other one gets the address of one of them, which is the key."""
        self.num_bytes = 0

    def pack(self, tensor: Tensor) -> Tensor:
        """Count a tensor that a forward pass saves: the first function of PyTorch's `saved_tensors_hooks`."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known and storage._cdata not in self.storages:
            self.storages[storage._cdata] = storage
            self.num_bytes += storage.nbytes()
        # An operation that saves its own output would be a reference cycle, which nothing collects.
        return tensor.detach()


# Fake tensors log the traceback of each failure; `plan` reports the failure in words, and goes on with a formula.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)


def on_meta(run: Callable[[], T]) -> T:
    """Return the result of `run`, which must create its tensors itself and may be called twice.

    Plain meta tensors take half the time of fake tensors for the same operations. Fake tensors also keep values from
    which they were created, and work with tensors of other devices: they are tried if plain meta tensors fail.

    Raises:
        Exception: The model can run on neither.
    """
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("transformers.")]
    originals = [(module, vars(module)[_IS_TRACING]) for module in modules if _IS_TRACING in vars(module)]
    with torch.device("meta"):
        try:
            for module, original in originals:
                patched = partial(lambda ask, tensor=None: getattr(tensor, "is_meta", False) or ask(tensor), original)
                setattr(module, _IS_TRACING, patched)
            return run()
        except ParatuneError:
            raise
        except Exception:  # the model's code may raise anything for tensors without values
            pass
        finally:
            for module, original in originals:
                setattr(module, _IS_TRACING, original)
        with FakeTensorMode(allow_non_fake_inputs=True):
            return run()
