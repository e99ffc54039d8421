"""Wait for jobs: look again and again, and say what changes. `sbatch --wait` would say it up to 30 s late."""

import time
from collections.abc import Callable, Sequence

from paratune.base.text import plain
from paratune.cluster.jobs import Status, Submitted, status
from paratune.cluster.slurm import queue

FIRST_S = 1.0
LAST_S = 10.0
"""Seconds between two looks: more as time goes on, for the controller's sake."""
MAX_UNKNOWN = 5
"""Looks after which a job that is neither queued nor known, and left no word, is given up."""


def wait_for(
    submitted: Sequence[Submitted], say: Callable[[str], None], *, sleep: Callable[[float], None] = time.sleep
) -> list[Status]:
    """Wait until all jobs are over; return how.

    Args:
        submitted: The jobs.
        say: Told a line for each change.
        sleep: Waits; tests have their own.

    Raises:
        LaunchError: The controller does not answer.
    """
    said: dict[str, str] = {}
    interval, num_unknown = FIRST_S, 0
    while True:
        queued = queue()
        found = [status(each, queued) for each in submitted]
        for each in found:
            line = words(each)
            if said.get(each.submitted.job) != line:
                said[each.submitted.job] = line
                say(line)
        if all(each.is_over for each in found):
            # The last word of a job may come a moment after it left the queue.
            num_unknown += 1
            if all(each.exit_code is not None for each in found) or num_unknown >= MAX_UNKNOWN:
                return found
        sleep(interval)
        interval = min(LAST_S, interval * 1.2)


def words(found: Status) -> str:
    """Return what has become of a job, in one line."""
    states = ", ".join(
        f"{count} {state}" if found.submitted.is_array else state for state, count in found.states.items()
    )
    nodes = f" on {found.nodes}" if found.nodes else ""
    reason = f" ({found.reason})" if found.reason else ""
    times = found.num_requeued or 0
    again = f", queued again {'once' if times == 1 else f'{times} times'}" if times else ""
    return plain(f"job {found.submitted.job} {found.submitted.name}: {states}{nodes}{reason}{again}")
