"""Signals that ask a run to end: noted when they come, acted on between two steps, by all ranks together.

Torch is imported late here, so that signals can be taken over before the seconds that importing it takes.
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
        self._begun: tuple[Tensor, Any] | None = None
        """The flag that is being reduced over ranks, and what is waited for."""

    def install(self) -> "StopRequest":
        """Take over the signals. Only the main thread may call it."""
        for number in handled_signals():
            signal.signal(number, self._note)
        # `paratune.launch.local` starts processes with them blocked; one that came too early is delivered now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        return self

    def came(self) -> bool:
        """Return whether this process was asked to stop; looks at nothing but this process."""
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
        """Let a signal end the process while the block waits in native code, where Python calls no handler.

        Whoever waits for a rank that will not come hears nothing else: torchrun would kill it after 30 s.

        Args:
            doing: What the block does; there must be nothing to save.

        Raises:
            Stopped: A signal came before.
        """
        if threading.current_thread() is not threading.main_thread():  # only that one is told of signals
            yield
            return
        hears, tells = os.pipe()
        os.set_blocking(tells, False)
        before = signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
        watcher = threading.Thread(target=_end_when_told, args=(hears, doing), daemon=True)
        watcher.start()
        try:
            self.raise_if_came(doing)
            yield
        finally:
            signal.set_wakeup_fd(before)
            os.close(tells)
            watcher.join()
            os.close(hears)

    def said(self) -> str:
        """Return the name of the signal, which may have come to another process."""
        return self.signal or "a signal on another rank"

    def agreed(self, strategy: "Strategy") -> bool:
        """Return whether any rank was asked to stop; the same answer on every rank. Collective."""
        import torch

        if strategy.layout.world_size == 1:
            return self.came()
        return bool(strategy.reduce(torch.tensor([float(self.came())]), "max"))

    def was_agreed(self, strategy: "Strategy") -> bool:
        """Return whether any rank was asked to stop before the last call of this method; the same on every rank.

        Collective. It begins to reduce the flag of now, which runs beside the step or batch that follows, so that no
        step waits for the slowest connection between ranks: a signal is answered one call later than by `agreed`. In
        one process it is answered at once.
        """
        import torch
        import torch.distributed as dist

        if not dist.is_initialized() or dist.get_world_size() != strategy.layout.world_size:
            return self.agreed(strategy)
        if strategy.layout.world_size == 1:
            return self.came()
        if self.settle():
            return True
        flag = torch.tensor([float(self.came())])
        self._begun = flag, dist.all_reduce(flag, op=dist.ReduceOp.MAX, async_op=True)
        return False

    def settle(self) -> bool:
        """Wait for what `was_agreed` has begun, and return what it would have returned. Nothing is begun after it."""
        if self._begun is None:
            return False
        (flag, work), self._begun = self._begun, None
        work.wait()
        return bool(flag)

    def _note(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if number not in ENDED_BY_TORCHRUN:
            note_stop()
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is None:
            # os.write, because a log call from a handler could meet the log's own lock.
            again = "; a second Ctrl-C ends at once without saving" if number == signal.SIGINT else ""
            with suppress(OSError):  # the terminal may be gone
                os.write(2, f"\n{name}: stopping as soon as it can{again}\n".encode())
        self.signal = name


def before_the_first_step(name: str, doing: str) -> str:
    """Return how a run ends that a signal stopped before it had anything to save."""
    return f"stopped by {name} while {doing}, before the first step: there was nothing to save, start it again"


def _end_when_told(hears: int, doing: str) -> None:
    """Wait for the number of a signal, and end the process; or for the end of the pipe."""
    while number := os.read(hears, 1):
        if number[0] in STOP_SIGNALS:
            with suppress(OSError):
                os.write(2, f"\n{before_the_first_step(signal.Signals(number[0]).name, doing)}\n".encode())
            if number[0] not in ENDED_BY_TORCHRUN:
                note_stop()
            note_exit_code(EXIT_STOPPED)
            os._exit(EXIT_STOPPED)
