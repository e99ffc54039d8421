"""Start the processes of a run on this machine, pass signals on to them, and say which one died and of what.

torchrun starts paratune just as well. This launcher exists because exit codes survive it (torchrun turns every failure
into 1), because it waits for a checkpoint however long that takes (torchrun kills 30 s after a signal), and because it
needs no port: processes find each other through a file.
"""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paratune.errors import EXIT_LAUNCH, EXIT_OK, EXIT_STOPPED
from paratune.place import RENDEZVOUS_VARIABLE

POLL_S = 0.05
GRACE_S = 5.0
"""Seconds between the death of a rank, the request to the others to end, and the end of those that cannot hear it."""
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_PR_SET_PDEATHSIG = 1


@dataclass
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    stderr: Path | None
    """Where its messages are kept; None for rank 0, which speaks for itself."""
    code: int | None = None


def launch(arguments: Sequence[str], num_processes: int) -> int:
    """Run `python -m paratune ARGUMENTS` in several processes and wait for them.

    Args:
        arguments: Command line after the program's name.
        num_processes: At least 1.

    Returns:
        0, the exit code of the rank that failed first, or 5 when a signal killed it.
    """
    with tempfile.TemporaryDirectory(prefix="paratune-") as scratch:
        ranks = [_start(arguments, rank, num_processes, Path(scratch)) for rank in range(num_processes)]
        previous = {number: signal.signal(number, lambda got, _frame: _send(ranks, got)) for number in FORWARDED}
        try:
            failed = _wait(ranks)
        finally:
            _end(ranks)
            for number, handler in previous.items():
                signal.signal(number, handler)
        if failed:
            return _explain(failed, ranks)
        return EXIT_STOPPED if any(rank.code == EXIT_STOPPED for rank in ranks) else EXIT_OK


def _start(arguments: Sequence[str], rank: int, num_processes: int, scratch: Path) -> _Rank:
    stderr = None if rank == 0 else scratch / f"rank{rank:04d}.stderr"
    file = stderr.open("wb") if stderr else None
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "paratune", *arguments],
            env=_environment(rank, num_processes, scratch),
            stdin=subprocess.DEVNULL,
            stdout=None if rank == 0 else subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,  # a Ctrl-C reaches them through this process only, once
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
    finally:
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
    environment.setdefault("OMP_NUM_THREADS", str(max(1, _usable_cores() // num_processes)))
    if sys.platform == "linux" and Path("/sys/class/net/lo").exists():
        # One machine needs loopback only; a host name that does not resolve would otherwise stop gloo.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return environment


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end_with_parent() -> None:
    """Ask Linux to send SIGTERM to this process when the launcher dies, however it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait(ranks: Sequence[_Rank]) -> list[_Rank]:
    """Wait until all ranks ended well, or one did not; return the failed ones in the order in which they were seen."""
    failed: list[_Rank] = []
    deadline = None
    while any(rank.code is None for rank in ranks):
        time.sleep(POLL_S)
        for rank in ranks:
            if rank.code is None and (code := rank.process.poll()) is not None:
                rank.code = code
                if code not in (EXIT_OK, EXIT_STOPPED):
                    failed.append(rank)
                    # Others meet an error of their own in a moment; what cannot hear waits in a collective.
                    deadline = deadline or time.monotonic() + GRACE_S
        if deadline and time.monotonic() > deadline:
            break
    return failed


def _send(ranks: Sequence[_Rank], number: int) -> None:
    for rank in ranks:
        if rank.process.poll() is None:
            rank.process.send_signal(number)


def _end(ranks: Sequence[_Rank]) -> None:
    """Ask those that are still there to end, then make them."""
    _send(ranks, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    for rank in ranks:
        try:
            rank.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.process.kill()
            rank.process.wait()


def _explain(failed: Sequence[_Rank], ranks: Sequence[_Rank]) -> int:
    """Print which rank was the first to fail, and what it said; return the exit code."""
    # A rank that was killed explains the errors of the others, also when theirs were seen first.
    first = min(failed, key=lambda rank: rank.code is not None and rank.code >= 0)
    assert first.code is not None
    killed = first.code < 0
    how = f"was killed by {signal.Signals(-first.code).name}" if killed else f"ended with exit code {first.code}"
    if len(ranks) > 1 and (first.number != 0 or killed):
        print(f"rank {first.number} of {len(ranks)} {how}; the others were ended", file=sys.stderr)  # noqa: T201
        if first.stderr and (text := first.stderr.read_text("utf-8", "replace").strip()):
            print("\n".join(text.splitlines()[-30:]), file=sys.stderr)  # noqa: T201
    return first.code if first.code > 0 else EXIT_LAUNCH
