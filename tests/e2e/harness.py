"""Runs the command line in separate processes: forked from one that has already imported torch, or as new interpreters.

`Cli` forks: each call is a process with its own signals, exit code and files, without the seconds of importing.
`python` starts a new interpreter, for tests of the start of a process.
"""

import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patience import PATIENCE_S, wait_for

PRELOADED = [
    "paratune.cli",
    "paratune.commands.train",
    "paratune.commands.infer",
    "paratune.training.run",
    "paratune.infer.trained",
    "paratune.data.describe",
    "paratune.reports.systems.figures",
    "paratune.doctor",
    "transformers.models.bert.modeling_bert",
    "sklearn.metrics",
    "scipy.stats",
    "pandas",  # pyarrow imports it with the first array
    "tiny",
]
Hook = Callable[[], None]
"""Called in the new process before the command; it must be importable."""


@dataclass(frozen=True)
class Result:
    """The result of a command."""

    code: int
    """Exit code; the negative signal number if a signal killed the command."""
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The JSON document on stdout, which must be the only output there."""
        return json.loads(self.stdout)


class Running:
    """A running command."""

    def __init__(self, process: Any, files: tuple[Path, Path]) -> None:
        self._process, self._files = process, files
        self.pid: int = process.pid

    def send(self, number: signal.Signals) -> None:
        if self.is_alive():
            os.kill(self.pid, number)

    def join(self, timeout_s: float) -> None:
        """Wait for its end, at most `timeout_s` seconds."""
        self._process.join(timeout_s)

    def is_alive(self) -> bool:
        return bool(self._process.is_alive())

    def stderr(self) -> str:
        return self._files[1].read_text("utf-8", "replace")

    def wait(self, timeout_s: float = PATIENCE_S) -> Result:
        """Wait for its end; after `timeout_s` the command is killed, and the test fails."""
        self._process.join(timeout_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
            raise AssertionError(f"no end after {timeout_s} s; stderr: {self.stderr()[-2000:]}")
        stdout, stderr = (path.read_text("utf-8", "replace") for path in self._files)
        return Result(self._process.exitcode, stdout, stderr)


class Cli:
    """`cli("train", "c.yaml")` runs `paratune train c.yaml` in a folder."""

    def __init__(self, cwd: Path, environment: Mapping[str, str] | None = None) -> None:
        self.cwd = cwd
        self._environment = dict(environment or {})
        self._outputs = cwd / ".outputs"
        self._outputs.mkdir(exist_ok=True)
        self._count = 0
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)

    def __call__(self, *arguments: object, hook: Hook | None = None, timeout_s: float = PATIENCE_S) -> Result:
        return self.start(*arguments, hook=hook).wait(timeout_s)

    def start(self, *arguments: object, hook: Hook | None = None) -> Running:
        """Start a command and return while it is running."""
        self._count += 1
        files = (self._outputs / f"{self._count}.out", self._outputs / f"{self._count}.err")
        for file in files:
            file.write_bytes(b"")
        process = self._context.Process(
            target=_child, args=([str(argument) for argument in arguments], self.cwd, self._environment, files, hook)
        )
        process.start()
        # Wait until it runs the command: an earlier signal would reach the harness.
        wait_for(lambda: not process.is_alive() or has_begun(process.pid))
        return Running(process, files)


def has_begun(pid: int) -> bool:
    """Return whether a child runs its command, for which it creates its own session."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return True


def _child(
    arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], files: Sequence[Path], hook: Hook | None
) -> None:
    for path, number in zip(files, (1, 2), strict=True):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(cwd)
    os.environ.update(environment)
    sys.argv = ["paratune", *arguments]
    if hook is not None:
        hook()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup pytest ignores it
    os.setsid()
    runpy.run_module("paratune", run_name="__main__", alter_sys=False)


def python(
    *arguments: object, cwd: Path, environment: Mapping[str, str] | None = None, timeout_s: float = PATIENCE_S
) -> Result:
    """Run a new interpreter with these arguments."""
    completed = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )
    return Result(completed.returncode, completed.stdout, completed.stderr)
