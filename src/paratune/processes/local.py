"""Starts the processes of a run, or whole runs, on this machine, and forwards signals to them.

The launcher of a run reports which process died and why.

torchrun works, too. This launcher keeps exit codes (torchrun returns 1 for every failure), waits for a checkpoint as
long as necessary (torchrun kills 30 s after a signal), and needs no port: processes find each other through a file.
"""

import ctypes
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from paratune.base.scratch import scratch_folder
from paratune.base.stop_signals import STOP_SIGNALS, handled_signals
from paratune.base.text import plain_lines
from paratune.errors import (
    EXIT_FAILED,
    EXIT_LAUNCH,
    EXIT_OK,
    EXIT_OUT_OF_MEMORY,
    EXIT_STOPPED,
    LaunchError,
    os_error_as,
)
from paratune.hardware import usable_cores
from paratune.processes.place import MICRO_BATCH_LIMIT_VARIABLE, OUT_OF_MEMORY_VARIABLE, POLL_S, RENDEZVOUS_VARIABLE
from paratune.records import read_json

GRACE_S = 5.0
"""Seconds between the death of a rank, SIGTERM to the others, and SIGKILL to those that do not react."""
STOP_GRACE_S = 10.0
"""Seconds that the others have after a rank stopped because of a signal."""
LAST_LINES = 30
"""Lines of stderr to print for a rank that ended with an error."""
CRASH_LINES = 300
"""Lines of stderr to print for a killed rank: stacks of all threads."""
PROGRAM = (sys.executable, "-P", "-m", "paratune")
"""-P: do not import modules from the working directory."""
_PR_SET_PDEATHSIG = 1


@dataclass
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    stderr: Path | None
    """File of its stderr; None for rank 0, which uses that of this process."""
    code: int | None = None


@dataclass
class _Ranks:
    """The processes, and the signals sent to them."""

    all: list[_Rank] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)

    def add(self, rank: _Rank) -> None:
        self.all.append(rank)
        for number in self.signals:
            rank.process.send_signal(number)

    def send(self, number: int) -> None:
        self.signals.append(number)
        for rank in self.all:
            if rank.process.poll() is None:
                rank.process.send_signal(number)


