"""Slurm's own commands: submit, ask, cancel. None needs accounting (`sacct`), which many sites do not have."""

import getpass
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paratune.base.text import plain
from paratune.errors import ConfigError, LaunchError, MissingDependency

TIMEOUT_S = 120.0
"""How long a controller that is busy may take to answer."""
ENDED = frozenset(
    {
        *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL"),
        *("PREEMPTED", "REVOKED"),
    }
)
"""States after which nothing more happens."""
_FORMAT = "%i|%F|%K|%T|%M|%D|%N|%r"
_JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?")


@dataclass(frozen=True)
class Queued:
    """A job, or a run of an array, in the queue."""

    id: str
    """12, 12_3 for a run of an array, 12_[4-7] for those that wait together."""
    job: str
    """The number that the submission gave: 12."""
    state: str
    """PENDING, RUNNING, ..."""
    elapsed: str
    nodes: str
    """Their names; empty while it waits."""
    reason: str
    """Why it waits; None when it does not."""


def submit(script: Path, *, after: Sequence[str] = ()) -> str:
    """Give a script to Slurm and return the number of the job.

    Args:
        script: The batch script.
        after: Jobs that must have ended well before it may start; if one of them fails, it is cancelled.

    Raises:
        LaunchError: Slurm refuses it; the text is Slurm's.
        MissingDependency: There is no sbatch here.
    """
    words = ["sbatch", "--parsable"]
    if after:
        words += [f"--dependency=afterok:{':'.join(after)}", "--kill-on-invalid-dep=yes"]
    result = _call([*words, str(script)])
    number = result.stdout.strip().partition(";")[0]
    if result.returncode or not _JOB_ID.fullmatch(number):
        raise LaunchError(
            f"sbatch refuses {plain(script)}: {_said(result)}", code="slurm.refused", script=script, command="sbatch"
        )
    return number


def queue() -> list[Queued]:
    """Return this user's jobs in the queue.

    Raises:
        LaunchError: The controller does not answer.
        MissingDependency: There is no squeue here.
    """
    result = _call(["squeue", "--noheader", "--user", getpass.getuser(), "--format", _FORMAT])
    if result.returncode:
        raise LaunchError(f"squeue does not list the queue: {_said(result)}", code="slurm.refused", command="squeue")
    found = []
    for line in result.stdout.splitlines():
        number, job, _, state, elapsed, _, nodes, reason = line.split("|", 7)
        found.append(Queued(number, job, state, elapsed, nodes, reason))
    return found


def known(job: str) -> dict[str, dict[str, str]]:
    """Return what the controller still knows of a job, by its own names; it forgets those that ended minutes ago.

    Returns:
        `JobState`, `ExitCode`, `Restarts`, ... by run: 12, or 12_0, 12_1, ... of an array; empty when it is forgotten.

    Raises:
        LaunchError: The controller does not answer.
        MissingDependency: There is no scontrol here.
    """
    result = _call(["scontrol", "--oneliner", "show", "job", job])
    if result.returncode and "Invalid job id" in result.stderr:
        return {}
    if result.returncode:
        raise LaunchError(
            f"scontrol does not show job {plain(job)}: {_said(result)}",
            code="slurm.refused",
            job=job,
            command="scontrol",
        )
    found = {}
    for line in result.stdout.splitlines():
        facts = dict(re.findall(r"(?:^| )([A-Za-z]\w*)=(\S*)", line))
        is_of_array = facts.get("ArrayTaskId", "-").isdigit()
        found[f"{facts['ArrayJobId']}_{facts['ArrayTaskId']}" if is_of_array else job] = facts
    return found


def cancel(jobs: Sequence[str]) -> None:
    """Cancel jobs.

    Raises:
        LaunchError: Slurm refuses.
        MissingDependency: There is no scancel here.
    """
    result = _call(["scancel", *jobs])
    if result.returncode or "error" in result.stderr:
        raise LaunchError(
            f"scancel {' '.join(jobs)}: {_said(result)}", code="slurm.refused", jobs=jobs, command="scancel"
        )


def check_job_id(text: str, option: str) -> str:
    """Return a number of a job.

    Raises:
        ConfigError: It is none.
    """
    if not _JOB_ID.fullmatch(text):
        raise ConfigError(
            f"{option} {plain(text)} is not the number of a job; allowed: 1234, or 1234_5 for a run of an array",
            code="cli.invalid_value",
            option=option,
        )
    return text


def _call(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise MissingDependency(
            f"{words[0]} is not here: run this where Slurm's commands are (a login node), look at the script with "
            "--dry-run, or start a cluster to try on: paratune toy-cluster start",
            code="dependency.program_missing",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"{words[0]} did not answer in {TIMEOUT_S:.0f} s: the controller is busy or down", code="slurm.no_answer"
        ) from error


def _said(result: "subprocess.CompletedProcess[str]") -> str:
    lines = [re.sub(r"^(\w+: )?(error: )?", "", line) for line in (result.stderr or result.stdout).strip().splitlines()]
    return plain("; ".join(lines)) or f"exit code {result.returncode}, without a word"
