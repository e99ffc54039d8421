"""Makes the shards of a stage with datatrove's executors, for `paratune corpus CONFIG --executor ...`.

A task makes shards with the same functions as a local process does, so that the result is identical. The files of the
shards show which of them are complete. datatrove saves the pipeline with dill and its tasks load it: no other user may
be able to write to the folder.
"""

import fcntl
import math
import multiprocessing
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.cluster import jobs
from paratune.cluster.script import setup_lines
from paratune.cluster.site import Site, quoted, read_site
from paratune.corpus.shard import counts_file
from paratune.corpus.stage import Shards, Stage, Workers, end_with_parent, make_shard
from paratune.errors import (
    EXIT_LAUNCH,
    ConfigError,
    DataError,
    LaunchError,
    MissingDependency,
    ParatuneError,
    option_error,
    require,
    require_at_least,
    require_installed,
)

FOLDER = "executor"
RUNNING = "running"
"""Start of the name of a folder, of one attempt, with a file for each running task, which lists the shards that it has
begun. The task holds a lock on its file, and ends when the folder is gone."""
ERROR_FILE = "error"
POLL_S = 5.0
"""Seconds between two looks at the files of shards, and at Slurm's queue or the running tasks."""
IDLE_S = 600.0
"""Seconds without a running task after which all are started again."""
GRACE_S = 10.0
"""Seconds until files of a finished task must be visible on a shared file system."""
LOCAL_STAGES = ("index", "fetch")
"""Stages that may send requests to an archive; its rate limit applies to the address of one machine."""
MAX_TASKS = 1001
"""Maximum of a Slurm array, unless a cluster allows more."""
NOT_READY = f'not_ready() {{ echo "$1 cannot be loaded: the task was not started" >&2; exit {EXIT_LAUNCH}; }}'
"""The shell function that the lines of a site call when a module or an environment is missing."""


class MakeShards:
    """A pipeline step that makes every `world_size`th missing shard, starting with shard number `rank`."""

    def __init__(self, stage: Stage, todo: Shards, running: Path) -> None:
        self._stage, self._todo, self.running = stage, list(todo), running
        self._folder = Path.cwd()

    def __call__(self, _: Any = None, rank: int = 0, world_size: int = 1) -> None:
        os.chdir(self._folder)  # file names are relative to the folder in which the command was called
        path = self.running / f"{os.getpid()} of {platform.node()}, task {rank}"
        with path.open("w") as file:
            with suppress(OSError):  # a file system without locks
                fcntl.lockf(file, fcntl.LOCK_EX)  # released by the operating system when this process dies
            try:
                for number, arguments in self._todo[rank::world_size]:
                    if not self.running.exists():  # a later attempt has begun
                        return
                    if not (self._stage.folder / counts_file(number)).exists():  # the task may have been queued again
                        print(number, file=file, flush=True)
                        make_shard(self._stage, number, *arguments)
            except ParatuneError:
                raise
            except Exception as error:  # datatrove ends the other tasks: only this file tells which one has failed
                text = f"shard {number}: {type(error).__name__}: {error}"
                (self.running / ERROR_FILE).with_suffix(f".{rank}").write_text(text, encoding="utf-8")
                raise
            finally:
                path.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"{len(self._todo)} shards of {self._stage.name}"


StartTasks = Callable[[MakeShards, int, Path], AbstractContextManager[Callable[[], bool]]]
"""Takes shards, number of tasks and a folder for logs; starts the tasks and gives a function that returns whether they
are running, and raises BrokenProcessPool when one has died. Tasks are cancelled if the block fails."""


