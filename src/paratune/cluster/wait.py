"""Waits for jobs by polling, and logs changes. `sbatch --wait` notices them up to 30 s later."""

import time
from collections.abc import Callable, Sequence

from paratune.base.text import plain
from paratune.cluster.jobs import Status, Submitted, status
from paratune.cluster.slurm import queue

FIRST_S = 1.0
LAST_S = 10.0
"""Seconds between polls, which increase to limit the load of the controller."""
MAX_UNKNOWN = 5
"""Polls after which a job that is not in the queue, unknown and without an exit code counts as over."""


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
