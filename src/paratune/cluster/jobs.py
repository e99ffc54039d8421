"""Submits, lists and cancels Slurm jobs, records them, finds their state and exit code, and waits for them.

The folder `slurm` in that of the run or matrix contains `jobs.jsonl`, scripts, outputs, and `JOB.exit` with the exit
code of each job, because Slurm forgets jobs after some minutes, and accounting (`sacct`) is missing on many sites.
"""

import getpass
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from paratune.base.text import plain
from paratune.errors import CheckpointError, ConfigError, LaunchError, MissingDependency, os_error_as
from paratune.records.run_folder import SLURM_FOLDER

TIMEOUT_S = 120.0
"""Timeout of a command, in seconds; a busy controller is slow."""
ENDED = frozenset(
    {
        *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL"),
        *("PREEMPTED", "REVOKED"),
    }
)
"""Final states of a job."""
_FORMAT = "%i|%F|%T|%M|%N|%r"
JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?")


@dataclass(frozen=True)
class Queued:
    """A job, or a run of an array, in the queue."""

    id: str
    """12; 12_3 for a run of an array."""
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
    result = _call(["squeue", "--noheader", "--array", "--user", getpass.getuser(), "--format", _FORMAT])
    if result.returncode:
        raise _refused("squeue does not list the queue", result, command="squeue")
    return [Queued(*line.split("|", 5)) for line in result.stdout.splitlines()]


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


JOBS_FILE = "jobs.jsonl"
FIRST_S = 1.0
LAST_S = 10.0
"""Seconds between polls, which increase to limit the load of the controller."""
MAX_UNKNOWN = 5
"""Polls after which a job that is not in the queue, unknown and without an exit code counts as over."""
REQUEUED = "requeued"
"""Content of JOB.exit of a job that is queued again."""
NO_PROGRESS = "no progress"
"""State of a run that was not queued again, because it made no checkpoint; in JOB.exit behind the exit code."""


@dataclass(frozen=True)
class Submitted:
    """A submitted job."""

    job: Annotated[str, Field(pattern=f"^{JOB_ID.pattern}$")]
    """Job ID."""
    name: str
    submitted: str
    """Time of submission; ISO 8601."""
    folder: str
    """Folder of the run or matrix."""
    site: str
    script: str
    num_nodes: int
    num_processes: int
    num_runs: Annotated[int, Field(ge=0, le=1_000_000)]
    """Slurm's limit of an array is lower."""
    is_array: bool
    after: tuple[str, ...] = ()

    @property
    def slurm_folder(self) -> Path:
        return Path(self.folder) / SLURM_FOLDER

    @property
    def run_ids(self) -> list[str]:
        """Job IDs of its runs."""
        return [f"{self.job}_{number}" for number in range(self.num_runs)] if self.is_array else [self.job]


@dataclass(frozen=True)
class Status:
    """The state of a submission."""

    submitted: Submitted
    states: dict[str, int]
    """Number of its runs in each state: pending, running, ended well, ..."""
    nodes: str
    elapsed: str
    reason: str | None
    """Reason for waiting."""
    num_requeued: int | None
    """How often its runs were queued again; None if Slurm has forgotten the job."""
    exit_code: int | None
    """None before all runs have ended, or if unknown."""

    @property
    def is_over(self) -> bool:
        return not any(state in ("pending", "running", "queued again", "ending") for state in self.states)


def record_submission(submitted: Submitted) -> None:
    """Add a submission to its folder.

    Raises:
        CheckpointError: The file is not writable; the job remains submitted.
    """
    path = submitted.slurm_folder / JOBS_FILE
    # A new cluster starts with ID 1 again: delete exit files of earlier jobs with the same ID.
    began = datetime.fromisoformat(submitted.submitted).timestamp()
    for run in submitted.run_ids:
        left = submitted.slurm_folder / f"{run}.exit"
        if left.exists() and left.stat().st_mtime < began:
            left.unlink()
    failure = f"job {submitted.job} is submitted, but {path} cannot be written"
    failed = os_error_as(CheckpointError, failure, code="output.not_writable", job=submitted.job, path=path)
    with failed, path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(submitted)) + "\n")


def submissions(paths: Sequence[Path]) -> list[Submitted]:
    """Return the submissions of runs and matrices, sorted by job ID; `paths` are their folders, or parents of them."""
    files = [
        path
        for folder in paths
        for path in (folder / SLURM_FOLDER / JOBS_FILE, *sorted(folder.glob(f"*/{SLURM_FOLDER}/{JOBS_FILE}")))
        if path.exists()
    ]
    by_job: dict[tuple[str, str], Submitted] = {}
    lines = TypeAdapter(Submitted)
    for file in dict.fromkeys(files):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            # A line may be truncated if the disk was full. Anybody may have written it: with another type, the number
            # could be an option of scontrol and scancel.
            with suppress(ValidationError):
                submitted = lines.validate_json(line, strict=True)
                by_job[submitted.job, submitted.folder] = submitted
    return sorted(
        by_job.values(), key=lambda submitted: (int(submitted.job) if submitted.job.isdigit() else 0, submitted.job)
    )


