"""`paratune jobs` and `paratune cancel`: show and cancel the submitted Slurm jobs."""

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from paratune.cluster import jobs as cluster_jobs
from paratune.cluster import slurm
from paratune.cluster.slurm import ENDED, check_job_id, controller_facts, queue
from paratune.commands.options import Json
from paratune.console import print_json, print_table, print_warning
from paratune.errors import EXIT_OK, LaunchError

NUM_ENDED_SHOWN = 20
"""Number of the latest ended jobs that are shown."""


def jobs(*paths: Path, all_: bool = False, json: Json = False) -> int:
    """Show the submitted jobs of runs and matrices, and their state; without PATHS, of all runs below runs/.

    Args:
        all_: also show jobs that ended long ago
    """
    submitted = cluster_jobs.submissions(paths or [Path("runs")])
    queued = queue() if submitted else []
    statuses = [cluster_jobs.status(job, queued) for job in submitted]
    if json:
        print_json([cluster_jobs.as_dict(status) for status in statuses], indent=1)
        return EXIT_OK
    if not all_:
        first_shown = len(statuses) - NUM_ENDED_SHOWN
        statuses = [status for number, status in enumerate(statuses) if not status.is_over or number >= first_shown]
    if not statuses:
        print("no submitted jobs here; submit one: paratune launch CONFIG --site SITE.yaml", file=sys.stderr)  # noqa: T201
        return EXIT_OK
    print_table(("job", "name", "state", "nodes", "time", "queued again", "folder"), map(_row, statuses))
    if stalled := [status.submitted.job for status in statuses if cluster_jobs.NO_PROGRESS in status.states]:
        print_warning(
            f"{' '.join(stalled)}: not queued again, because a run made no checkpoint in the time of its job; set a "
            "longer time: in the site file, or save more often (checkpoint.every), and submit again",
            "slurm.no_progress",
        )
    return EXIT_OK


def _row(status: cluster_jobs.Status) -> list[Any]:
    states = ", ".join(f"{n} {state}" if status.submitted.is_array else state for state, n in status.states.items())
    reason = f" ({status.reason})" if status.reason else ""
    num_requeued = "n/a" if status.num_requeued is None else status.num_requeued
    folder = Path(status.submitted.folder)
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    submitted = status.submitted
    return [submitted.job, submitted.name, states + reason, status.nodes, status.elapsed, num_requeued, folder]


def _queued(number: str) -> str:
    """Return the number that scancel needs for a job in the queue.

    squeue may show a run of an array under a number that scancel does not accept.

    Raises:
        LaunchError: The job has ended, or is unknown to Slurm; scancel would print nothing.
    """
    facts = controller_facts(number)
    if any(job.get("JobState") not in ENDED for job in facts.values()):
        is_array = any(job.get("ArrayJobId", number) == number for job in facts.values())
        return number if is_array else next(iter(facts))
    state = next((job["JobState"] for job in facts.values()), None)
    why = f"has ended ({state})" if state else "is not known to Slurm: it never existed, or ended minutes ago"
    message = f"job {number} {why}; nothing was cancelled; paratune jobs shows the queue"
    raise LaunchError(message, code="slurm.unknown_job", number=number)


def cancel(*jobs: Annotated[str, Parameter(required=True)], json: Json = False) -> int:
    """Cancel JOBS, given by number or by run folder; a running job saves a checkpoint first."""
    numbers: list[str] = []
    for job in jobs:
        folder = Path(job)
        if not folder.is_dir():
            numbers.append(_queued(check_job_id(job, "paratune cancel:")))
            continue
        queued, submitted = queue(), cluster_jobs.submissions([folder])
        in_queue = [entry.job for entry in submitted if not cluster_jobs.status(entry, queued).is_over]
        if not in_queue:
            raise LaunchError(f"{job} has no job in the queue", code="slurm.unknown_job")
        numbers += in_queue
    slurm.cancel(numbers)
    if json:
        print_json({"cancelled": numbers})
    else:
        print(f"cancelled: {' '.join(numbers)}; a running job saves a checkpoint, and paratune launch resumes it")  # noqa: T201
    return EXIT_OK
