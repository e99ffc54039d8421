"""`paratune corpus CONFIG --executor ...`: which of datatrove's executors makes the shards, and what it is told."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paratune.cluster import slurm
from paratune.cluster.script import setup_lines
from paratune.cluster.shell import quoted
from paratune.cluster.site import Site, read_site
from paratune.corpus.spread import ExecutorSpread, Start, by_local, by_ray, by_slurm
from paratune.errors import EXIT_LAUNCH, ConfigError, did_you_mean, option_error, require_installed

EXECUTORS = ("local", "slurm", "ray")
AT_HOME = ("index", "fetch")
"""Stages that may ask an archive, whose limit of requests holds for the address of one machine."""
MOST_TASKS = 1001
"""Of a Slurm array, unless a site allows more."""
ASK_S = 5.0
"""Seconds between two looks at the queue."""


def spread_of(
    work: Path, *, executor: str, tasks: int, workers: int, site: Path | None, memory_gib: int | None
) -> ExecutorSpread:
    """Return what makes the shards.

    Args:
        work: The folder of all stages.
        executor: local, slurm or ray.
        tasks: Most tasks of a stage.
        workers: Tasks at a time on this machine, for local.
        site: Profile of the cluster, for slurm.
        memory_gib: Of a task; 2 when None.

    Raises:
        ConfigError: Options do not fit together, or the site lacks what the executor needs.
        MissingDependency: The executor is not installed.
    """
    if executor not in EXECUTORS:
        known = ", ".join(EXECUTORS)
        raise option_error(
            "--executor",
            executor,
            f"there is none{did_you_mean(executor, EXECUTORS)} (allowed: {known})",
            code="cli.unknown_name",
        )
    if tasks < 1 or (memory_gib is not None and memory_gib < 1):
        raise ConfigError("--tasks and --task-gib: at least 1", code="cli.out_of_range")
    if (site is None) == (executor == "slurm"):
        raise ConfigError(
            "--executor slurm needs --site, the profile of the cluster; the others have none",
            code="cli.option_missing",
            option="--site",
        )
    if executor == "local" and memory_gib is not None:
        raise ConfigError(
            "--task-gib is what a task asks a cluster for; --executor local asks none",
            code="cli.no_effect",
            option="--task-gib",
        )
    require_installed("datatrove", extra="corpus")
    if executor == "local":
        return ExecutorSpread(work, tasks, by_local(workers))
    memory = memory_gib or 2
    if executor == "ray":
        require_installed("ray", extra="ray")
        return ExecutorSpread(work, tasks, by_ray(memory))
    assert site is not None
    if tasks > MOST_TASKS:
        raise option_error(
            "--tasks",
            tasks,
            f"at most {MOST_TASKS} of a Slurm job; a task makes several shards",
            code="cli.out_of_range",
        )
    job = _Job()
    return ExecutorSpread(work, tasks, _slurm(read_site(site), memory, job), job.cancel)


class _Job:
    """The job of a stage in Slurm's queue."""

    def __init__(self) -> None:
        self._number: str | None = None
        self._asked = -ASK_S
        self._is_there = True

    def submitted(self, number: str) -> Callable[[], bool]:
        self._number, self._is_there = number, True
        return self._goes_on

    def cancel(self) -> None:
        if self._number is not None:
            slurm.cancel([self._number])

    def _goes_on(self) -> bool:
        if time.monotonic() - self._asked >= ASK_S:
            self._asked = time.monotonic()
            self._is_there = any(each.job == self._number for each in slurm.queue())
        return self._is_there


def _slurm(site: Site, memory_gib: int, job: _Job) -> Start:
    if site.partition is None or site.time is None:
        raise ConfigError(
            "--site: datatrove's Slurm executor needs partition: and time: in the profile of the cluster",
            code="site.incomplete",
            option="--site",
            keys=("partition", "time"),
        )
    if site.container is not None:
        raise ConfigError(
            "--site: datatrove's Slurm executor starts no container; give the profile a venv: instead",
            code="site.invalid_value",
            option="--site",
        )
    named = ("account", "reservation", "constraint")
    # An array one of whose tasks failed leaves a job behind that waits for it.
    more: dict[str, Any] = {"kill-on-invalid-dep": "yes"}
    more |= {name: getattr(site, name) for name in named if getattr(site, name) is not None}
    more |= {"exclude": ",".join(site.exclude)} if site.exclude else {}
    for option in site.sbatch:
        name, _, value = option.removeprefix("--").partition("=")
        more[name] = value
    partition = site.partition if isinstance(site.partition, str) else ",".join(site.partition)
    options = {
        "time": site.time,
        "partition": partition,
        "qos": site.qos or "",
        "cpus_per_task": 1,
        "mem_per_cpu_gb": memory_gib,
        "env_command": "\n".join(_environment(site)),
        "sbatch_args": more,
    }
    return by_slurm(options, job.submitted)


NOT_READY = f'not_ready() {{ echo "$1 cannot be loaded: the task was not started" >&2; exit {EXIT_LAUNCH}; }}'
"""Where the lines of a site go on when a module or an environment is not there."""


def _environment(site: Site) -> list[str]:
    """Return the lines of shell that come before a task."""
    own = [] if site.venv is not None else [f'export PATH={quoted(str(Path(sys.executable).parent))}:"$PATH"']
    return [NOT_READY, *own, *setup_lines(site), "export OMP_NUM_THREADS=1"]
