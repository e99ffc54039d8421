"""What tests of jobs on a toy cluster wait for and look at."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from paratune.cluster.slurm import known

PATIENCE_S = 240.0
"""How long something is waited for that takes seconds on a machine that does nothing else."""


def wait_until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:.0f} s in vain: {what}"
        time.sleep(0.2)


def state_of(job: str) -> str:
    return next(iter(known(job).values()), {}).get("JobState", "")


def release(job: str) -> None:
    """Let a job that was queued again start now: Slurm holds it back for two minutes, from when its end is complete."""
    wait_until(lambda: state_of(job) == "PENDING", f"job {job} is queued again")

    def has_started() -> bool:
        subprocess.run(["scontrol", "update", f"jobid={job}", "starttime=now"], check=False, capture_output=True)
        return state_of(job) != "PENDING"

    wait_until(has_started, f"job {job} starts again")


def text_of(slurm: Path) -> str:
    """Return all that jobs printed, for messages of failed tests."""
    return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(slurm.glob("*.txt")))