def launch(
    arguments: Sequence[str],
    num_processes: int,
    *,
    program: Sequence[str] = PROGRAM,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run `python -m paratune ARGUMENTS` in several processes and wait for them.

    Returns:
        0; 75 if a signal stopped the run; the exit code of the first failed rank, or 5 if a signal killed it.
    """
    ranks = _Ranks()
    with scratch_folder() as scratch:
        previous = {number: signal.signal(number, lambda got, _frame: ranks.send(got)) for number in handled_signals()}
        try:
            for rank in range(num_processes):
                ranks.add(_start([*program, *arguments], rank, num_processes, scratch, environment or {}))
            failed = _wait(ranks)
        finally:
            _end(ranks)
            for number, handler in previous.items():
                signal.signal(number, handler)
        if failed:
            return _explain(failed, num_processes)
        return EXIT_OK if all(rank.code == EXIT_OK for rank in ranks.all) else EXIT_STOPPED


def launch_with_smaller_batches(
    arguments: Sequence[str], num_processes: int, *, start: Callable[..., int] = launch
) -> int:
    """Run `paratune ARGUMENTS` in several processes, and restart it with smaller micro-batches when memory runs out.

    A rank that runs out of memory cannot repeat the step alone, since the others wait in a collective. So it writes a
    note, all ranks end, and all resume from the newest checkpoint or start again. Each restart at least halves the
    micro-batch.

    Returns:
        The exit code of the last start.
    """
    limit: int | None = None
    while True:
        with scratch_folder() as scratch:
            place = scratch / "out_of_memory"
            environment = {OUT_OF_MEMORY_VARIABLE: str(place)}
            if limit is not None:
                environment[MICRO_BATCH_LIMIT_VARIABLE] = str(limit)
            code = start(arguments, num_processes, environment=environment)
            notes = [read_json(path) for path in sorted(scratch.glob(f"{place.name}.rank*"))]
        size = min((int(note["micro_batch_size"]) for note in notes), default=None)
        if code != EXIT_OUT_OF_MEMORY or size is None or (limit is not None and size >= limit):
            return code
        limit = size
        if any(note["holds_folder"] for note in notes):  # the run folder belongs to this run
            arguments = [*(word for word in arguments if word not in ("--overwrite", "--resume")), "--resume"]
        print(  # noqa: T201
            f"memory ran out: restarting all {num_processes} processes with micro-batches of at most {limit}; "
            "the global batch does not change",
            file=sys.stderr,
            flush=True,
        )


def _start(
    command: Sequence[str], rank: int, num_processes: int, scratch: Path, environment: Mapping[str, str]
) -> _Rank:
    stderr = None if rank == 0 else scratch / f"rank{rank:04d}.stderr"
    file = stderr.open("wb") if stderr else None
    # Blocked before the fork: a signal before the child blocks it would be lost in exec.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        process = subprocess.Popen(
            command,
            env={**_environment(rank, num_processes, scratch), **environment},
            stdin=subprocess.DEVNULL,
            stdout=None if rank == 0 else subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,  # Ctrl-C must reach them only through this process
            preexec_fn=_in_the_child,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        if file:
            file.close()
    return _Rank(rank, process, stderr)


def _environment(rank: int, num_processes: int, scratch: Path) -> dict[str, str]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_processes),
        "LOCAL_WORLD_SIZE": str(num_processes),
        RENDEZVOUS_VARIABLE: str(scratch / "rendezvous"),
    }
    # No more threads in all ranks than cores.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, int((usable_cores() or 1) // num_processes))))
    if sys.platform == "linux" and Path("/sys/class/net/lo").exists():
        # One machine needs only loopback; gloo fails if the host name does not resolve.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return environment


def _in_the_child() -> None:
    """Block signals until the run handles them (`StopRequest.install`), and end with the launcher."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    if sys.platform == "linux":
        end_with_the_parent()


def end_with_the_parent() -> None:
    """Make the kernel send SIGTERM to this process when its parent dies (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait(ranks: _Ranks) -> list[_Rank]:
    """Wait until all ranks have ended or one has failed; return the failed ones in the order of detection.

    A killed rank is reported immediately, before the errors of the ranks that lost it. A rank that lost a stopped rank
    did not fail.
    """
    failed: list[_Rank] = []
    num_before, was_stopped = 0, False  # failures before any stop or signal; whether a rank stopped
    deadline = math.inf
    while any(rank.code is None for rank in ranks.all):
        time.sleep(POLL_S)
        # Polling, because a blocking wait for one rank would not detect the failure of another.
        for rank in ranks.all:
            if rank.code is not None or (code := rank.process.poll()) is None:
                continue
            rank.code = code
            if code == EXIT_OK:
                continue
            if code == EXIT_STOPPED or -code in ranks.signals:  # also of a signal that was sent from here
                was_stopped = True
                # A rank that stops during preparation leaves others in a wait that ignores signals.
                if deadline == math.inf:
                    ranks.send(signal.SIGTERM)
                deadline = min(deadline, time.monotonic() + STOP_GRACE_S)
            else:
                # Others fail soon with their own error, or wait in a collective.
                deadline = min(deadline, time.monotonic() + GRACE_S)
                failed.append(rank)
                if code < 0 and not any(_was_killed(other) for other in failed[:-1]):
                    _report_end(rank, len(ranks.all))
        if not (was_stopped or ranks.signals):
            num_before = len(failed)
        if time.monotonic() > deadline:
            break
    if not was_stopped:
        return failed
    # Ranks that lost a stopped rank end with 5, in the same poll or later. After a signal to all, any rank may end
    # first. A failure that was detected earlier has another cause.
    lost = [rank for rank in failed[num_before:] if rank.code == EXIT_LAUNCH]
    others = [rank for rank in failed if rank not in lost]
    for rank in [] if others else lost:
        _report_end(rank, len(ranks.all), others="another one was stopped")
    return others


def _end(ranks: _Ranks) -> None:
    """Send SIGTERM to the remaining ranks, then SIGKILL."""
    ranks.send(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    for rank in ranks.all:
        try:
            rank.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.process.kill()
            rank.process.wait()


def _explain(failed: Sequence[_Rank], num_processes: int) -> int:
    """Print the first failed rank and its last messages; return the exit code."""
    # A killed rank, or one with a specific code or a traceback (1), explains the errors of ranks that lost a peer (5),
    # even if these were detected first.
    late = {EXIT_FAILED: 1, EXIT_LAUNCH: 2}
    first = min(failed, key=lambda rank: (not _was_killed(rank), late.get(rank.code or 0, 0)))
    assert first.code is not None
    # Rank 0 has already printed a problem of all ranks (a file, an option).
    is_reported = _was_killed(first) or (
        first.code != EXIT_FAILED and any(rank.number == 0 and rank.code == first.code for rank in failed)
    )
    if not is_reported:
        _report_end(first, num_processes)
    return first.code if first.code > 0 else EXIT_LAUNCH


def _report_end(rank: _Rank, num_processes: int, others: str = "") -> None:
    """Print which rank failed, how, and its last messages, unless it is the only process."""
    assert rank.code is not None
    if num_processes == 1:
        return
    how = f"was killed by {signal.Signals(-rank.code).name}" if rank.code < 0 else f"ended with exit code {rank.code}"
    others = others or ("the others are ended" if rank.code < 0 else "the others were ended")
    print(f"rank {rank.number} of {num_processes} {how}; {others}", file=sys.stderr, flush=True)  # noqa: T201
    if rank.stderr and (text := rank.stderr.read_text("utf-8", "replace").strip()):
        last = text.splitlines()[-(CRASH_LINES if _was_killed(rank) else LAST_LINES) :]
        print(plain_lines("\n".join(last)), file=sys.stderr, flush=True)  # noqa: T201


def _was_killed(rank: _Rank) -> bool:
    return rank.code is not None and rank.code < 0


class CommandRunner:
    """Runs whole runs, each with its output in a file; several threads may each run one.

    A context manager that forwards signals to the running commands; callers start no other command after a signal.
    """

    def __init__(self, program: Sequence[str] = PROGRAM) -> None:
        self._program = program
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_ending = False
        self._previous: dict[int, Any] = {}
        self.signal: str | None = None
        """Name of the first signal."""

    def __enter__(self) -> "CommandRunner":
        is_main = threading.current_thread() is threading.main_thread()  # no other thread receives signals
        self._previous = {number: signal.signal(number, self._forward) for number in handled_signals() if is_main}
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def run(
        self,
        arguments: Sequence[str],
        output: Path,
        environment: Mapping[str, str | None] | None = None,
        cores: Collection[int] | None = None,
    ) -> int:
        """Run `paratune ARGUMENTS` and wait for it.

        Args:
            output: File to which the output is appended.
            environment: Additional variables; None unsets one.
            cores: Numbers of the logical cores that it may use (Linux); all that this process may use by default.

        Returns:
            The exit code; negative if a signal killed it.

        Raises:
            LaunchError: The file is not writable, or the process cannot be started.
        """
        given = {**os.environ, "COLUMNS": "120", **(environment or {})}

        def in_the_child() -> None:
            end_with_the_parent()  # with the thread that started it, which waits for it
            if cores is not None:
                os.sched_setaffinity(0, cores)

        failure = f"a run cannot be started, with its output in {output}"
        with os_error_as(LaunchError, failure, code="launch.not_started", path=output), output.open("ab") as file:
            process = subprocess.Popen(
                [*self._program, *arguments],
                env={name: value for name, value in given.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # Ctrl-C must reach it only through this process
                preexec_fn=in_the_child if sys.platform == "linux" else None,
            )
        self._running.add(process)
        if self.signal is not None:  # received while it was started
            process.send_signal(signal.Signals[self.signal])
        elif self._is_ending:
            process.terminate()
        try:
            return process.wait()
        finally:
            self._running.discard(process)

    def end(self) -> None:
        """Send SIGTERM to the running commands, and to those that a thread is about to start; wait for the former."""
        self._is_ending = True
        running = list(self._running)
        for process in running:
            process.terminate()
        for process in running:
            process.wait()

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number).name
        if running := [process for process in list(self._running) if process.poll() is None]:
            for process in running:
                process.send_signal(number)
            runs = "the run, which saves and ends" if len(running) == 1 else f"{len(running)} runs, which save and end"
            # os.write, because logging in a signal handler could deadlock. The reader of a pipe may have ended by the
            # same Ctrl-C: an error here would end the sweep before it records how the run ended.
            with suppress(OSError):
                os.write(2, f"\n{signal.Signals(number).name}: forwarded to {runs}\n".encode())
