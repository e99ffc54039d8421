"""Records submitted jobs, and finds their state and exit code.

The folder `slurm` in that of the run or matrix contains `jobs.jsonl`, scripts, outputs, and `JOB.exit` with the exit
code of each job, because Slurm forgets jobs after some minutes.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from paratune.cluster.slurm import ENDED, JOB_ID, Queued, controller_facts
from paratune.errors import CheckpointError, LaunchError, os_error_as
from paratune.records.run_folder import SLURM_FOLDER

JOBS_FILE = "jobs.jsonl"
MAX_RUNS = 1_000_000
"""Most runs of a submission that can be right: Slurm's limit of an array is lower."""
REQUEUED = "requeued"
"""Content of JOB.exit of a job that is queued again."""
NO_PROGRESS = "no progress"
"""State of a run that was not queued again, because it made no checkpoint; in JOB.exit behind the exit code."""


@dataclass(frozen=True)
class Submitted:
    """A submitted job."""

    job: str
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
    num_runs: int
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


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


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
    failed = os_error_as(CheckpointError, failure, code="run.not_writable", job=submitted.job, path=path)
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
    for file in dict.fromkeys(files):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, TypeError):  # a line may be truncated if the disk was full
                values = json.loads(line)
                submitted = Submitted(**{**values, "after": tuple(values.get("after", ()))})
                if _is_plain(submitted):
                    by_job[submitted.job, submitted.folder] = submitted
    return sorted(
        by_job.values(), key=lambda submitted: (int(submitted.job) if submitted.job.isdigit() else 0, submitted.job)
    )


def _is_plain(submitted: Submitted) -> bool:
    """Return whether all values have their types, and the number is no option of scontrol and scancel.

    Anybody may have written the line.
    """
    kinds = get_type_hints(Submitted)
    typed = all(isinstance(value, get_origin(kinds[key]) or kinds[key]) for key, value in vars(submitted).items())
    return typed and JOB_ID.fullmatch(submitted.job) is not None and 0 <= submitted.num_runs <= MAX_RUNS


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
        exit_code=_together(codes),
    )


def _run_state(
    submitted: Submitted, run: str, queued: Sequence[Queued], facts: dict[str, str]
) -> tuple[str, int | None]:
    here = next((entry for entry in queued if entry.id == run), None)
    if here is None and submitted.is_array:  # waiting runs share one line, 12_[3-7]
        here = next((entry for entry in queued if "[" in entry.id and _is_among(run, entry.id)), None)
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


def _is_among(run: str, line: str) -> bool:
    number = int(run.rpartition("_")[2])
    inside = line.partition("[")[2].partition("]")[0].partition("%")[0]
    for part in inside.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and int(first) <= number <= int(last.partition(":")[0] or first):
            return True
    return False


def _together(codes: Sequence[int | None]) -> int | None:
    """Return the exit code of a submission: the first one other than 0, or 0; None if one is unknown."""
    if any(code is None for code in codes):
        return None
    return next((code for code in codes if code), 0)


def as_dict(status: Status) -> dict[str, Any]:
    """Return a status as plain data."""
    values = asdict(status)
    return {**values.pop("submitted"), **values, "is_over": status.is_over}