def spread_shards(work: Path, tasks: int, start: StartTasks, stage: Stage, todo: Shards) -> Iterator[int]:
    """Make shards with an executor, and yield the number of each complete one; its partials are `Workers`.

    `work` is the folder of all stages, which has the same path on all machines; `tasks` is their maximum number.

    Raises:
        BrokenProcessPool: A task died.
        DataError: Tasks ended without all of their shards.
    """
    logs = (work / FOLDER / re.sub(r"\W+", "_", stage.name)).resolve()
    shutil.rmtree(logs, ignore_errors=True)
    running = logs / f"{RUNNING}-{time.time_ns()}"
    running.mkdir(parents=True, exist_ok=True)
    left = [number for number, _ in todo]
    until: float | None = None
    with start(MakeShards(stage, todo, running), min(tasks, len(todo)), logs) as is_running:
        while left and (until is None or time.monotonic() < until):
            if until is None and not is_running():
                until = time.monotonic() + GRACE_S
            written = [number for number in left if (stage.folder / counts_file(number)).exists()]
            left = [number for number in left if number not in set(written)]
            yield from written
            if left:
                time.sleep(POLL_S)
        if left:
            files = [path for path in sorted(logs.rglob("*")) if path.suffix in (".log", ".out")]
            lines = [line.strip() for path in files for line in path.read_text("utf-8", errors="replace").splitlines()]
            errors = [plain(line) for line in lines if re.match(r"[\w.]*(Error|Exception|Dependency)\b", line)]
            message = f"{stage.name}: {len(left)} of {len(todo)} shards were not made, first {left[0]}; "
            message += f"{errors[-1] if errors else 'no log names an error'} (logs: {logs})"
            raise DataError(message, code="corpus.shards_failed", name=stage.name, num_left=len(left))


RunTasks = Callable[[MakeShards, int, Path], None]


@contextmanager
def start_apart(
    run: RunTasks, make: MakeShards, tasks: int, logs: Path, *, may_queue: bool = False
) -> Iterator[Callable[[], bool]]:
    """Run tasks from another process, because datatrove waits without end for a task whose process was killed.

    With `may_queue` the first task may wait for a place on a busy cluster, without end.
    """
    context = multiprocessing.get_context("spawn")
    errors, own_end = context.Pipe(duplex=False)
    process = context.Process(target=_lead, args=(run, make, tasks, logs, own_end))
    process.start()
    own_end.close()
    active_s = math.inf if may_queue else time.monotonic()

    def is_running() -> bool:
        nonlocal active_s
        dead = None
        for path in list(make.running.iterdir()):
            if path.name.startswith(ERROR_FILE):
                if text := path.read_text(encoding="utf-8"):  # otherwise it is being written
                    raise DataError(plain(f"{text} (logs: {logs})"), code="corpus.shards_failed", folder=logs)
                continue
            try:
                with path.open("r+") as file:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shards = file.read().split()
                if shards and path.exists():
                    dead = f"process {path.name}, died during shard {shards[-1]}"
            except FileNotFoundError:  # it has ended
                pass
            except OSError:  # the lock is held
                active_s = time.monotonic()
        if dead is None and time.monotonic() - active_s > IDLE_S:
            dead = f"no task has run for {IDLE_S:g} s"
        process.join(POLL_S if dead else 0)  # after an error of one task, the executor kills the others and ends
        if dead is None and process.is_alive():
            return True
        if errors.poll():
            with suppress(EOFError):
                problem = errors.recv()
                if isinstance(problem, ParatuneError):
                    raise problem
                dead = dead or problem
        if dead is None and process.exitcode:
            dead = f"the process of the executor ended with {process.exitcode}"
        if dead is not None:
            raise BrokenProcessPool(plain(dead))
        return False

    try:
        yield is_running
        process.join(GRACE_S)  # all shards are there; the executor writes its statistics
    finally:
        assert process.pid is not None
        with suppress(ProcessLookupError):  # it leads no group yet, or the group has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()


def _lead(run: RunTasks, make: MakeShards, tasks: int, logs: Path, errors: Any) -> None:
    """Run tasks in a process group, which ends with the command, also when that is killed."""
    os.setsid()
    end_with_parent(lambda: os.killpg(0, signal.SIGKILL))
    try:
        run(make, tasks, logs)
    except Exception as error:  # others than ours: of datatrove or Ray, when one of their processes was killed
        errors.send(error if isinstance(error, ParatuneError) else f"{type(error).__name__}: {error}")


def run_local(workers: int, make: MakeShards, tasks: int, logs: Path) -> None:
    """Run tasks as processes of this machine, `workers` at a time."""
    # Forked, which is safe in a process that has not worked with Arrow, so that a task begins as soon as it is taken.
    options = {"tasks": tasks, "workers": min(workers, tasks), "start_method": "fork", "skip_completed": False}
    _executor("local", "LocalPipelineExecutor")([make], logging_dir=str(logs), **options).run()


