"""Jobs that were submitted from here: what was, what has become of them, and how they ended.

A folder `slurm` in that of the run, or of the matrix, holds `jobs.jsonl`, the scripts, the outputs, and `JOB.exit` with
what each ended with, so that nothing hangs on Slurm's memory of a job, which is some minutes long.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paratune.cluster.slurm import ENDED, Queued, known
from paratune.errors import CheckpointError, LaunchError
from paratune.records.run_folder import SLURM_FOLDER

JOBS_FILE = "jobs.jsonl"
REQUEUED = "requeued"
"""In JOB.exit, of a job that waits for its next start."""


@dataclass(frozen=True)
class Submitted:
    """One submission."""

    job: str
    """Its number."""
    name: str
    submitted: str
    """When; ISO 8601."""
    folder: str
    """Of the run, or of the matrix."""
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
        """The number of each of its runs."""
        return [f"{self.job}_{number}" for number in range(self.num_runs)] if self.is_array else [self.job]


@dataclass(frozen=True)
class Status:
    """What has become of a submission."""

    submitted: Submitted
    states: dict[str, int]
    """How many of its runs are in each state: pending, running, ended well, ..."""
    nodes: str
    elapsed: str
    reason: str | None
    """Why it waits."""
    num_requeued: int | None
    """How often its runs were queued again; None where Slurm has forgotten it."""
    exit_code: int | None
    """None while a run is to end, or when nobody knows."""

    @property
    def is_over(self) -> bool:
        return not any(state in ("pending", "running", "queued again", "ending") for state in self.states)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def note(submitted: Submitted) -> None:
    """Add a submission to its folder.

    Raises:
        CheckpointError: It cannot be written; the job is submitted all the same.
    """
    path = submitted.slurm_folder / JOBS_FILE
    # A cluster that was made anew begins its numbers again: what an earlier job of this one left is not its word.
    began = datetime.fromisoformat(submitted.submitted).timestamp()
    for run in submitted.run_ids:
        left = submitted.slurm_folder / f"{run}.exit"
        if left.exists() and left.stat().st_mtime < began:
            left.unlink()
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(submitted)) + "\n")
    except OSError as error:
        raise CheckpointError(
            f"job {submitted.job} is submitted, but {path} cannot be written: {error.strerror}",
            code="run.not_writable",
            job=submitted.job,
            path=path,
        ) from error


def submissions(paths: Sequence[Path]) -> list[Submitted]:
    """Return what was submitted for runs and matrices, in the order of their numbers.

    Args:
        paths: Their folders, or folders of them.
    """
    files = [
        path
        for each in paths
        for path in (each / SLURM_FOLDER / JOBS_FILE, *sorted(each.glob(f"*/{SLURM_FOLDER}/{JOBS_FILE}")))
        if path.exists()
    ]
    found: dict[tuple[str, str], Submitted] = {}
    for file in dict.fromkeys(files):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, TypeError):  # a line that was cut off when the disk was full
                values = json.loads(line)
                each = Submitted(**{**values, "after": tuple(values.get("after", ()))})
                found[each.job, each.folder] = each
    return sorted(found.values(), key=lambda each: (int(each.job) if each.job.isdigit() else 0, each.job))


def status(submitted: Submitted, queued: Iterable[Queued]) -> Status:
    """Return what has become of a submission.

    Args:
        submitted: The submission.
        queued: All that is in the queue.
    """
    mine = [each for each in queued if each.job == submitted.job]
    facts: dict[str, dict[str, str]] = {}
    with suppress(LaunchError):  # the queue has answered; without the rest a state may be n/a, once
        facts = known(submitted.job)
    states: dict[str, int] = {}
    codes: list[int | None] = []
    for run in submitted.run_ids:
        word, code = _run_state(submitted, run, mine, facts.get(run, {}))
        states[word] = states.get(word, 0) + 1
        codes.append(code)
    waits = next((each.reason for each in mine if each.state == "PENDING" and each.reason != "None"), None)
    restarts = [each["Restarts"] for each in facts.values() if each.get("Restarts", "").isdigit()]
    return Status(
        submitted,
        states,
        nodes=",".join(each.nodes for each in mine if each.nodes),
        elapsed=next((each.elapsed for each in mine if each.state == "RUNNING"), ""),
        reason=waits,
        num_requeued=sum(map(int, restarts)) if restarts else None,
        exit_code=_together(codes),
    )


def _run_state(
    submitted: Submitted, run: str, queued: Sequence[Queued], facts: dict[str, str]
) -> tuple[str, int | None]:
    here = next((each for each in queued if each.id == run), None)
    if here is None and submitted.is_array:  # those that wait stand on one line, 12_[3-7]
        here = next((each for each in queued if "[" in each.id and _is_among(run, each.id)), None)
    said = exit_said(submitted, run)
    if here is not None and here.state not in ENDED:
        was_queued = said == REQUEUED or facts.get("Restarts", "0") != "0"
        words = {"RUNNING": "running", "PENDING": "queued again" if was_queued else "pending"}
        return words.get(here.state, "ending" if here.state == "COMPLETING" else here.state.lower()), None
    state = facts.get("JobState", "")
    if state in ("CANCELLED", "TIMEOUT", "NODE_FAIL", "DEADLINE"):
        return state.lower().replace("_", " "), int(said) if said and said.isdigit() else 5
    if said is not None and said.isdigit():
        return ("ended well" if said == "0" else f"ended with {said}"), int(said)
    if state in ENDED:
        code = facts.get("ExitCode", "").partition(":")[0]
        return state.lower(), int(code) if code.isdigit() else None
    return "n/a", None


def exit_said(submitted: Submitted, run: str) -> str | None:
    """Return what the script of a run wrote at its end: an exit code, or REQUEUED; None when it wrote nothing."""
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
    """Return the exit code of a submission: 0 when all ended well, that of the first that did not otherwise."""
    if any(code is None for code in codes):
        return None
    return next((code for code in codes if code), 0)


def as_dict(found: Status) -> dict[str, Any]:
    """Return a status as plain data."""
    return {
        **asdict(found.submitted),
        "states": found.states,
        "nodes": found.nodes,
        "elapsed": found.elapsed,
        "reason": found.reason,
        "num_requeued": found.num_requeued,
        "exit_code": found.exit_code,
        "is_over": found.is_over,
    }
