"""`paratune train`: check what can be checked at once, start processes if asked to, train, and show the result."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paratune.base.imports import without_collections
from paratune.base.text import plain
from paratune.commands.threads import respect_quota
from paratune.config.load import LoadedConfig, load_config
from paratune.config.sections import run_path
from paratune.console import (
    outlive_readers,
    print_json,
    print_result,
    print_warning,
    set_up_logging,
    stdout_for_results,
)
from paratune.errors import EXIT_LAUNCH, EXIT_OK, ConfigError, LaunchError, option_error
from paratune.launch.smaller import launch_until_it_fits
from paratune.processes.elastic import mode_of_start, torchrun_of
from paratune.processes.launcher import idle_tasks, launcher, why_wrong
from paratune.processes.place import RENDEZVOUS_VARIABLE, global_batch_size, place_from_environment
from paratune.records import CHECKPOINTS_FOLDER, MODEL_FOLDER, SUMMARY_FILE, is_finished, read_json
from paratune.records.run_folder import Mode, check_same_run, check_usable


def train_command(
    path: Path,
    overrides: Sequence[str],
    *,
    num_processes: int,
    resume: bool,
    overwrite: bool,
    as_json: bool,
    began: float,
) -> int:
    """Run the command; return its exit code.

    Raises:
        ParatuneError: Whatever is wrong, before anything is started where possible.
    """
    outlive_readers()
    if resume and overwrite:
        raise ConfigError(
            "--resume continues a run and --overwrite deletes it; use one of them",
            code="cli.conflict",
            options=("--resume", "--overwrite"),
        )
    if num_processes < 1:
        raise option_error("--nproc", num_processes, "at least 1 process is needed", code="cli.out_of_range")
    mode: Mode = "resume" if resume else "overwrite" if overwrite else "new"
    loaded = load_config(path, overrides)
    if reason := why_wrong(num_processes):
        raise LaunchError(reason, code="launch.started_twice")
    place = place_from_environment()
    is_child = RENDEZVOUS_VARIABLE in os.environ
    if num_processes > 1 and place.world_size > 1 and not is_child:
        by = "srun" if launcher() == "srun" else "torchrun"
        raise LaunchError(
            f"--nproc {num_processes} in a process that {by} started (WORLD_SIZE={place.world_size}); leave out "
            f"--nproc or {by}",
            code="launch.started_twice",
            option="--nproc",
            value=num_processes,
            world_size=place.world_size,
        )
    if reason := idle_tasks(num_processes):
        print_warning(reason, "launch.idle_tasks")
    num_ranks = place.world_size if is_child else max(num_processes, place.world_size)
    # torchrun and srun know how many machines there are; each process asks again once it has started.
    num_nodes = 1 if num_processes > 1 and not is_child else None
    size = global_batch_size(loaded.config, num_ranks, num_nodes)
    folder = run_path(loaded.config)
    mode = mode_of_start(mode, folder)
    if (start := torchrun_of()) and start.num_restarts and place.rank == 0:
        times = f"restart {start.num_restarts} of {start.max_restarts}"
        print(f"torchrun started the processes again, {times}", file=sys.stderr)  # noqa: T201
    if mode == "resume":
        check_same_run(folder, loaded.values, global_batch_size=size)
        if is_finished(folder):
            return _already_finished(folder, as_json=as_json, rank=place.rank)
    check_usable(folder, mode)
    if num_processes > 1 and not is_child:
        started = time.time() - 1  # clocks of file systems are coarse, or those of another machine
        code = launch_until_it_fits(sys.argv[1:], num_processes)
        if code == EXIT_LAUNCH:
            _name_checkpoint(folder, since=0.0 if mode == "resume" else started)
        return code
    return _train_here(loaded, mode, as_json=as_json, began=began, rank=place.rank)


def _name_checkpoint(folder: Path, *, since: float) -> None:
    """Say where a run whose processes died can be gone on with; one of before `since` (s) is another run's."""
    found = [path for path in (folder / CHECKPOINTS_FOLDER).glob("step_*") if path.stat().st_mtime >= since]
    if found:
        print(plain(f"--resume continues from {max(found, key=_age)}"), file=sys.stderr)  # noqa: T201


def _age(checkpoint: Path) -> tuple[float, str]:
    return checkpoint.stat().st_mtime, checkpoint.name


def _already_finished(folder: Path, *, as_json: bool, rank: int) -> int:
    """Show what there is: a batch system that starts a job again must not take a finished run for a failed one."""
    if rank == 0:
        print(plain(f"{folder} is already finished: nothing was done"), file=sys.stderr)  # noqa: T201
        show(read_json(folder / SUMMARY_FILE), folder, as_json=as_json)
    return EXIT_OK


def _train_here(loaded: LoadedConfig, mode: Mode, *, as_json: bool, began: float, rank: int) -> int:
    set_up_logging(speaks=rank == 0, rank=rank)
    respect_quota()
    from paratune.engine.stop import StopRequest

    stop = StopRequest().install()  # before the seconds that importing torch takes
    with stdout_for_results():
        with without_collections():
            from paratune.train.run import train

        summary = train(loaded, mode=mode, stop=stop, began=began)
    if rank == 0:
        show(summary, run_path(loaded.config), as_json=as_json)
    return EXIT_OK


def show(summary: dict[str, Any], folder: Path, *, as_json: bool) -> None:
    """Print the result of a finished run: its summary as JSON, or the report's table and where the files are."""
    if as_json:
        print_json(summary)
        return
    from rich.text import Text

    from paratune.report import make, terminal_table

    print_result(terminal_table(make([folder], None)))
    kept = {"probe": None, "baseline": "baseline"}.get(str(summary.get("kind")), MODEL_FOLDER)
    model = "" if kept is None else f"   model: {folder / kept}"
    print_result(Text(plain(f"run: {folder}{model}   report: paratune report {folder}")))