def status(submitted: Submitted, queued: Iterable[Queued]) -> Status:
    """Return the state of a submission, given all jobs in the queue."""
    mine = [entry for entry in queued if entry.job == submitted.job]
    facts: dict[str, dict[str, str]] = {}
    with suppress(LaunchError):  # without these facts, a state may be n/a once
        facts = controller_facts(submitted.job)
    states: dict[str, int] = {}
    codes: list[int | None] = []
    for run in submitted.run_ids:
        word, code = _run_state(submitted, run, mine, facts.get(run, {}))
        states[word] = states.get(word, 0) + 1
        codes.append(code)
    waits = next((entry.reason for entry in mine if entry.state == "PENDING" and entry.reason != "None"), None)
    restarts = [fact["Restarts"] for fact in facts.values() if fact.get("Restarts", "").isdigit()]
    return Status(
        submitted,
        states,
        nodes=",".join(entry.nodes for entry in mine if entry.nodes),
        elapsed=next((entry.elapsed for entry in mine if entry.state == "RUNNING"), ""),
        reason=waits,
        num_requeued=sum(map(int, restarts)) if restarts else None,
        # The first one other than 0, or 0; None if one is unknown.
        exit_code=None if None in codes else next((code for code in codes if code), 0),
    )


def _run_state(
    submitted: Submitted, run: str, queued: Sequence[Queued], facts: dict[str, str]
) -> tuple[str, int | None]:
    here = next((entry for entry in queued if entry.id == run), None)
    exit_text = recorded_exit(submitted, run)
    if here is not None and here.state not in ENDED:
        was_queued = exit_text == REQUEUED or facts.get("Restarts", "0") != "0"
        words = {"RUNNING": "running", "PENDING": "queued again" if was_queued else "pending"}
        return words.get(here.state, "ending" if here.state == "COMPLETING" else here.state.lower()), None
    state = facts.get("JobState", "")
    exit_code, _, note = (exit_text or "").partition(" ")
    if state in ("CANCELLED", "TIMEOUT", "NODE_FAIL", "DEADLINE"):
        return state.lower().replace("_", " "), int(exit_code) if exit_code.isdigit() else 5
    if exit_code.isdigit():
        return note or ("ended well" if exit_code == "0" else f"ended with {exit_code}"), int(exit_code)
    if state in ENDED:
        code = facts.get("ExitCode", "").partition(":")[0]
        return state.lower(), int(code) if code.isdigit() else None
    return "n/a", None


def recorded_exit(submitted: Submitted, run: str) -> str | None:
    """Return the note of the script of a run at its end: an exit code, also with NO_PROGRESS, or REQUEUED; None without
    a file."""
    try:
        return (submitted.slurm_folder / f"{run}.exit").read_text().strip() or None
    except OSError:
        return None


def as_dict(status: Status) -> dict[str, Any]:
    """Return a status as plain data."""
    values = asdict(status)
    return {**values.pop("submitted"), **values, "is_over": status.is_over}


def wait_for(
    submitted: Sequence[Submitted], log: Callable[[str], None], *, sleep: Callable[[float], None] = time.sleep
) -> list[Status]:
    """Wait until all jobs are over, and return their states.

    Raises:
        LaunchError: The controller does not respond.
    """
    last_lines: dict[str, str] = {}
    interval, num_unknown = FIRST_S, 0
    while True:
        queued = queue()
        statuses = [status(submission, queued) for submission in submitted]
        for job_status in statuses:
            line = status_line(job_status)
            if last_lines.get(job_status.submitted.job) != line:
                last_lines[job_status.submitted.job] = line
                log(line)
        if all(job_status.is_over for job_status in statuses):
            # The exit code of a job may appear shortly after it left the queue.
            num_unknown += 1
            if all(job_status.exit_code is not None for job_status in statuses) or num_unknown >= MAX_UNKNOWN:
                return statuses
        sleep(interval)
        interval = min(LAST_S, interval * 1.2)


def status_line(job_status: Status) -> str:
    """Return the state of a job, in one line."""
    states = ", ".join(
        f"{count} {state}" if job_status.submitted.is_array else state for state, count in job_status.states.items()
    )
    nodes = f" on {job_status.nodes}" if job_status.nodes else ""
    reason = f" ({job_status.reason})" if job_status.reason else ""
    times = job_status.num_requeued or 0
    again = f", queued again {'once' if times == 1 else f'{times} times'}" if times else ""
    return plain(f"job {job_status.submitted.job} {job_status.submitted.name}: {states}{nodes}{reason}{again}")
