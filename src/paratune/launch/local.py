"""Start the processes of a run on this machine, pass signals on to them, and say which one died and of what.

torchrun starts paratune just as well. This launcher exists because exit codes survive it (torchrun turns every failure
into 1), because it waits for a checkpoint however long that takes (torchrun kills 30 s after a signal), and because it
needs no port: processes find each other through a file.
"""

import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paratune.base.scratch import scratch_folder
from paratune.base.stop_signals import STOP_SIGNALS, handled_signals
from paratune.base.text import plain_lines
from paratune.errors import EXIT_FAILED, EXIT_LAUNCH, EXIT_OK, EXIT_STOPPED
from paratune.hardware import usable_cores
from paratune.processes.place import LAUNCHER_POLL_S, RENDEZVOUS_VARIABLE

POLL_S = LAUNCHER_POLL_S
GRACE_S = 5.0
"""Seconds between the death of a rank, the request to the others to end, and the end of those that cannot hear it."""
STOP_GRACE_S = 10.0
"""Seconds that the others have when one rank ended well after a signal: it was the last to save, or had nothing to."""
LAST_LINES = 30
"""Of what a rank said on stderr that ended with an error."""
CRASH_LINES = 300
"""Of one that was killed: stacks of all of its threads."""
PROGRAM = (sys.executable, "-P", "-m", "paratune")
"""-P: modules are found where the `paratune` command finds them, and not in the working directory."""
_PR_SET_PDEATHSIG = 1


@dataclass
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    stderr: Path | None
    """Where its messages are kept; None for rank 0, which speaks for itself."""
    code: int | None = None


@dataclass
class _Ranks:
    """The processes, and the signals that they were sent."""

    all: list[_Rank] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)

    def add(self, rank: _Rank) -> None:
        self.all.append(rank)
        for number in self.signals:
            rank.process.send_signal(number)

    def has_stopped(self, rank: _Rank) -> bool:
        """Return whether a rank saved, or had nothing to, or ended by a signal that it was sent from here."""
        return rank.code is not None and (rank.code == EXIT_STOPPED or -rank.code in self.signals)

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

    Args:
        arguments: Command line after the program's name.
        num_processes: At least 1.
        program: What is run; tests have small ones.
        environment: Variables that the processes get besides this one's.

    Returns:
        0, 75 when a signal stopped the run, the exit code of the rank that failed first, or 5 when a signal killed it.
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


def _start(
    command: Sequence[str], rank: int, num_processes: int, scratch: Path, environment: Mapping[str, str]
) -> _Rank:
    stderr = None if rank == 0 else scratch / f"rank{rank:04d}.stderr"
    file = stderr.open("wb") if stderr else None
    # Held back already when it forks: one that came before the child could block it would be lost in its exec.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        process = subprocess.Popen(
            command,
            env={**_environment(rank, num_processes, scratch), **environment},
            stdin=subprocess.DEVNULL,
            stdout=None if rank == 0 else subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,  # a Ctrl-C reaches them through this process only, once
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
        RENDEZVOUS_VARIABLE: (scratch / "rendezvous").as_uri(),
    }
    # Threads of all ranks together are no more than there are cores: more of them wait for each other.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, int((usable_cores() or 1) // num_processes))))
    if sys.platform == "linux" and Path("/sys/class/net/lo").exists():
        # One machine needs loopback only; a host name that does not resolve would otherwise stop gloo.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return environment


def _in_the_child() -> None:
    """Hold back signals until the run listens to them (`StopRequest.install`), and end with the launcher."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    if sys.platform == "linux":
        end_with_the_parent()


def end_with_the_parent() -> None:
    """Have the system send SIGTERM to this process when the one that started it dies, however it dies (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait(ranks: _Ranks) -> list[_Rank]:
    """Wait until all ranks ended well, or one did not; return the failed ones in the order in which they were seen.

    One that was killed is named at once, before the others say that they lost it. One that lost a rank which was
    stopped did not fail.
    """
    failed: list[_Rank] = []
    num_before, was_stopped = 0, False  # failures seen before any rank was stopped or sent a signal; one was stopped
    deadline = math.inf
    while any(rank.code is None for rank in ranks.all):
        time.sleep(POLL_S)
        # Polled, because a blocking wait for one rank would not notice another one that has failed.
        for rank in ranks.all:
            if rank.code is not None or (code := rank.process.poll()) is None:
                continue
            rank.code = code
            if code == EXIT_OK:
                continue
            if ranks.has_stopped(rank):
                was_stopped = True
                # A rank that was stopped while it prepared leaves others waiting for it where they hear nothing.
                if deadline == math.inf:
                    ranks.send(signal.SIGTERM)
                deadline = min(deadline, time.monotonic() + STOP_GRACE_S)
            else:
                # Others meet an error of their own in a moment; what cannot hear waits in a collective.
                deadline = min(deadline, time.monotonic() + GRACE_S)
                failed.append(rank)
                if code < 0 and not any(_was_killed(other) for other in failed[:-1]):
                    _say_how_it_ended(rank, len(ranks.all))
        if not (was_stopped or ranks.signals):
            num_before = len(failed)
        if time.monotonic() > deadline:
            break
    return _without_losses(failed, num_before, len(ranks.all)) if was_stopped else failed


def _without_losses(failed: list[_Rank], num_before: int, num_processes: int) -> list[_Rank]:
    """Leave out those that a stopped rank left while they met or waited for it; what they said comes through.

    These end with 5 after it did: the launcher sees them in the same look as the stopped one or in a later one. After a
    signal to all of them, any may be the first to end. One that was seen before has another reason.
    """
    lost = [rank for rank in failed[num_before:] if rank.code == EXIT_LAUNCH]
    others = [rank for rank in failed if rank not in lost]
    if not others:
        for rank in lost:
            _say_how_it_ended(rank, num_processes, others="another one was stopped")
    return others


def _end(ranks: _Ranks) -> None:
    """Ask those that are still there to end, then make them."""
    ranks.send(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    for rank in ranks.all:
        try:
            rank.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.process.kill()
            rank.process.wait()


def _explain(failed: Sequence[_Rank], num_processes: int) -> int:
    """Print which rank was the first to fail, and what it said; return the exit code."""
    # A rank that was killed, or ended with a code of its own or with a traceback (1), explains the errors of others,
    # who lost a peer (5), also when theirs were seen first.
    late = {EXIT_FAILED: 1, EXIT_LAUNCH: 2}
    first = min(failed, key=lambda rank: (not _was_killed(rank), late.get(rank.code or 0, 0)))
    assert first.code is not None
    # What all ranks find wrong (a file, an option), rank 0 has said already.
    is_said = _was_killed(first) or (
        first.code != EXIT_FAILED and any(rank.number == 0 and rank.code == first.code for rank in failed)
    )
    if not is_said:
        _say_how_it_ended(first, num_processes)
    return first.code if first.code > 0 else EXIT_LAUNCH


def _say_how_it_ended(rank: _Rank, num_processes: int, others: str = "") -> None:
    """Print which rank failed, how, and its last words; a single process speaks for itself."""
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
