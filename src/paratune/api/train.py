"""`paratune.train`: trains the run of a configuration and returns it."""

import logging
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from paratune.api.configuration import Configuration, load, written
from paratune.api.process import process_as_before, run_command, set_up_process
from paratune.api.run import Run
from paratune.base.atomic import delete_remains
from paratune.base.imports import collector_off_for_imports
from paratune.config.load import LoadedConfig, allow_code
from paratune.config.optional_sections import teacher_names
from paratune.config.plain import flatten
from paratune.config.sections import run_path
from paratune.console import stdout_for_results
from paratune.errors import CheckpointError, ConfigError, DataError, LaunchError, require_at_least
from paratune.processes.place import global_batch_size, place_from_environment
from paratune.records import CHECKPOINTS_FOLDER, is_finished
from paratune.records.run_folder import Mode, check_same_run, check_usable, is_in_use

log = logging.getLogger(__name__)
SILENT_S = 1800.0
"""Seconds without a new event of a run that no process uses, after which its checkpoints are not waited for."""


def train(
    config: Configuration,
    overrides: Mapping[str, Any] | None = None,
    *,
    run_name: str | None = None,
    nproc: int = 1,
    resume: bool = False,
    overwrite: bool = False,
    run_code: bool = False,
) -> Run:
    """Train the run of a configuration, evaluate and save its model.

    One process trains inside this one; afterwards signal handlers, logging and torch's random state are as before. An
    interrupt (Ctrl-C, or *Interrupt* in a notebook) saves a checkpoint, from which `resume=True` resumes.

    Args:
        config: A YAML file, or the same sections as a mapping, which needs a `run.name`.
        overrides: Values by dotted key that replace those of `config`: `{"train.epochs": 1, "strategy": "ddp"}`.
        run_name: Replaces `run.name`, the name of the run folder.
        nproc: Number of processes; from 2 on, all are new processes of this machine.
        resume: Resume an unfinished run, or start it when there is none; a finished run is returned as it is.
        overwrite: Delete an existing run folder.
        run_code: Also run the code that the folders of `model.name` and of teachers name; that of the configuration
            always runs.

    Returns:
        The finished run.

    Raises:
        ParatuneError: The run failed; class and `code` name the cause. A `ConfigError` lists all problems of `config`.
        Stopped: A signal or an interrupt stopped the run, after it saved a checkpoint or before the first step.

    >>> run = paratune.train("my.yaml", {"train.learning_rate": 1e-4}, run_name="first")
    >>> list(run.scores)
    ['validation']
    """
    mode = start_kind(resume=resume, overwrite=overwrite)
    if nproc < 1:
        raise ConfigError(f"nproc is {nproc}: at least 1 is needed", code="cli.invalid_value", option="nproc")
    if (size := place_from_environment().world_size) > 1:
        message = f"paratune.train in a process that torchrun or srun started (WORLD_SIZE={size}); start `paratune "
        message += "train` with it, or leave it out"
        raise LaunchError(message, code="launch.started_twice", world_size=size)
    loaded = load(config, overrides, run_name)
    folder = run_path(loaded.config)
    if not check_start(loaded, mode, num_ranks=nproc, num_nodes=1):
        return Run(folder)
    if nproc > 1:
        flags = [*([f"--{mode}"] if mode != "new" else []), *(["--run-code"] if run_code else [])]
        with written(config, overrides, run_name) as words:
            run_command(["train", *words, "--nproc", str(nproc), *flags])
    else:
        with process_as_before():
            train_here(loaded, mode, began=time.perf_counter(), run_code=run_code)
    return Run(folder)


def start_kind(*, resume: bool, overwrite: bool) -> Mode:
    """Return what happens to an existing run folder."""
    if resume and overwrite:
        message = "--resume continues a run and --overwrite deletes it; use one of them"
        raise ConfigError(message, code="cli.conflict", options=("--resume", "--overwrite"))
    return "resume" if resume else "overwrite" if overwrite else "new"


def check_start(loaded: LoadedConfig, mode: Mode, *, num_ranks: int, num_nodes: int | None) -> bool:
    """Check what can be checked before torch is imported and processes start.

    Args:
        num_nodes: Number of machines; None if unknown here.

    Returns:
        Whether there is something to train: False for a finished run that is to be resumed.

    Raises:
        ParatuneError: The batch cannot be divided, a file is missing, or the run folder cannot be used.
    """
    from paratune.models.locate import locate, teacher_folder
    from paratune.sweeps.cells import missing_files

    size = global_batch_size(loaded.config, num_ranks, num_nodes)
    folder = run_path(loaded.config)
    if mode == "resume":
        check_same_run(folder, loaded.values, global_batch_size=size)
        if is_finished(folder):
            return False
    check_usable(folder, mode)
    if problems := [message for _, message in missing_files(loaded)]:
        raise DataError("\n  ".join(problems), code="data.not_found")
    model = loaded.config.model
    named = {"model.name": model.name, "model.tokenizer": model.tokenizer} if loaded.config.baseline is None else {}
    for key, name in named.items():
        if name is not None:
            locate(name, key)
    for teacher in teacher_names(loaded.config.distil) if loaded.config.distil is not None else ():
        teacher_folder(teacher)
    return True


