"""Makes the shards of a stage with datatrove's executors, on many machines.

A task makes shards with the same functions as a local process does, so that the result is identical. The files of the
shards show which of them are complete. datatrove saves the pipeline with dill and its tasks load it: no other user may
be able to write to the folder.
"""

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.corpus.shard import counts_file
from paratune.corpus.stage import Shards, Stage, make_shard
from paratune.errors import DataError, LaunchError, MissingDependency, require

FOLDER = "executor"
POLL_S = 2.0
GRACE_S = 10.0
"""Seconds until files of a finished task must be visible on a shared file system."""


class MakeShards:
    """A pipeline step that makes every `world_size`th missing shard, starting with shard number `rank`."""

    def __init__(self, stage: Stage, todo: Shards) -> None:
        self._stage, self._todo = stage, list(todo)
        self._folder = Path.cwd()

    def __call__(self, _: Any = None, rank: int = 0, world_size: int = 1) -> None:
        os.chdir(self._folder)  # file names are relative to the folder in which the command was called
        for number, arguments in self._todo[rank::world_size]:
            if not (self._stage.folder / counts_file(number)).exists():  # the task may have been queued again
                make_shard(self._stage, number, *arguments)

    def __repr__(self) -> str:
        return f"{len(self._todo)} shards of {self._stage.name}"


StartTasks = Callable[[MakeShards, int, Path], Callable[[], bool]]
"""Takes shards, number of tasks and a folder for logs; returns a function that returns whether tasks still run."""


@dataclass(frozen=True)
class ShardExecutor:
    """Makes shards with an executor; takes the place of the number of local processes."""

    work: Path
    """Folder of all stages, which has the same path on all machines."""
    tasks: int
    start: StartTasks
    stop: Callable[[], None] = lambda: None
    """Ends the tasks when the command is interrupted."""

    def __call__(self, stage: Stage, todo: Shards) -> Iterator[int]:
        """Make shards and yield the number of each complete one.

        Raises:
            DataError: Tasks ended without all of their shards.
        """
        logs = (self.work / FOLDER / re.sub(r"\W+", "_", stage.name)).resolve()
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
        left = [number for number, _ in todo]
        try:
            is_running = self.start(MakeShards(stage, todo), min(self.tasks, len(todo)), logs)
            until: float | None = None
            while left and (until is None or time.monotonic() < until):
                if until is None and not is_running():
                    until = time.monotonic() + GRACE_S
                written = [number for number in left if (stage.folder / counts_file(number)).exists()]
                left = [number for number in left if number not in set(written)]
                yield from written
                if left:
                    time.sleep(POLL_S)
        finally:
            with contextlib.suppress(Exception):
                if left:
                    self.stop()
        if left:
            message = (
                f"{stage.name}: {len(left)} of {len(todo)} shards were not made, first {left[0]}; "
                f"{_last_error(logs)} (logs: {logs})"
            )
            raise DataError(message, code="corpus.shards_failed", name=stage.name, num_left=len(left))


def _last_error(logs: Path) -> str:
    """Return the last line of a log that names an error."""
    for path in sorted(logs.rglob("*")):
        if path.suffix in (".log", ".out"):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            errors = [line.strip() for line in lines if re.match(r"[\w.]*(Error|Exception|Dependency)\b", line.strip())]
            if errors:
                return plain(errors[-1])
    return "no log names an error"


def start_local(workers: int) -> StartTasks:
    """Return a function that starts tasks as processes of this machine, `workers` at a time."""

    def start(make: MakeShards, tasks: int, logs: Path) -> Callable[[], bool]:
        options = {"tasks": tasks, "workers": min(workers, tasks), "start_method": "spawn"}
        _executor("local", "LocalPipelineExecutor")([make], logging_dir=str(logs), **options).run()
        return lambda: False

    return start


def start_ray(memory_gib: int) -> StartTasks:
    """Return a function that starts tasks on the Ray cluster in RAY_ADDRESS."""

    def start(make: MakeShards, tasks: int, logs: Path) -> Callable[[], bool]:
        ray, executor = require("ray", extra="corpus"), _executor("ray", "RayPipelineExecutor")
        if not ray.is_initialized():
            try:
                ray.init(address="auto", log_to_driver=False)
            except ConnectionError as error:
                raise LaunchError("no Ray cluster was found; set RAY_ADDRESS", code="corpus.no_cluster") from error
        options = {"tasks": tasks, "cpus_per_task": 1, "mem_per_cpu_gb": memory_gib}
        executor([make], logging_dir=str(logs), **options).run()
        return lambda: False

    return start


def start_slurm(options: dict[str, Any], submitted: Callable[[str], Callable[[], bool]]) -> StartTasks:
    """Return a function that starts tasks as a Slurm job array.

    Args:
        submitted: Takes the job ID; returns a function that returns whether the job is in the queue.
    """

    def start(make: MakeShards, tasks: int, logs: Path) -> Callable[[], bool]:
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
        return submitted(str(executor.job_id))

    return start


def _executor(module: str, name: str) -> Any:
    executor = getattr(require(f"datatrove.executor.{module}", extra="corpus"), name)
    # Its progress bar and log lines would mix with ours; tasks log to files.
    require("loguru", extra="corpus").logger.disable("datatrove")
    return executor
