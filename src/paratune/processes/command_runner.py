"""Runs commands one after the other, each with its output in a file, and forwards signals to the running one.

`paratune.processes.local` starts the processes of one run; this starts whole runs.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from paratune.base.stop_signals import handled_signals
from paratune.errors import LaunchError, os_error_as
from paratune.processes.local import PROGRAM, end_with_the_parent


class CommandRunner:
    """A context manager that forwards signals to the running command; callers start no other command after a signal."""

    def __init__(self, program: Sequence[str] = PROGRAM) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._previous: dict[int, Any] = {}
        self.signal: str | None = None
        """Name of the first signal."""

    def __enter__(self) -> "CommandRunner":
        is_main = threading.current_thread() is threading.main_thread()  # no other thread receives signals
        self._previous = {number: signal.signal(number, self._forward) for number in handled_signals() if is_main}
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def run(self, arguments: Sequence[str], output: Path, environment: Mapping[str, str | None] | None = None) -> int:
        """Run `paratune ARGUMENTS` and wait for it.

        Args:
            output: File to which the output is appended.
            environment: Additional variables; None unsets one.

        Returns:
            The exit code; negative if a signal killed it.

        Raises:
            LaunchError: The file is not writable, or the process cannot be started.
        """
        given = {**os.environ, "COLUMNS": "120", **(environment or {})}
        failure = f"a run cannot be started, with its output in {output}"
        with os_error_as(LaunchError, failure, code="launch.not_started", path=output), output.open("ab") as file:
            self._process = subprocess.Popen(
                [*self._program, *arguments],
                env={name: value for name, value in given.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # Ctrl-C must reach it only through this process
                preexec_fn=end_with_the_parent if sys.platform == "linux" else None,
            )
        if self.signal is not None:  # received while it was started
            self._process.send_signal(signal.Signals[self.signal])
        return self._process.wait()

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number).name
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            # os.write, because logging in a signal handler could deadlock. The reader of a pipe may have ended by the
            # same Ctrl-C: an error here would end the sweep before it records how the run ended.
            with suppress(OSError):
                os.write(2, f"\n{signal.Signals(number).name}: forwarded to the run, which saves and ends\n".encode())
