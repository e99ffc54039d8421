"""What tests of jobs on a toy cluster wait for and look at."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from patience import PATIENCE_S

from paratune.cluster import toy
from paratune.cluster.slurm import controller_facts

CREDENTIAL_S = 3.0


def wait_until(is_so: Callable[[], object], what: str, moves: Callable[[], object] = lambda: None) -> None:
    """Wait until something is so, for as long as what `moves` returns changes, and PATIENCE_S beyond.

    Nodes that the controller has lost, because this machine was too busy for their daemons to answer, are brought back:
    it would do so itself, with each twentieth ping alone.
    """
    last, deadline, look = moves(), time.monotonic() + PATIENCE_S, 0.0
    while not is_so():
        if (now := moves()) != last:
            last, deadline = now, time.monotonic() + PATIENCE_S
        if time.monotonic() > look:
            look = time.monotonic() + 5
            toy.resume_nodes(_cluster())
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:.0f} s in vain: {what}\n{evidence()}"
        time.sleep(0.2)


def steps_of(run: Path) -> Callable[[], object]:
    """Return a function whose value changes as long as a run writes something."""
    return lambda: (
        [(path.name, path.stat().st_size) for path in sorted(run.glob("*.jsonl"))]
        + sorted(path.name for path in run.glob("checkpoints/*"))
    )


def evidence() -> str:
    """Return what the controller knows and has written lately, for the message of a test that fails."""
    said = [
        subprocess.run(words, capture_output=True, text=True).stdout
        for words in (["sinfo", "--Node", "--format=%N %T %E"], ["squeue", "--format=%i %j %T %r %N %M"])
    ]
    log = (_cluster().folder / "slurmctld.log").read_text(errors="replace").splitlines()
    return "\n".join([*said, *log[-40:]])


def _cluster() -> toy.ToyCluster:
    return toy.ToyCluster(Path(os.environ["SLURM_CONF"]).parent)


def state_of(job: str) -> str:
    return next(iter(controller_facts(job).values()), {}).get("JobState", "")


def release(job: str) -> None:
    """Let a job that was queued again start now: Slurm holds it back for two minutes, from when its end is complete.

    Not in the same second: its nodes have revoked the credential of the first start then, take one of that second for
    the same, and slurmctld kills it ("Killing non-startable batch JobId: Job credential revoked").
    """
    wait_until(lambda: state_of(job) == "PENDING", f"job {job} is queued again")
    time.sleep(CREDENTIAL_S)

    def has_started() -> bool:
        subprocess.run(["scontrol", "update", f"jobid={job}", "starttime=now"], check=False, capture_output=True)
        return state_of(job) != "PENDING"

    wait_until(has_started, f"job {job} starts again")


def text_of(slurm: Path) -> str:
    """Return all that jobs printed, for messages of failed tests."""
    return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(slurm.glob("*.txt")))
