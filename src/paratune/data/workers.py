"""Batches made ahead of time by worker processes: the same ones, in the same order, as without them.

PyTorch's `DataLoader` has processes, queues and page-locked memory. What is made is a function of the step alone (see
`loader.TrainBatches`), so that it does not matter which process makes it, or when.

Workers are forked from a clean process (start method `forkserver`), never from the one that trains. That one has
threads of OpenMP, gloo, tokenizers and CUDA, whose locks a fork copies as they are; NCCL and Gloo over InfiniBand are
not fork-safe (PyTorch, notes of `DistributedDataParallel`); and a fork would keep sockets of the process group and the
lock of the run folder open when the training process dies, so that nobody notices. Floor 3.
"""

import atexit
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from paratune.base.stop_signals import STOP_SIGNALS
from paratune.batch import Batch
from paratune.errors import LaunchError

Make = Callable[[int], list[Batch]]
"""Makes the batches of a step, or of whatever is counted; with workers it is pickled, through a pipe."""
_PRELOADED = ("paratune.data.workers", "paratune.data.masking", "paratune.data.window_batches")
_ALIGNMENT = 64
"""Bytes; a tensor begins at a multiple of them, as PyTorch's own allocations do."""
_GRACE_S = 1.0
"""Between what a dead worker breaks and the news of its death."""


@dataclass(frozen=True)
class Workers:
    """How many processes make batches, and how far ahead."""

    num_workers: int = 0
    """`data.num_workers`; 0 makes them in the training process, when they are wanted."""
    prefetch_factor: int = 2
    """Steps that each of them is ahead, at most."""
    pins_memory: bool = False
    """Whether batches wait in page-locked memory: they go to a GPU."""


def start_server() -> None:
    """Start the process that workers are forked from, which goes on importing PyTorch by itself; once is enough.

    Signals that ask a run to end may come to all processes of it at once, and the training process decides what they
    mean: the others never hear them.
    """
    multiprocessing.set_forkserver_preload(list(_PRELOADED))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # the line above has let two of them through again
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class BatchesAhead:
    """What `make` gives for each of some numbers, in their order; workers make it while this process works."""

    def __init__(self, make: Make, numbers: Sequence[int], workers: Workers) -> None:
        """Start the workers, if there are any to be, and let them begin.

        Raises:
            LaunchError: The process that they are forked from died meanwhile.
        """
        self._processes: list[BaseProcess] = []
        if workers.num_workers == 0 or not numbers:
            self._made: Iterator[Any] | None = map(make, numbers)
            return
        start_server()
        before = set(multiprocessing.active_children())
        with warnings.catch_warnings():
            # Where the machine has fewer cores the advice before the first step says so.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            loader: DataLoader[_Parcel] = DataLoader(
                _Made(make),
                batch_size=None,
                sampler=numbers,
                num_workers=min(workers.num_workers, len(numbers)),
                prefetch_factor=workers.prefetch_factor,
                pin_memory=workers.pins_memory,
                multiprocessing_context="forkserver",
                worker_init_fn=_begin_worker,
                # Of its own: from PyTorch's global one it would draw a number, and dropout would be another.
                generator=torch.Generator(),
            )
            atexit.register(self.close)
            try:
                self._made = iter(loader)
            except (EOFError, ConnectionError) as error:
                raise LaunchError(
                    f"the process from which {workers.num_workers} loader workers (data.num_workers) are forked died "
                    f"while they were started ({type(error).__name__}); start again with --resume, and with "
                    "data.num_workers: 0, where batches are made in the training process, should it happen again",
                    code="data.worker_died",
                    num_workers=workers.num_workers,
                ) from error
            finally:
                self._processes = sorted(set(multiprocessing.active_children()) - before, key=lambda one: one.name)

    def __iter__(self) -> "BatchesAhead":
        return self

    def __next__(self) -> list[Batch]:
        """Return the next ones, waiting for them.

        Raises:
            LaunchError: A worker died; it was killed, or memory ran out.
        """
        if self._made is None:
            raise StopIteration
        try:
            made = next(self._made)
        except (RuntimeError, OSError, EOFError) as error:
            if (dead := self._dead()) is None:
                raise
            self.close()
            raise LaunchError(_death(*dead, len(self._processes)), code="data.worker_died") from error
        return made.batches() if isinstance(made, _Parcel) else made

    def close(self) -> None:
        """End the workers; what they have made ahead is dropped."""
        self._made = None  # the loader asks them to end, and waits for some seconds
        for process in self._processes:
            process.kill()  # does nothing to one that has ended
            process.join()
        atexit.unregister(self.close)

    def _dead(self) -> tuple[int, BaseProcess] | None:
        """Return the first worker that has ended, and its number, counted from 1; None when none has."""
        if not self._processes:
            return None
        connection.wait([process.sentinel for process in self._processes], _GRACE_S)
        ended = ((number, one) for number, one in enumerate(self._processes, start=1) if not one.is_alive())
        return next(ended, None)


