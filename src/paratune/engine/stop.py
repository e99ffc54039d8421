"""Signals that ask a run to end: noted when they come, acted on between two steps, by all ranks together.

Torch is imported late here, so that signals can be taken over before the seconds that importing it takes.
"""

import os
import signal
from types import FrameType
from typing import TYPE_CHECKING

from paratune.errors import Stopped

if TYPE_CHECKING:
    from paratune.strategies.protocol import Strategy

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Remembers that one of `SIGNALS` came; a second SIGINT ends the process at once."""

    def __init__(self) -> None:
        self.signal: str | None = None

    def install(self) -> "StopRequest":
        """Take over the signals. Only the main thread may call it."""
        for number in SIGNALS:
            signal.signal(number, self._note)
        # `paratune.launch.local` starts processes with them blocked; one that came too early is delivered now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return self

    def came(self) -> bool:
        """Return whether this process was asked to stop; looks at nothing but this process."""
        return self.signal is not None

    def raise_if_came(self, doing: str) -> None:
        """Stop here, where there is no step to save.

        Raises:
            Stopped: A signal came.
        """
        if self.signal is not None:
            raise Stopped(f"stopped by {self.signal} while {doing}; nothing was trained since the last checkpoint")

    def said(self) -> str:
        """Return the name of the signal, which may have come to another process."""
        return self.signal or "a signal on another rank"

    def agreed(self, strategy: "Strategy") -> bool:
        """Return whether any rank was asked to stop; the same answer on every rank. Collective."""
        import torch

        flag = torch.tensor([float(self.came())])
        if strategy.layout.world_size == 1:
            return bool(flag)
        return bool(strategy.reduce(flag, "max"))

    def _note(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is None:
            # os.write, because a log call from a handler could meet the log's own lock.
            os.write(2, f"\n{name}: stopping after this step; a second Ctrl-C ends at once without saving\n".encode())
        self.signal = name