def train_here(
    loaded: LoadedConfig, mode: Mode, *, began: float, rank: int = 0, run_code: bool = False
) -> dict[str, Any]:
    """Train in this process, which is one of the processes of the run, and return the summary.

    Args:
        began: `time.perf_counter()` at the start of the command.
        run_code: As for `train`.
    """
    from paratune.engine.stop import StopRequest

    set_up_process(rank)
    allow_code(loaded, with_models=run_code)
    stop = StopRequest()
    if threading.current_thread() is threading.main_thread():  # no other thread receives signals
        stop.install()  # before the import of torch, which takes seconds
    with stdout_for_results():
        with collector_off_for_imports():
            from paratune.training.run import train as run_training

        return run_training(loaded, mode=mode, stop=stop, began=began)


def train_from_checkpoints(
    loaded: LoadedConfig, source: Path, *, every: int, nproc: int, run_code: bool
) -> Iterator[tuple[int, Run]]:
    """Train from the checkpoints of a run until it is finished and none is left; yield each step with its finished run.

    The run NAME-SOURCE-step_002000 starts from the model folder .NAME-SOURCE-step_002000 beside it, which exists until
    the run is finished: a second call resumes that run. `every` is the least steps from one checkpoint that is used to
    the next.

    Raises:
        ConfigError: The configuration has new weights, or saves adapters, whose base would be deleted.
        CheckpointError: The source has ended before its last step, or a checkpoint is damaged.
    """
    with stdout_for_results():
        from paratune.checkpoint import MANIFEST, list_checkpoints
        from paratune.training.finish import write_checkpoint_model

    require_at_least("--every", every)
    Run(source)  # an error for another folder
    model, folder = loaded.config.model, Path(loaded.config.run.folder)
    for key, is_set in (
        ("model.from_scratch", model.from_scratch),
        ("model.adapter.save", model.adapter is not None and model.adapter.save == "adapter"),
    ):
        if is_set:
            message = f"{key}: {flatten(loaded.values)[key]} and --from-checkpoints exclude each other: the runs start "
            raise ConfigError(
                f"{message}from the weights of folders that exist only meanwhile", code="cli.conflict", key=key
            )
    name = f"{loaded.config.run.name}-{source.resolve().name}"

    def by_step(paths: Iterable[Path]) -> dict[int, Path]:
        return {int(step): path for path in paths if (step := path.name.rpartition("_")[2]).isdigit()}

    if folder.is_dir():
        delete_remains(folder)
    last, is_over, num_waits = max(by_step(folder.glob(f"{name}-step_*")), default=-every), False, 0
    while not is_over:
        is_over = is_finished(source)  # before the search: the last checkpoint is older than the summary
        checkpoints = by_step(list_checkpoints(source / CHECKPOINTS_FOLDER))
        unfinished = by_step(folder.glob(f".{name}-step_*"))
        for step in sorted({*checkpoints, *unfinished}):
            place = folder / f".{name}-step_{step:06d}"
            if step not in unfinished:
                if step < last + every:
                    continue
                try:
                    with stdout_for_results():
                        write_checkpoint_model(source, checkpoints[step], place)
                except (CheckpointError, FileNotFoundError):
                    if (checkpoints[step] / MANIFEST).exists():
                        raise
                    log.info("the checkpoint of step %d was deleted by its run (checkpoint.keep)", step)
                    continue
            last, run_name, num_waits = max(last, step), place.name.removeprefix("."), 0
            how: Any = {"run_name": run_name, "nproc": nproc, "resume": (folder / run_name).exists()}
            yield step, train(loaded.values, {"model.name": str(place)}, run_code=run_code, **how)
            shutil.rmtree(place, ignore_errors=True)  # a second command may have deleted it
        # Locks of other machines may not be visible: a run that trains also writes its events.
        silent_s = time.time() - max(path.stat().st_mtime for path in source.iterdir())
        if not is_over and silent_s > SILENT_S and not is_in_use(source):
            message = (
                f"{source} has written nothing for {silent_s / 60:.0f} min, and is not finished; resume it (paratune "
            )
            raise CheckpointError(f"{message}train CONFIG --resume) and repeat", code="run.not_finished", path=source)
        if not num_waits:
            log.info("%s: after step %d", "no checkpoint is left" if is_over else "waiting for a checkpoint", last)
        num_waits += 1
        time.sleep(0 if is_over else 20)  # then there may be a new checkpoint
