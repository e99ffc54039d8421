"""Prepares batches ahead of time in loader workers: the same batches, in the same order, as without workers.

PyTorch's `DataLoader` gives processes, queues and page-locked memory. Batches depend only on the step (see
`loader.TrainBatches`), so that it does not matter which process makes them, or when.

Workers are forked from a clean process (start method `forkserver`), never from the training process, for three reasons.
A fork copies the state of locks, and the training process has threads of OpenMP, gloo, tokenizers and CUDA. NCCL and
Gloo over InfiniBand are not fork-safe (PyTorch, notes of `DistributedDataParallel`). And a fork would keep sockets of
the process group and the lock of the run folder open after the training process dies, so that no one sees its end.
"""

import atexit
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from paratune.base.stop_signals import STOP_SIGNALS
from paratune.batch import Batch, BufferPlace, fill_buffer
from paratune.errors import LaunchError

Make = Callable[[int], list[Batch]]
"""Returns the batches of a number, such as a step; with workers it is sent to them through a pipe (pickled)."""
_PRELOADED = ("paratune.data.workers", "paratune.data.collators")
_ALIGNMENT = 64
"""Bytes; the alignment of tensors in a parcel, the same as of PyTorch's allocations."""
_GRACE_S = 1.0
"""Longest time between an error that the death of a worker causes and its exit code."""


@dataclass(frozen=True)
class Workers:
    """How many processes make batches, and how far ahead."""

    num_workers: int = 0
    """`data.num_workers`; with 0 the training process makes each batch when it needs it."""
    prefetch_factor: int = 2
    """Most steps that each worker prepares ahead."""
    pins_memory: bool = False
    """Whether batches are kept in page-locked memory, for a copy to a GPU."""


def start_server() -> None:
    """Start the process from which workers are forked and return while it imports PyTorch; later calls do nothing.

    Stop signals may arrive at all processes of a run at once. Only the training process acts on them: they are blocked
    in the others.
    """
    multiprocessing.set_forkserver_preload(list(_PRELOADED))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # the line above unblocks two of them
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class BatchesAhead:
    """Iterates over the results of `make` for some numbers, in order; workers make them in parallel to training."""

    def __init__(self, make: Make, numbers: Sequence[int], workers: Workers) -> None:
        """Start the workers, where there are any.

        Raises:
            LaunchError: The process from which they are forked died.
        """
        self._processes: list[BaseProcess] = []
        if workers.num_workers == 0 or not numbers:
            self._made: Iterator[Any] | None = map(make, numbers)
            return
        start_server()
        before = set(multiprocessing.active_children())
        with warnings.catch_warnings():
            # paratune has its own advice about the number of cores, before the first step.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            loader: DataLoader[_Parcel] = DataLoader(
                _Parcels(make),
                batch_size=None,
                sampler=numbers,
                num_workers=min(workers.num_workers, len(numbers)),
                prefetch_factor=workers.prefetch_factor,
                pin_memory=workers.pins_memory,
                multiprocessing_context="forkserver",
                worker_init_fn=_begin_worker,
                # DataLoader draws a seed from its generator: from the global one, it would change the dropout masks.
                generator=torch.Generator(),
            )
            atexit.register(self.close)
            try:
                self._made = iter(loader)
            except (EOFError, ConnectionError) as error:
                raise LaunchError(
                    f"the process from which {workers.num_workers} loader workers (data.num_workers) are forked died "
                    f"while they were started ({type(error).__name__}); start again with --resume. If it happens "
                    "again, set data.num_workers: 0, with which the training process makes the batches",
                    code="data.worker_died",
                    num_workers=workers.num_workers,
                ) from error
            finally:
                self._processes = sorted(
                    set(multiprocessing.active_children()) - before, key=lambda process: process.name
                )

    def __iter__(self) -> "BatchesAhead":
        return self

    def __next__(self) -> list[Batch]:
        """Return the batches of the next number; wait until they are ready.

        Raises:
            LaunchError: A worker died, because it was killed or memory was full.
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
        """End the workers and drop the batches that they prepared."""
        self._made = None  # deletes the iterator of the loader, which ends the workers and waits some seconds for them
        for process in self._processes:
            process.kill()  # no effect on a process that has ended
            process.join()
        atexit.unregister(self.close)

    def _dead(self) -> tuple[int, BaseProcess] | None:
        """Return the number, counted from 1, and the process of the first worker that has ended; None without one."""
        if not self._processes:
            return None
        connection.wait([process.sentinel for process in self._processes], _GRACE_S)
        numbered = enumerate(self._processes, start=1)
        return next(((number, process) for number, process in numbered if not process.is_alive()), None)


def _death(number: int, process: BaseProcess, num_workers: int) -> str:
    code = process.exitcode
    end = f"ended with exit code {code}"
    if code is not None and code < 0:
        end = f"was killed by {signal.Signals(-code).name}"
    reasons = {
        -signal.SIGKILL: ", which the system sends when the memory of the host is full",
        -signal.SIGBUS: ": shared memory (/dev/shm) is full; docker run --shm-size sets it for a container",
    }
    return (
        f"loader worker {number} of {num_workers} (process {process.pid}) {end}{reasons.get(code or 0, '')}. "
        "Start again with --resume, which continues from the newest checkpoint. If it happens again, set fewer "
        "data.num_workers, or 0, with which the training process makes the batches"
    )


def _begin_worker(number: int) -> None:
    """Prepare a worker for its first batch: ignore stop signals, and end when the training process ends."""
    for stop_signal in STOP_SIGNALS:  # `start_server` blocks them, but other code may have started the server
        signal.signal(stop_signal, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """End this worker when the training process ends. PyTorch's own watchdog watches the fork server, which lives."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class _Parcels(Dataset["_Parcel"]):
    """The data set of the `DataLoader`: the parcel of each number."""

    def __init__(self, make: Make) -> None:
        self._make = make

    def __getitem__(self, number: int) -> "_Parcel":
        return _Parcel.pack(self._make(number))


@dataclass(frozen=True)
class _Parcel:
    """Batches to send between processes, with one tensor for all: each tensor would need its own file descriptor."""

    buffer: Tensor
    """(bytes,), uint8: the tensors of all batches."""
    contents: list[dict[str, Any]]
    """The fields of each batch; instead of tensors, their places in the buffer."""

    @staticmethod
    def pack(batches: Sequence[Batch]) -> "_Parcel":
        contents = [dict(vars(batch)) for batch in batches]
        keys = [(fields, name) for fields in contents for name, value in fields.items() if isinstance(value, Tensor)]
        # `torch.zeros`, because `torch.empty` would send earlier contents of the memory in the gaps between tensors.
        make_buffer = partial(torch.zeros, dtype=torch.uint8)
        buffer, places = fill_buffer([fields[name] for fields, name in keys], make_buffer, _ALIGNMENT)
        for (fields, name), place in zip(keys, places, strict=True):
            fields[name] = place
        return _Parcel(buffer, contents)

    def pin_memory(self) -> "_Parcel":
        """Return the parcel in page-locked memory; `DataLoader` calls this."""
        return replace(self, buffer=self.buffer.pin_memory())

    def batches(self) -> list[Batch]:
        """Return the batches, whose tensors are views of the buffer."""
        return [Batch(**{name: self._tensor(value) for name, value in fields.items()}) for fields in self.contents]

    def _tensor(self, value: Any) -> Any:
        return value.view(self.buffer) if isinstance(value, BufferPlace) else value
