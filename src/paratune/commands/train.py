"""`paratune train`: checks the run, starts processes for --nproc, trains, and prints the result."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from paratune.base.text import listing, plain
from paratune.commands import BEGAN
from paratune.commands.options import Json, Overrides, short_names
from paratune.console import outlive_readers, print_json, print_result, print_warning
from paratune.errors import EXIT_LAUNCH, EXIT_OK, LaunchError, option_error, require_at_least
from paratune.processes.launcher import idle_tasks_warning, launch_problem, launcher
from paratune.records import CHECKPOINTS_FOLDER, MODEL_FOLDER, SUMMARY_FILE, read_json


@short_names
def train(
    config: Path,
    /,
    *,
    set_: Overrides = (),
    nproc: int = 1,
    resume: bool = False,
    overwrite: bool = False,
    run_code: bool = False,
    from_checkpoints: Path | None = None,
    every: int | None = None,
    json: Json = False,
) -> int:
    """Train the run in CONFIG, evaluate and save its model, and print the result.

    Under torchrun the command is one process of the run; --nproc starts the processes itself.

    Args:
        nproc: number of processes to start on this machine
        resume: resume an unfinished run, or start it when there is none
        overwrite: delete an existing run folder
        run_code: also run code that the folders of model and teachers name; that of CONFIG always runs
        from_checkpoints: run, also in progress, whose checkpoints replace model.name: a run NAME-RUN-step_002000 each
        every: with --from-checkpoints, use a checkpoint only this many steps after the last one used; default: 1
    """
    from paratune.api.train import check_start, start_kind, train_from_checkpoints, train_here
    from paratune.config.load import load_config
    from paratune.config.sections import run_path
    from paratune.processes.elastic import read_torchrun, start_mode
    from paratune.processes.local import launch_with_smaller_batches
    from paratune.processes.place import RENDEZVOUS_VARIABLE, place_from_environment

    outlive_readers()
    mode = start_kind(resume=resume, overwrite=overwrite)
    require_at_least("--nproc", nproc)
    loaded = load_config(config, set_)
    if reason := launch_problem(nproc):
        raise LaunchError(reason, code="launch.started_twice")
    place = place_from_environment()
    is_child = RENDEZVOUS_VARIABLE in os.environ
    if from_checkpoints is None and every is not None:
        raise option_error("--every", every, "it belongs to --from-checkpoints", code="cli.no_effect")
    if from_checkpoints is not None:
        if place.world_size > 1 or overwrite:
            reason = "it starts its own runs, and continues them: use --nproc, and not torchrun, srun or --overwrite"
            raise option_error("--from-checkpoints", str(from_checkpoints), reason, code="cli.conflict")
        every = 1 if every is None else every
        for step, run in train_from_checkpoints(loaded, from_checkpoints, every=every, nproc=nproc, run_code=run_code):
            about = {"step": step, "folder": str(run.folder), "scores": run.scores}
            show(about if json else dict(run.summary), run.folder, as_json=json)
        return EXIT_OK
    if nproc > 1 and place.world_size > 1 and not is_child:
        program = "srun" if launcher() == "srun" else "torchrun"
        message = f"--nproc {nproc} in a process that {program} started (WORLD_SIZE={place.world_size}); leave out "
        facts: dict[str, Any] = {"option": "--nproc", "value": nproc, "world_size": place.world_size}
        raise LaunchError(f"{message}--nproc or {program}", code="launch.started_twice", **facts)
    if reason := idle_tasks_warning(nproc):
        print_warning(reason, "launch.idle_tasks")
    if loaded.replaced and place.rank == 0 and not is_child:
        message = f"beside --set these settings of {config} have no effect: {listing(loaded.replaced)}"
        print_warning(message, "config.no_effect")
    num_ranks = place.world_size if is_child else max(nproc, place.world_size)
    # torchrun and srun pass the number of machines; each process reads it again when it has started.
    num_nodes = 1 if nproc > 1 and not is_child else None
    folder = run_path(loaded.config)
    mode = start_mode(mode, folder)
    if (start := read_torchrun()) and start.num_restarts and place.rank == 0:
        times = f"restart {start.num_restarts} of {start.max_restarts}"
        print(f"torchrun started the processes again, {times}", file=sys.stderr)  # noqa: T201
    if not check_start(loaded, mode, num_ranks=num_ranks, num_nodes=num_nodes):
        if place.rank == 0:  # with exit code 0: for a batch system that restarts a job, a finished run is no failure
            print(plain(f"{folder} is already finished: nothing was done"), file=sys.stderr)  # noqa: T201
            show(read_json(folder / SUMMARY_FILE), folder, as_json=json)
        return EXIT_OK
    if nproc > 1 and not is_child:
        started = time.time() - 1  # a file system may have a coarse clock, or that of another machine
        code = launch_with_smaller_batches(sys.argv[1:], nproc)
        since = 0.0 if mode == "resume" else started  # older checkpoints are of another run
        files = ((path.stat().st_mtime, path.name) for path in (folder / CHECKPOINTS_FOLDER).glob("step_*"))
        if code == EXIT_LAUNCH and (newest := max((file for file in files if file[0] >= since), default=None)):
            print(plain(f"--resume continues from {folder / CHECKPOINTS_FOLDER / newest[1]}"), file=sys.stderr)  # noqa: T201
        return code
    summary = train_here(loaded, mode, began=BEGAN, rank=place.rank, run_code=run_code)
    if place.rank == 0:
        show(summary, folder, as_json=json)
    return EXIT_OK


def show(summary: dict[str, Any], folder: Path, *, as_json: bool) -> None:
    """Print the result of a finished run: its summary as JSON, or the figures of `paratune report` and the paths."""
    if as_json:
        print_json(summary)
        return
    from paratune.reports import make
    from paratune.reports.terminal import TRAIN_LINES, terminal_runs

    print_result(terminal_runs(make([folder], None), TRAIN_LINES))
    model_folder = {"probe": None, "baseline": "baseline"}.get(str(summary.get("kind")), MODEL_FOLDER)
    model = "" if model_folder is None else f", model: {model_folder}{os.sep}"
    print_result(f"Files: {folder}{os.sep}{model}; more: paratune report {folder}")