def run_ray(memory_gib: int, make: MakeShards, tasks: int, logs: Path) -> None:
    """Run tasks on the Ray cluster in RAY_ADDRESS."""
    ray, executor = require("ray", extra="corpus"), _executor("ray", "RayPipelineExecutor")
    try:
        ray.init(address="auto", log_to_driver=False)
    except ConnectionError as error:
        raise LaunchError("no Ray cluster was found; set RAY_ADDRESS", code="corpus.no_cluster") from error
    # Tasks of an earlier attempt may still mark theirs as completed.
    options = {"tasks": tasks, "cpus_per_task": 1, "mem_per_cpu_gb": memory_gib, "skip_completed": False}
    executor([make], logging_dir=str(logs), **options).run()


@contextmanager
def start_slurm(options: dict[str, Any], make: MakeShards, tasks: int, logs: Path) -> Iterator[Callable[[], bool]]:
    """Submit tasks as a Slurm job array."""
    job = {"tasks": tasks, "job_name": f"paratune-{logs.name}", **options}
    executor = _executor("slurm", "SlurmPipelineExecutor")([make], logging_dir=str(logs), **job)
    try:
        executor.run()
    except FileNotFoundError as error:
        message = "sbatch was not found: run this on a machine with Slurm's commands (a login node)"
        raise MissingDependency(message, code="dependency.program_missing") from error
    except subprocess.CalledProcessError as error:  # sbatch has printed the reason
        message = f"sbatch refuses {logs / 'launch_script.slurm'}; correct the site file"
        raise LaunchError(message, code="slurm.refused", command="sbatch") from error
    try:
        yield lambda: any(queued.job == str(executor.job_id) for queued in jobs.queue())
    except BaseException:  # also when the command is interrupted
        with suppress(Exception):
            jobs.cancel([str(executor.job_id)])
        raise


def _executor(module: str, name: str) -> Any:
    executor = getattr(require(f"datatrove.executor.{module}", extra="corpus"), name)
    # Its progress bar and log lines would mix with ours; tasks log to files.
    require("loguru", extra="corpus").logger.disable("datatrove")
    return executor


def executor_spread(
    work: Path, executor: str, *, tasks: int, workers: int, site: Path | None, memory_gib: int | None
) -> Workers:
    """Return what makes the shards: tasks of the executor local, slurm or ray.

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
        raise ConfigError(message, code="cli.required", option="--site")
    if executor == "local" and memory_gib is not None:
        message = "--task-gib is the memory that a task requests on a cluster; it has no effect with --executor local"
        raise ConfigError(message, code="cli.no_effect", option="--task-gib")
    require_installed("datatrove", extra="corpus")
    if executor == "local":
        return partial(spread_shards, work, tasks, partial(start_apart, partial(run_local, workers)))
    memory = memory_gib or 2
    if site is None:
        require_installed("ray", extra="corpus")
        start = partial(start_apart, partial(run_ray, memory), may_queue=True)
        return partial(spread_shards, work, tasks, start)
    if tasks > MAX_TASKS:
        reason = f"at most {MAX_TASKS} of a Slurm job; a task makes several shards"
        raise option_error("--tasks", tasks, reason, code="cli.invalid_value")
    return partial(spread_shards, work, tasks, partial(start_slurm, _slurm_options(read_site(site), memory)))


def _slurm_options(site: Site, memory_gib: int) -> dict[str, Any]:
    if site.partition is None or site.time is None:
        message = "--site: datatrove's Slurm executor needs partition: and time: in the site file"
        raise ConfigError(message, code="site.invalid_value", option="--site", keys=("partition", "time"))
    if site.container is not None:
        message = "--site: datatrove's Slurm executor starts no container; set venv: in the site file instead"
        raise ConfigError(message, code="site.invalid_value", option="--site")
    # If a task of an array fails, Slurm would keep the job that waits for the array in the queue.
    more: dict[str, Any] = {"kill-on-invalid-dep": "yes"}
    more |= {"account": site.account} if site.account else {}
    for option in site.sbatch:
        name, _, value = option.removeprefix("--").partition("=")
        more[name] = value
    partition = site.partition if isinstance(site.partition, str) else ",".join(site.partition)
    # These lines of shell run before a task.
    own = [] if site.venv is not None else [f'export PATH={quoted(str(Path(sys.executable).parent))}:"$PATH"']
    return {
        "time": site.time,
        "partition": partition,
        "qos": site.qos or "",
        "cpus_per_task": 1,
        "mem_per_cpu_gb": memory_gib,
        "env_command": "\n".join([NOT_READY, *own, *setup_lines(site), "export OMP_NUM_THREADS=1"]),
        "sbatch_args": more,
    }