def _death(number: int, process: BaseProcess, num_workers: int) -> str:
    code = process.exitcode
    how = f"ended with exit code {code}"
    if code is not None and code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    reasons = {
        -signal.SIGKILL: ", as the system does when the memory of the host runs out",
        -signal.SIGBUS: ": shared memory (/dev/shm) is full, of which docker run --shm-size gives a container more",
    }
    return (
        f"loader worker {number} of {num_workers} (process {process.pid}) {how}{reasons.get(code or 0, '')}. "
        "Start again with --resume, which continues from the newest checkpoint; with fewer data.num_workers, or "
        "0, where "
        "batches are made in the training process, should it happen again"
    )


def _begin_worker(number: int) -> None:
    """Run in a worker before its first batch."""
    for each in STOP_SIGNALS:  # blocked where `start_server` has started the server, but not in another one's
        signal.signal(each, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """Wait for the end of the training process. PyTorch's workers look at the one that forked them, which goes on."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class _Made(Dataset["_Parcel"]):
    """What a `DataLoader` asks a worker for."""

    def __init__(self, make: Make) -> None:
        self._make = make

    def __getitem__(self, number: int) -> "_Parcel":
        return _Parcel.of(self._make(number))


@dataclass(frozen=True)
class _Place:
    """A tensor within the bytes of a parcel."""

    start: int
    dtype: torch.dtype
    shape: torch.Size

    def of(self, data: Tensor) -> Tensor:
        size = prod(self.shape) * self.dtype.itemsize
        return data[self.start : self.start + size].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class _Parcel:
    """Batches on their way between processes, all tensors in one: each crosses by a file descriptor of its own."""

    data: Tensor
    """(bytes,), uint8."""
    contents: list[dict[str, Any]]
    """The values of each batch by field, with places for tensors."""

    @staticmethod
    def of(batches: Sequence[Batch]) -> "_Parcel":
        contents: list[dict[str, Any]] = []
        tensors: list[tuple[int, Tensor]] = []
        size = 0
        for batch in batches:
            values = {field.name: getattr(batch, field.name) for field in fields(batch)}
            for name, value in values.items():
                if isinstance(value, Tensor):
                    values[name] = _Place(size, value.dtype, value.shape)
                    tensors.append((size, value))
                    size += -(-value.nbytes // _ALIGNMENT) * _ALIGNMENT
            contents.append(values)
        # zeros, not empty: the gaps between tensors would carry what this memory held before.
        data = torch.zeros(size, dtype=torch.uint8)
        for start, tensor in tensors:
            _Place(start, tensor.dtype, tensor.shape).of(data).copy_(tensor)
        return _Parcel(data, contents)

    def pin_memory(self) -> "_Parcel":
        """Return it in page-locked memory; `DataLoader` calls this."""
        return replace(self, data=self.data.pin_memory())

    def batches(self) -> list[Batch]:
        """Return the batches, whose tensors are views of one memory."""
        return [Batch(**{name: self._value(value) for name, value in each.items()}) for each in self.contents]

    def _value(self, value: Any) -> Any:
        return value.of(self.data) if isinstance(value, _Place) else value
