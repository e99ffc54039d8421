"""Waiting for jobs of a toy cluster, and reading their state, for tests."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from patience import PATIENCE_S

from paratune.cluster import toy
from paratune.cluster.jobs import controller_facts

CREDENTIAL_S = 3.0


def wait_until(is_reached: Callable[[], object], state: str, progress: Callable[[], object] = lambda: None) -> None:
    """Wait until a state is reached: up to PATIENCE_S after the last change of the value of `progress`.

    The controller can lose nodes because this machine is too busy for their daemons to answer. They are resumed here:
    the controller itself would do so only with every twentieth ping.
    """
    last, deadline, look = progress(), time.monotonic() + PATIENCE_S, 0.0
    while not is_reached():
        if (now := progress()) != last:
            last, deadline = now, time.monotonic() + PATIENCE_S
        if time.monotonic() > look:
            look = time.monotonic() + 5
            toy.resume_nodes(_cluster())
        assert time.monotonic() < deadline, f"not reached after {PATIENCE_S:.0f} s: {state}\n{evidence()}"
        time.sleep(0.2)


def steps_of(run: Path) -> Callable[[], object]:
    """Return a function whose value changes as long as a run writes files."""
    return lambda: (
        [(path.name, path.stat().st_size) for path in sorted(run.glob("*.jsonl"))]
        + sorted(path.name for path in run.glob("checkpoints/*"))
    )


def evidence() -> str:
    """Return the controller's state and the end of its log, for the message of a failed test."""
    outputs = [
        subprocess.run(words, capture_output=True, text=True).stdout
        for words in (["sinfo", "--Node", "--format=%N %T %E"], ["squeue", "--format=%i %j %T %r %N %M"])
    ]
    log = (_cluster().folder / "slurmctld.log").read_text(errors="replace").splitlines()
    return "\n".join([*outputs, *log[-40:]])


def _cluster() -> toy.ToyCluster:
    return toy.ToyCluster(Path(os.environ["SLURM_CONF"]).parent)


def state_of(job: str) -> str:
    return next(iter(controller_facts(job).values()), {}).get("JobState", "")


def release(job: str) -> None:
    """Start a requeued job now: by default Slurm delays it by two minutes after its end.

    Not in the same second: then its nodes, which have revoked the credential of the first start, take the new
    credential for the revoked one, and slurmctld kills the job ("Killing non-startable batch JobId: Job credential
    revoked").
    """
    wait_until(lambda: state_of(job) == "PENDING", f"job {job} is queued again")
    time.sleep(CREDENTIAL_S)

    def has_started() -> bool:
        subprocess.run(["scontrol", "update", f"jobid={job}", "starttime=now"], check=False, capture_output=True)
        return state_of(job) != "PENDING"

    wait_until(has_started, f"job {job} starts again")


def text_of(slurm: Path) -> str:
    """Return the output of all jobs, for messages of failed tests."""
    return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(slurm.glob("*.txt")))
