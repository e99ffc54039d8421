"""The processes of the parts, one after the other, and their time limits.

The process of the next part is started while a part runs: it imports its modules and then waits for its turn, so that
imports take no GPU time. A part that hangs or crashes is killed with all of its child processes.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paratune.records import read_json

LOG_LINES = 15
POLL_S = 1.0
"""Seconds between looks at what a running part has written."""


@dataclass(frozen=True)
class Part:
    """A module of this package, and the seconds that it may take."""

    name: str
    title: str
    least_s: float
    """Reserved for it by the earlier parts."""
    most_s: float
    """Not used in a rehearsal, whose machine may be slow."""


PARTS = (
    Part("card", "Facts of the card", 10, 25),
    Part("smoke", "Training in each precision", 25, 60),
    Part("dtypes", "Dtypes at the attention kernel", 10, 30),
    Part("kernels", "Attention kernels", 20, 45),
    Part("models", "Architectures", 20, 60),
    Part("certify", "Certificates", 40, 75),
    Part("plan", "Plan", 50, 90),
    Part("speed", "Speed", 150, 240),
    Part("capture", "Compiled and captured steps", 70, 130),
    Part("resume", "Resuming", 45, 90),
    Part("loop", "Training loop", 30, 80),
    Part("oom", "Running out of memory", 15, 40),
    Part("ranks", "Several ranks", 25, 70),
)
"""In the order of what would be missed most: whether the card computes right results, whether memory is as planned,
speed beside other libraries, what compiled and captured steps gain, then the rest."""


@dataclass
class Started:
    """A process of a part."""

    part: Part
    process: "subprocess.Popen[bytes]"
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    def kill(self) -> None:
        """Kill the process and its child processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def limit_of(left_s: float, part: Part, later: Sequence[Part]) -> float | None:
    """Return the seconds that a part may take, or None if there is too little time for it.

    The minimum times of later parts are reserved; if too little time is left for all, a part gets its own minimum, and
    later parts are left out.
    """
    free_s = left_s - sum(later_part.least_s for later_part in later)
    limit_s = min(part.most_s, max(free_s, part.least_s))
    return limit_s if limit_s <= left_s else None


def run_parts(
    parts: Sequence[Part], start: Callable[[Part], Started], *, seconds: float, done: Callable[[str, Any], None]
) -> None:
    """Run parts within a time limit.

    Args:
        parts: Parts in their order.
        start: Starts the process of a part, which waits for its limit on standard input.
        seconds: For all parts together.
        done: Called with the name and the result of each part when it has ended. While it runs, called with the rows so
            far whenever there are more, with the status "running": if this process is killed, they are kept.
    """
    end = time.monotonic() + seconds
    waiting: Started | None = None
    try:
        for number, part in enumerate(parts):
            later = parts[number + 1 :]
            limit_s = limit_of(end - time.monotonic(), part, later)
            if limit_s is None:
                done(part.name, {"status": "not run", "rows": [], "reason": "no time was left", "seconds": 0.0})
                continue
            started = waiting if waiting is not None and waiting.part is part else start(part)
            waiting = start(later[0]) if later else None
            done(part.name, _run(started, limit_s, partial(done, part.name)))
    finally:
        if waiting is not None:
            waiting.kill()


def _run(started: Started, limit_s: float, show: Callable[[Any], None]) -> dict[str, Any]:
    """Give a part its turn, call `show` with what it has written so far, and return what it wrote."""
    begin = time.monotonic()
    reason = None
    assert started.process.stdin is not None
    try:
        started.process.stdin.write(f"{limit_s:.1f}\n".encode())
        started.process.stdin.close()
        _wait(started, begin, limit_s, show)
        if started.process.returncode != 0:
            reason = f"its process exited with {started.process.returncode}"
    except subprocess.TimeoutExpired:
        reason = f"it was killed after {limit_s:.0f} s"
    except BrokenPipeError:
        started.process.wait()
        reason = f"its process exited with {started.process.returncode} before its turn"
    finally:
        started.kill()  # with its remaining child processes, also if this process is stopped
    path = started.folder / "rows.json"
    written = read_json(path) if path.exists() else {"is_done": False, "rows": []}
    rows = written["rows"]
    status = _status(rows) if written["is_done"] else "stopped"
    result = {"status": status, "seconds": time.monotonic() - begin, "limit_s": limit_s, "rows": rows}
    if result["status"] != "ok":
        lines = started.log.read_text(errors="replace").splitlines() if started.log.exists() else []
        result |= {"reason": reason, "log": lines[-LOG_LINES:]}
    return result


def _wait(started: Started, begin: float, limit_s: float, show: Callable[[Any], None]) -> None:
    """Wait until a part exits, and call `show` when it has more rows; raise `TimeoutExpired` after its limit."""
    path, shown = started.folder / "rows.json", 0
    while True:
        left_s = begin + limit_s - time.monotonic()
        try:
            started.process.wait(max(0.0, min(POLL_S, left_s)))
            return
        except subprocess.TimeoutExpired:
            if left_s <= POLL_S:
                raise
        rows = read_json(path)["rows"] if path.exists() else []
        if len(rows) > shown:
            shown = len(rows)
            show({"status": "running", "seconds": time.monotonic() - begin, "limit_s": limit_s, "rows": rows})


def _status(rows: Any) -> str:
    """Return the worst status of the checks."""
    statuses = {row["status"] for row in rows}
    return next((status for status in ("wrong", "error") if status in statuses), "ok")


def start_part(script: Path, part: Part, options: Sequence[str], out: Path) -> Started:
    """Start the process of a part; its output is written to `out/NAME.log`."""
    folder = out / part.name
    with folder.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(script), "--child", part.name, "--out", str(out), *options],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return Started(part, process, folder)
