"""Start commands one after the other, each with its output in a file, and pass signals on to the one that runs.

`paratune.launch.local` starts the processes of one run; this starts whole runs, each of which may do that.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from paratune.base.stop_signals import handled_signals
from paratune.errors import EXIT_TIMED_OUT, LaunchError
from paratune.launch.local import PROGRAM, end_with_the_parent

GRACE_S = 60.0
"""Seconds that a run which took too long has to save a checkpoint."""


class OneByOne:
    """Takes over signals while it is entered: they go to the command that runs, and no other is started after one."""

    def __init__(self, program: Sequence[str] = PROGRAM) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._previous: dict[int, Any] = {}
        self.signal: str | None = None
        """The first that came."""

    def __enter__(self) -> "OneByOne":
        self._previous = {number: signal.signal(number, self._pass_on) for number in handled_signals()}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def run(
        self,
        arguments: Sequence[str],
        output: Path,
        environment: Mapping[str, str | None] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Run `paratune ARGUMENTS` to its end.

        Args:
            arguments: Command line after the program's name.
            output: What it prints is added to this file.
            environment: Variables that it gets besides this process' own; None unsets one.
            timeout_s: After so many seconds it is asked to end, and a while later it is killed with all of its
                processes, as one would be that hangs.

        Returns:
            Its exit code; negative when a signal killed it, EXIT_TIMED_OUT when it took too long.

        Raises:
            LaunchError: The file cannot be written, or the process cannot be started.
        """
        given = {**os.environ, "COLUMNS": "120", **(environment or {})}
        try:
            with output.open("ab") as file:
                self._process = subprocess.Popen(
                    [*self._program, *arguments],
                    env={name: value for name, value in given.items() if value is not None},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,  # a Ctrl-C reaches it through this process only, once
                    preexec_fn=end_with_the_parent if sys.platform == "linux" else None,
                )
        except OSError as error:
            raise LaunchError(
                f"a run cannot be started, with its output in {output}: {error.strerror}",
                code="launch.not_started",
                path=output,
            ) from error
        if self.signal is not None:  # came while it was started
            self._process.send_signal(signal.Signals[self.signal])
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            end_tree(self._process, GRACE_S)
            return EXIT_TIMED_OUT

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number).name
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            # os.write, because a log call from a handler could meet the log's own lock.
            os.write(2, f"\n{signal.Signals(number).name}: passed on to the run, which saves and ends\n".encode())


def end_tree(process: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """Ask a process to end, and after `grace_s` kill it and all that it started: ranks in a collective hear nothing."""
    process.terminate()
    try:
        process.wait(grace_s)
        return
    except subprocess.TimeoutExpired:
        pass
    for number in (*_descendants(process.pid), process.pid):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    process.wait()


def _descendants(number: int, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes below one, those at the bottom first; none where the system does not tell (no Linux)."""
    parents: dict[int, list[int]] = {}
    for path in proc.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name, in brackets, may hold anything.
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(path.parent.name))
    found, last = [], [number]
    while last:
        last = [child for each in last for child in parents.get(each, [])]
        found += last
    return found[::-1]
