"""Calls Slurm's commands to submit, list and cancel jobs, without accounting (`sacct`), which many sites lack."""

import getpass
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.errors import ConfigError, LaunchError, MissingDependency

TIMEOUT_S = 120.0
"""Timeout of a command, in seconds; a busy controller is slow."""
ENDED = frozenset(
    {
        *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL"),
        *("PREEMPTED", "REVOKED"),
    }
)
"""Final states of a job."""
_FORMAT = "%i|%F|%K|%T|%M|%D|%N|%r"
JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?")


@dataclass(frozen=True)
class Queued:
    """A job, or a run of an array, in the queue."""

    id: str
    """12; 12_3 for a run of an array; 12_[4-7] for waiting runs."""
    job: str
    """Job ID of the submission: 12."""
    state: str
    """PENDING, RUNNING, ..."""
    elapsed: str
    nodes: str
    """Names of the nodes; empty while it waits."""
    reason: str
    """Reason for waiting, or "None"."""


def submit(script: Path, *, after: Sequence[str] = (), ended: Sequence[str] = ()) -> str:
    """Submit a batch script and return the job ID.

    Args:
        after: Jobs that must succeed before it starts; if one of them fails, it is cancelled.
        ended: Jobs that must end before it starts.

    Raises:
        LaunchError: Slurm refuses the job, with Slurm's message.
        MissingDependency: sbatch was not found.
    """
    words = ["sbatch", "--parsable"]
    dependencies = [":".join((how, *jobs)) for how, jobs in (("afterok", after), ("afterany", ended)) if jobs]
    if dependencies:
        words += [f"--dependency={','.join(dependencies)}", "--kill-on-invalid-dep=yes"]
    result = _call([*words, str(script)])
    number = result.stdout.strip().partition(";")[0]
    if result.returncode or not JOB_ID.fullmatch(number):
        raise _refused(f"sbatch refuses {plain(script)}", result, command="sbatch", script=script)
    return number


def queue() -> list[Queued]:
    """Return this user's jobs in the queue.

    Raises:
        LaunchError: The controller does not respond.
        MissingDependency: squeue was not found.
    """
    result = _call(["squeue", "--noheader", "--user", getpass.getuser(), "--format", _FORMAT])
    if result.returncode:
        raise _refused("squeue does not list the queue", result, command="squeue")
    entries = []
    for line in result.stdout.splitlines():
        number, job, _, state, elapsed, _, nodes, reason = line.split("|", 7)
        entries.append(Queued(number, job, state, elapsed, nodes, reason))
    return entries


def controller_facts(job: str) -> dict[str, dict[str, str]]:
    """Return the facts of the controller about a job, which it forgets some minutes after the end.

    Returns:
        `JobState`, `ExitCode`, `Restarts`, ... by run: 12, or 12_0, 12_1, ... of an array; empty for an unknown job.

    Raises:
        LaunchError: The controller does not respond.
        MissingDependency: scontrol was not found.
    """
    result = _call(["scontrol", "--oneliner", "show", "job", job])
    if result.returncode and "Invalid job id" in result.stderr:
        return {}
    if result.returncode:
        raise _refused(f"scontrol does not show job {plain(job)}", result, command="scontrol", job=job)
    facts_by_run = {}
    for line in result.stdout.splitlines():
        facts = dict(re.findall(r"(?:^| )([A-Za-z]\w*)=(\S*)", line))
        is_of_array = facts.get("ArrayTaskId", "-").isdigit()
        facts_by_run[f"{facts['ArrayJobId']}_{facts['ArrayTaskId']}" if is_of_array else job] = facts
    return facts_by_run


def cancel(jobs: Sequence[str]) -> None:
    """Cancel jobs.

    Raises:
        LaunchError: Slurm refuses.
        MissingDependency: scancel was not found.
    """
    result = _call(["scancel", *jobs])
    if result.returncode or "error" in result.stderr:
        raise _refused(f"scancel {' '.join(jobs)}", result, command="scancel", jobs=jobs)


def check_job_id(text: str, option: str) -> str:
    """Return a valid job ID.

    Raises:
        ConfigError: The text is not a job ID.
    """
    if not JOB_ID.fullmatch(text):
        problem = f"{option} {plain(text)} is not a job ID; allowed: 1234, or 1234_5 for a run of an array"
        raise ConfigError(problem, code="cli.invalid_value", option=option)
    return text


def _call(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        remedy = (
            "run this on a machine with Slurm's commands (a login node), print the script with --dry-run, or start a "
            "test cluster: paratune toy-cluster start"
        )
        raise MissingDependency(f"{words[0]} was not found: {remedy}", code="dependency.program_missing") from error
    except subprocess.TimeoutExpired as error:
        text = f"{words[0]} did not respond in {TIMEOUT_S:.0f} s: the controller is busy or down"
        raise LaunchError(text, code="slurm.no_answer") from error


def _refused(failure: str, result: "subprocess.CompletedProcess[str]", **facts: Any) -> LaunchError:
    lines = [re.sub(r"^(\w+: )?(error: )?", "", line) for line in (result.stderr or result.stdout).strip().splitlines()]
    reason = plain("; ".join(lines)) or f"exit code {result.returncode}, no output"
    return LaunchError(f"{failure}: {reason}", code="slurm.refused", **facts)
