"""Creates the executor of datatrove for `paratune corpus CONFIG --executor ...`."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paratune.cluster import slurm
from paratune.cluster.script import setup_lines
from paratune.cluster.shell import quoted
from paratune.cluster.site import Site, read_site
from paratune.corpus.executors import ShardExecutor, StartTasks, start_local, start_ray, start_slurm
from paratune.errors import EXIT_LAUNCH, ConfigError, option_error, require_at_least, require_installed

LOCAL_STAGES = ("index", "fetch")
"""Stages that may send requests to an archive; its rate limit applies to the address of one machine."""
MAX_TASKS = 1001
"""Maximum of a Slurm array, unless a cluster allows more."""
POLL_S = 5.0
"""Seconds between two requests to the queue."""


def executor_spread(
    work: Path, executor: str, *, tasks: int, workers: int, site: Path | None, memory_gib: int | None
) -> ShardExecutor:
    """Return the executor: local, slurm or ray.

    Args:
        tasks: Maximum number of tasks of a stage.
        workers: Number of tasks at the same time on this machine, for local.
        site: File that describes the cluster, for slurm.
        memory_gib: Memory of a task, for slurm and ray; 2 when None.

    Raises:
        ConfigError: Options do not fit together, or the site lacks an option that the executor needs.
        MissingDependency: The executor is not installed.
    """
    require_at_least("--tasks", tasks)
    require_at_least("--task-gib", memory_gib)
    if (site is None) == (executor == "slurm"):
        message = "--executor slurm needs --site, the file that describes the cluster; other executors have no --site"
        raise ConfigError(message, code="cli.option_missing", option="--site")
    if executor == "local" and memory_gib is not None:
        message = "--task-gib is the memory that a task requests on a cluster; it has no effect with --executor local"
        raise ConfigError(message, code="cli.no_effect", option="--task-gib")
    require_installed("datatrove", extra="corpus")
    if executor == "local":
        return ShardExecutor(work, tasks, start_local(workers))
    memory = memory_gib or 2
    if site is None:
        require_installed("ray", extra="corpus")
        return ShardExecutor(work, tasks, start_ray(memory))
    if tasks > MAX_TASKS:
        reason = f"at most {MAX_TASKS} of a Slurm job; a task makes several shards"
        raise option_error("--tasks", tasks, reason, code="cli.out_of_range")
    job = _Job()
    return ShardExecutor(work, tasks, _slurm(read_site(site), memory, job), job.cancel)


class _Job:
    """The job of a stage in Slurm's queue."""

    def __init__(self) -> None:
        self._number: str | None = None
        self._polled = -POLL_S
        self._is_there = True

    def submitted(self, number: str) -> Callable[[], bool]:
        self._number, self._is_there = number, True
        return self._is_running

    def cancel(self) -> None:
        if self._number is not None:
            slurm.cancel([self._number])

    def _is_running(self) -> bool:
        if time.monotonic() - self._polled >= POLL_S:
            self._polled = time.monotonic()
            self._is_there = any(job.job == self._number for job in slurm.queue())
        return self._is_there


def _slurm(site: Site, memory_gib: int, job: _Job) -> StartTasks:
    if site.partition is None or site.time is None:
        message = "--site: datatrove's Slurm executor needs partition: and time: in the site file"
        raise ConfigError(message, code="site.incomplete", option="--site", keys=("partition", "time"))
    if site.container is not None:
        message = "--site: datatrove's Slurm executor starts no container; set venv: in the site file instead"
        raise ConfigError(message, code="site.invalid_value", option="--site")
    named = ("account", "reservation", "constraint")
    # If a task of an array fails, Slurm would keep the job that waits for the array in the queue.
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
    return start_slurm(options, job.submitted)


NOT_READY = f'not_ready() {{ echo "$1 cannot be loaded: the task was not started" >&2; exit {EXIT_LAUNCH}; }}'
"""The shell function that the lines of a site call when a module or an environment is missing."""


def _environment(site: Site) -> list[str]:
    """Return the lines of shell that run before a task."""
    own = [] if site.venv is not None else [f'export PATH={quoted(str(Path(sys.executable).parent))}:"$PATH"']
    return [NOT_READY, *own, *setup_lines(site), "export OMP_NUM_THREADS=1"]
