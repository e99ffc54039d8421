"""`paratune jobs` and `paratune cancel`: what was submitted to Slurm from here, and how to end it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.cluster import jobs
from paratune.cluster.slurm import ENDED, cancel, check_job_id, known, queue
from paratune.console import print_json, print_result
from paratune.errors import EXIT_OK, LaunchError

NUM_SHOWN = 20
"""Jobs that are over and shown all the same: the last ones."""


def jobs_command(paths: Sequence[Path], *, show_all: bool, as_json: bool) -> int:
    """Run `paratune jobs`; return its exit code.

    Raises:
        ParatuneError: Slurm does not answer.
    """
    submitted = jobs.submissions(paths or [Path("runs")])
    queued = queue() if submitted else []
    found = [jobs.status(each, queued) for each in submitted]
    if not show_all and not as_json and len(found) > NUM_SHOWN:
        found = [each for number, each in enumerate(found) if not each.is_over or number >= len(found) - NUM_SHOWN]
    if as_json:
        print_json([jobs.as_dict(each) for each in found], indent=1)
        return EXIT_OK
    if not found:
        print("nothing was submitted from here: paratune launch CONFIG --site SITE.yaml", file=sys.stderr)  # noqa: T201
        return EXIT_OK
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("job", "name", "state", "nodes", "time", "queued again", "folder"):
        table.add_column(name, overflow="fold")
    for each in found:
        table.add_row(*(Text(plain(cell)) for cell in _row(each)))
    print_result(table)
    return EXIT_OK


def _row(found: jobs.Status) -> list[Any]:
    states = ", ".join(f"{n} {state}" if found.submitted.is_array else state for state, n in found.states.items())
    reason = f" ({found.reason})" if found.reason else ""
    again = "n/a" if found.num_requeued is None else found.num_requeued
    folder = Path(found.submitted.folder)
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    return [found.submitted.job, found.submitted.name, states + reason, found.nodes, found.elapsed, again, folder]


def _queued(number: str) -> str:
    """Return a job's number as scancel knows it, if it is not over; it is silent about one that is, or never was.

    A run of an array has a number of its own as well, under which squeue may show it, and scancel does not find it.

    Raises:
        LaunchError: It is over, or Slurm does not know it.
    """
    facts = known(number)
    if any(each.get("JobState") not in ENDED for each in facts.values()):
        is_one = all(each.get("ArrayJobId", number) != number for each in facts.values())
        return next(iter(facts)) if is_one else number
    state = next((each["JobState"] for each in facts.values()), None)
    why = f"is over ({state})" if state else "is not known to Slurm: it never was, or ended minutes ago"
    raise LaunchError(
        f"job {number} {why}; nothing was cancelled; paratune jobs shows what is in the queue",
        code="slurm.unknown_job",
        number=number,
    )


def cancel_command(given: Sequence[str], *, as_json: bool) -> int:
    """Run `paratune cancel`; return its exit code.

    Raises:
        ParatuneError: Something is no job, or Slurm refuses.
    """
    numbers: list[str] = []
    for each in given:
        if not Path(each).is_dir():
            numbers.append(_queued(check_job_id(each, "paratune cancel:")))
            continue
        queued = queue()
        here = [s.job for s in jobs.submissions([Path(each)]) if not jobs.status(s, queued).is_over]
        if not here:
            raise LaunchError(f"{each} has no job in the queue", code="slurm.unknown_job")
        numbers += here
    cancel(numbers)
    if as_json:
        print_json({"cancelled": numbers})
    else:
        words = "a run that was training saves a checkpoint first, and paratune launch continues it"
        print(f"cancelled: {' '.join(numbers)}; {words}")  # noqa: T201
    return EXIT_OK
