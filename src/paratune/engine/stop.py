"""Handles signals that ask a run to stop: a handler notes the signal, and all ranks stop together between two steps.

Torch is imported inside functions, so that the handlers are installed before the seconds that importing it takes.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from paratune.base.stop_signals import ENDED_BY_TORCHRUN, STOP_SIGNALS, handled_signals
from paratune.errors import EXIT_STOPPED, Stopped
from paratune.processes.elastic import note_stop
from paratune.processes.place import note_exit_code

if TYPE_CHECKING:
    from torch import Tensor

    from paratune.strategies.protocol import Strategy


class StopRequest:
    """Remembers that one of `STOP_SIGNALS` came; a second SIGINT ends the process at once."""

    def __init__(self) -> None:
        self.signal: str | None = None
        self._pending: tuple[Tensor, Any] | None = None
        """The flag that is being reduced over ranks, and the handle to wait for."""

    def install(self) -> "StopRequest":
        """Take over the signals. Only the main thread may call it."""
        for number in handled_signals():
            signal.signal(number, self._note)
        # `paratune.processes.local` starts processes with them blocked; one that came too early is delivered now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        return self

    def came(self) -> bool:
        """Return whether this process received a signal; does not check other processes."""
        return self.signal is not None

    def raise_if_came(self, doing: str) -> None:
        """Stop here, before the first step of this process, when there is nothing to save.

        Raises:
            Stopped: A signal came.
        """
        if self.signal is not None:
            raise Stopped(before_the_first_step(self.signal, doing), code="stopped.signal")

    @contextmanager
    def ends_at_once(self, doing: str) -> Iterator[None]:
        """Let a signal end the process during the block, which waits in native code, where Python calls no handler.

        Without it, a process that waits for a missing rank would ignore SIGTERM, and torchrun would kill it after 30 s.
        The interpreter writes the number of each signal into a pipe, and a thread that reads it ends the process. There
        must be nothing to save.

        Raises:
            Stopped: A signal came before the block.
        """
        if threading.current_thread() is not threading.main_thread():  # only the main thread may set the wakeup pipe
            yield
            return
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        watcher = threading.Thread(target=_end_on_signal, args=(read_end, doing), daemon=True)
        watcher.start()
        try:
            self.raise_if_came(doing)
            yield
        finally:
            signal.set_wakeup_fd(previous)
            os.close(write_end)
            watcher.join()
            os.close(read_end)

    def signal_name(self) -> str:
        """Return the name of the signal, for messages; the signal may have come to another rank."""
        return self.signal or "a signal on another rank"

    def agreed(self, strategy: "Strategy") -> bool:
        """Return whether any rank received a signal; the same on every rank. Collective."""
        import torch

        if strategy.layout.world_size == 1:
            return self.came()
        return bool(strategy.reduce(torch.tensor([float(self.came())]), "max"))

    def was_agreed(self, strategy: "Strategy") -> bool:
        """Return whether any rank received a signal before the previous call of this method; the same on every rank.

        Collective. Each call starts an asynchronous reduction of the current flag, which runs during the next step or
        batch, so that no step waits for the slowest connection between ranks. The price: a signal takes effect one call
        later than with `agreed`. In one process it takes effect at once.
        """
        import torch
        import torch.distributed as dist

        if not dist.is_initialized() or dist.get_world_size() != strategy.layout.world_size:
            return self.agreed(strategy)
        if strategy.layout.world_size == 1:
            return self.came()
        if self.settle():
            return True
        # On the CPU, so that gloo reduces it: a collective of NCCL would wait in the stream behind the step's kernels.
        flag = torch.tensor([float(self.came())])
        self._pending = flag, dist.all_reduce(flag, op=dist.ReduceOp.MAX, async_op=True)
        return False

    def settle(self) -> bool:
        """Wait for the pending reduction of `was_agreed` and return its result; start no new one."""
        if self._pending is None:
            return False
        (flag, work), self._pending = self._pending, None
        work.wait()
        return bool(flag)

    def _note(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if number not in ENDED_BY_TORCHRUN:
            note_stop()
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is None:
            # os.write, because logging in a signal handler can deadlock on the lock of the log.
            again = "; a second Ctrl-C ends at once without saving" if number == signal.SIGINT else ""
            with suppress(OSError):  # the terminal may be gone
                os.write(2, f"\n{name}: stopping as soon as possible{again}\n".encode())
        self.signal = name


def before_the_first_step(name: str, doing: str) -> str:
    """Return the message of a run that a signal stopped before it had anything to save."""
    return f"stopped by {name} while {doing}, before the first step: there was nothing to save, start it again"


def _end_on_signal(read_end: int, doing: str) -> None:
    """End the process when the pipe contains the number of a stop signal; return at the end of the pipe."""
    while number := os.read(read_end, 1):
        if number[0] in STOP_SIGNALS:
            with suppress(OSError):
                os.write(2, f"\n{before_the_first_step(signal.Signals(number[0]).name, doing)}\n".encode())
            if number[0] not in ENDED_BY_TORCHRUN:
                note_stop()
            note_exit_code(EXIT_STOPPED)
            os._exit(EXIT_STOPPED)
