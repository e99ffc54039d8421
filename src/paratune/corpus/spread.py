"""Shards of a stage made by datatrove's executors, on many machines: dealt to tasks by rank, and nothing else.

A task makes the same shards with the same functions as a process of `run_stage` does: the result is identical. What is
done is told by the files of the shards. datatrove writes the pipeline down with dill and its tasks load it: the folder
must be one that nobody else can write to.
"""

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.corpus.shard import counts_file
from paratune.corpus.stage import Stage, make_shard
from paratune.errors import DataError, LaunchError, MissingDependency, require

FOLDER = "executor"
POLL_S = 2.0
GRACE_S = 10.0
"""How long files may take to be seen on a shared file system after the task that wrote them has ended."""


class MakeShards:
    """One task of a stage: every `world_size`th of the shards that are to be made, beginning with its rank."""

    def __init__(self, stage: Stage, todo: Sequence[tuple[int, Any]]) -> None:
        self._stage, self._todo = stage, list(todo)
        self._folder = Path.cwd()

    def __call__(self, _: Any = None, rank: int = 0, world_size: int = 1) -> None:
        os.chdir(self._folder)  # names of files are relative to where the command was given
        for number, each in self._todo[rank::world_size]:
            if not (self._stage.folder / counts_file(number)).exists():  # by a task that was queued again
                make_shard(self._stage, number, each)

    def __repr__(self) -> str:
        return f"{len(self._todo)} shards of {self._stage.name}"


Start = Callable[[MakeShards, int, Path], Callable[[], bool]]
"""Starts so many tasks, with a folder for their logs; returns what says whether any is still to end."""


@dataclass(frozen=True)
class ExecutorSpread:
    """Makes shards by an executor; given to `paratune.corpus.stage.spread_by`."""

    work: Path
    """The folder of all stages, which all machines see under the same name."""
    tasks: int
    start: Start
    stop: Callable[[], None] = lambda: None
    """Ends the tasks when the command is interrupted."""

    def __call__(self, stage: Stage, todo: Sequence[tuple[int, Any]]) -> Iterator[int]:
        """Yield the number of each shard when it has been written.

        Raises:
            DataError: A task ended without its shards.
        """
        logs = (self.work / FOLDER / re.sub(r"\W+", "_", stage.name)).resolve()
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
        left = [number for number, _ in todo]
        try:
            goes_on = self.start(MakeShards(stage, todo), min(self.tasks, len(todo)), logs)
            until: float | None = None
            while left and (until is None or time.monotonic() < until):
                if until is None and not goes_on():
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
            raise DataError(
                f"{stage.name}: {len(left)} of {len(todo)} shards were not made, the first of which is {left[0]}; "
                f"{_last_error(logs)} (logs: {logs})",
                code="corpus.shards_failed",
                name=stage.name,
                num_left=len(left),
            )


def _last_error(logs: Path) -> str:
    """Return the last line of a log that looks like an error."""
    for path in sorted(logs.rglob("*")):
        if path.suffix in (".log", ".out"):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            said = [line.strip() for line in lines if re.match(r"[\w.]*(Error|Exception|Dependency)\b", line.strip())]
            if said:
                return plain(said[-1])
    return "no log says why"


def by_local(workers: int) -> Start:
    """Return a start by datatrove's LocalPipelineExecutor: so many tasks at a time, processes of this machine."""

    def start(make: MakeShards, tasks: int, logs: Path) -> Callable[[], bool]:
        executors = _executors("local")
        executor = executors.LocalPipelineExecutor(
            [make], tasks=tasks, workers=min(workers, tasks), logging_dir=str(logs), start_method="spawn"
        )
        executor.run()
        return lambda: False

    return start


def by_ray(memory_gib: int) -> Start:
    """Return a start by datatrove's RayPipelineExecutor, on the Ray cluster that RAY_ADDRESS names."""

    def start(make: MakeShards, tasks: int, logs: Path) -> Callable[[], bool]:
        ray = require("ray", extra="ray")
        executors = _executors("ray")
        if not ray.is_initialized():
            try:
                ray.init(address="auto", log_to_driver=False)
            except ConnectionError as error:
                raise LaunchError(
                    "there is no Ray cluster here; name one in RAY_ADDRESS", code="corpus.no_cluster"
                ) from error
        executor = executors.RayPipelineExecutor(
            [make], tasks=tasks, logging_dir=str(logs), cpus_per_task=1, mem_per_cpu_gb=memory_gib
        )
        executor.run()
        return lambda: False

    return start


def by_slurm(options: dict[str, Any], submitted: Callable[[str], Callable[[], bool]]) -> Start:
    """Return a start by datatrove's SlurmPipelineExecutor.

    Args:
        options: Of the executor.
        submitted: Takes the number of the job; returns what says whether it is still in the queue.
    """

    def start(make: MakeShards, tasks: int, logs: Path) -> Callable[[], bool]:
        executors = _executors("slurm")
        name = f"paratune-{logs.name}"
        executor = executors.SlurmPipelineExecutor([make], tasks=tasks, job_name=name, logging_dir=str(logs), **options)
        try:
            executor.run()
        except FileNotFoundError as error:
            raise MissingDependency(
                "sbatch is not here: run this where Slurm's commands are (a login node)",
                code="dependency.program_missing",
            ) from error
        except subprocess.CalledProcessError as error:  # what sbatch said stands on the screen
            raise LaunchError(
                f"sbatch refuses {logs / 'launch_script.slurm'}; mend the site's profile",
                code="slurm.refused",
                command="sbatch",
            ) from error
        return submitted(str(executor.job_id))

    return start


def _executors(name: str) -> Any:
    executors = require(f"datatrove.executor.{name}", extra="corpus")
    # Its own bar and lines would stand between ours; tasks keep theirs in files.
    require("loguru", extra="corpus").logger.disable("datatrove")
    return executors
