"""Start commands one after the other, each with its output in a file, and pass signals on to the one that runs.

`paratune.launch.local` starts the processes of one run; this starts whole runs, each of which may do that.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from paratune.errors import LaunchError
from paratune.launch.local import PROGRAM, end_with_the_parent
from paratune.place import STOP_SIGNALS


class OneByOne:
    """Takes over signals while it is entered: they go to the command that runs, and no other is started after one."""

    def __init__(self, program: Sequence[str] = PROGRAM) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._previous: dict[int, Any] = {}
        self.signal: str | None = None
        """The first that came."""

    def __enter__(self) -> "OneByOne":
        self._previous = {number: signal.signal(number, self._pass_on) for number in STOP_SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def run(self, arguments: Sequence[str], output: Path) -> int:
        """Run `paratune ARGUMENTS` to its end.

        Args:
            arguments: Command line after the program's name.
            output: What it prints is added to this file.

        Returns:
            Its exit code; negative when a signal killed it.

        Raises:
            LaunchError: The file cannot be written, or the process cannot be started.
        """
        try:
            with output.open("ab") as file:
                self._process = subprocess.Popen(
                    [*self._program, *arguments],
                    env={**os.environ, "COLUMNS": "120"},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,  # a Ctrl-C reaches it through this process only, once
                    preexec_fn=end_with_the_parent if sys.platform == "linux" else None,
                )
        except OSError as error:
            raise LaunchError(f"a run cannot be started, with its output in {output}: {error.strerror}") from error
        if self.signal is not None:  # came while it was started
            self._process.send_signal(signal.Signals[self.signal])
        return self._process.wait()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number).name
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            # os.write, because a log call from a handler could meet the log's own lock.
            os.write(2, f"\n{signal.Signals(number).name}: passed on to the run, which saves and ends\n".encode())
