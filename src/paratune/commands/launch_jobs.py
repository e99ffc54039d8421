"""Writes, submits and follows the Slurm jobs of `paratune launch`."""

import fcntl
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from paratune.api.sweep import prepare, steps_to_list
from paratune.base.text import plain
from paratune.base.units import utc_now
from paratune.cluster import jobs
from paratune.cluster.jobs import controller_facts, queue, submit
from paratune.cluster.script import ArrayRun, BatchJob, script_text
from paratune.cluster.site import Site, processes_per_node, sbatch_path_problem
from paratune.config.layers import read_text
from paratune.config.load import load_config, show_text
from paratune.config.sections import run_path
from paratune.config.yaml_tree import read_tree
from paratune.console import print_json, print_warning
from paratune.errors import EXIT_FAILED, EXIT_OK, CheckpointError, ConfigError, LaunchError, option_error, os_error_as
from paratune.processes.place import global_batch_size
from paratune.records import is_finished
from paratune.records.run_folder import SLURM_FOLDER, check_same_run, check_usable
from paratune.sweeps.axes import for_a_run
from paratune.sweeps.cell import Cell
from paratune.sweeps.cells import missing_files
from paratune.sweeps.run import config_of

SCRIPT = "job.sh"
CONFIG = "config.yaml"
LOCK = ".launch.lock"
TAIL_LINES = 30


def run_jobs(
    path: Path, overrides: Sequence[str], site: Site, after: Sequence[str], launch_lock: ExitStack | None
) -> list[tuple[BatchJob, Path]]:
    """Return the job of a configuration; none when its run is finished.

    Args:
        after: Jobs that must end before this one starts.
        launch_lock: Receives a lock on the run, so that a second launch fails; None to write nothing.
    """
    tree = read_tree(read_text(path), path.name)
    if isinstance(tree.value, dict) and "axes" in tree.value:
        message = f"{path} is a matrix of runs: add --array, which submits each of them as a separate job"
        raise ConfigError(message, code="cli.required", path=path, option="--array")
    loaded = load_config(path, overrides)
    folder = run_path(loaded.config).absolute()
    name = loaded.config.run.name or path.stem
    job = _job(name, site, (ArrayRun(name, folder / SLURM_FOLDER / CONFIG),), folder)
    if loaded.config.device == "cpu" and site.gpus_per_node:
        message = f"device: cpu, and the site gives {site.gpus_per_node} GPUs a node; use --gpus-per-node 0"
        raise ConfigError(message, code="device.conflict", key="device", gpus_per_node=site.gpus_per_node)
    size = global_batch_size(loaded.config, job.num_processes, site.nodes)
    check_same_run(folder, loaded.values, global_batch_size=size)
    if is_finished(folder):
        print(plain(f"{folder} is already finished: nothing was submitted"), file=sys.stderr)  # noqa: T201
        return []
    for _, message in missing_files(loaded):
        print_warning(f"{message}; the nodes must see it", "data.not_on_nodes")
    if launch_lock is not None:
        if not after:  # otherwise a job in `after` may use it
            _check_not_queued(folder, after)
            check_usable(folder, "resume")
        # Other launches of this run wait until it is submitted, and Slurm can report its job.
        _write(folder / SLURM_FOLDER / LOCK, "")
        file = launch_lock.enter_context((folder / SLURM_FOLDER / LOCK).open())
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        # Again, under the lock: another launch may have submitted a job since the first check.
        _check_not_queued(folder, after)
        _write(folder / SLURM_FOLDER / CONFIG, f"# {plain(path)}, as submitted\n{show_text(loaded)}")
    return [(job, folder)]


def _queued(folder: Path, after: Sequence[str] = ()) -> list[str]:
    """Return the jobs of a run or a matrix that are in the queue, without those in `after`."""
    earlier = [job for job in jobs.submissions([folder]) if job.job not in after]
    queued = queue() if earlier else []
    return [job.job for job in earlier if not jobs.status(job, queued).is_over]


def _check_not_queued(folder: Path, after: Sequence[str]) -> None:
    """Raise a `LaunchError` if a job of this run is in the queue and not in `after`: the run would be in use."""
    for job in _queued(folder, after):
        message = f"job {job} of this run is in the queue; scancel {job} removes it, and with --after {job} the new "
        message += "job starts after its success"
        raise LaunchError(message, code="slurm.already_queued", job=job)


def array_jobs(
    path: Path,
    overrides: Sequence[str],
    site: Site,
    only_words: Sequence[str],
    *,
    nodes: int | None,
    retry_failed: bool,
    max_at_once: int | None,
    dry_run: bool,
) -> list[tuple[BatchJob, Path]]:
    """Return arrays of the unfinished runs of a matrix, one for each number of processes and nodes."""
    tree = read_tree(read_text(path), path.name)
    if isinstance(tree.value, dict) and "axes" not in tree.value and not {"task", "data"}.isdisjoint(tree.value):
        message = f"{path} is the configuration of one run, and --array is for a matrix (axes:): leave it out"
        raise ConfigError(message, code="cli.no_effect", path=path, option="--array")
    prepared = prepare(path, overrides, "list", only=only_words, retry_failed=retry_failed)
    matrix = prepared.matrix
    in_matrix = (cell for cell in prepared.cells if cell.name in prepared.names and cell.record.num_nodes)
    if nodes is not None and (clash := next(in_matrix, None)):
        reason = f"the matrix sets nodes: {clash.record.num_nodes} for {clash.name}; leave out --nodes"
        raise option_error("--nodes", nodes, reason, code="cli.conflict")
    todo = steps_to_list(prepared, writes=not dry_run)
    if not todo:
        print(plain(f"{matrix.name}: nothing is left to train"), file=sys.stderr)  # noqa: T201
    elif not dry_run:
        numbers = " ".join(_queued(matrix.folder))
        if numbers:  # they may contain the same runs
            message = f"jobs of this matrix are in the queue: {numbers}; a run that is in two jobs is trained once, "
            message += "and the second job ends with an error if the first one still trains it; scancel "
            print_warning(f"{message}{numbers} removes them", "slurm.runs_queued")
    by_size: dict[tuple[int, int], list[Cell]] = {}
    for cell in todo:
        by_size.setdefault((cell.record.num_processes, cell.record.num_nodes or 0), []).append(cell)
    folder, array_jobs = matrix.folder.absolute(), []
    for (count, num_nodes), cells in sorted(by_size.items()):
        size = f"-{count}" + (f"-nodes-{num_nodes}" if num_nodes else "")
        runs = tuple(
            ArrayRun(cell.name, config_of(folder, cell.name), for_a_run(cell.record.environment)) for cell in cells
        )
        name = matrix.name if len(by_size) == 1 else f"{matrix.name}{size}"
        job = _job(name, _site_for(site, count, num_nodes, cells[0].name), runs, folder)
        array_jobs.append((replace(job, is_array=True, max_at_once=max_at_once), folder))
    return array_jobs


def _site_for(site: Site, num_processes: int, num_nodes: int, name: str) -> Site:
    """Return the site with the nodes and processes of a run of a matrix; `num_nodes` is 0 where the matrix has none."""
    limit = processes_per_node(site)
    num_nodes = num_nodes or (site.nodes if site.nodes > 1 else -(-num_processes // limit))
    per_node, rest = divmod(num_processes, num_nodes)
    if rest or per_node > limit:
        message = f"{name} needs {num_processes} processes on {num_nodes} nodes, and a node of the site has {limit}: "
        message += f"nproc may be a multiple of {num_nodes}, up to {num_nodes * limit}; --nodes or the matrix (nodes:) "
        facts: dict[str, Any] = {"num_processes": num_processes, "num_nodes": num_nodes, "limit": limit}
        raise ConfigError(f"{message}changes them", code="site.too_small", name=name, **facts)
    gpus = per_node if site.gpus_per_node else 0
    update = {"nodes": num_nodes, "gpus_per_node": gpus, "processes_per_node": None if gpus else per_node}
    return site.model_copy(update=update)


def _job(name: str, site: Site, runs: tuple[ArrayRun, ...], folder: Path) -> BatchJob:
    for path in (folder, Path.cwd()):
        if reason := sbatch_path_problem(str(path)):
            raise ConfigError(f"{reason}; change run.folder, or the working directory", code="config.invalid_value")
    return BatchJob(name, site, runs, folder=folder / SLURM_FOLDER, directory=Path.cwd())


def submit_jobs(
    batch_jobs: Sequence[tuple[BatchJob, Path]], site_path: Path, after: Sequence[str]
) -> list[jobs.Submitted]:
    """Submit jobs; with a limit of jobs at the same time, each array starts when those before it have ended.

    Slurm limits the jobs of one array only.

    Raises:
        LaunchError: A job in `after` is unknown to Slurm, which would treat it as one that succeeded.
    """
    for job_id in after:
        if not controller_facts(job_id):
            message = f"--after {job_id}: Slurm does not know this job (any more) and would start the new one at once; "
            message += "leave out --after if that is right (paratune jobs shows how jobs ended)"
            raise LaunchError(message, code="slurm.unknown_job", option="--after")
    all_submitted: list[jobs.Submitted] = []
    for job, folder in batch_jobs:
        before: list[str] = []
        if job.max_at_once is not None:
            before = [all_submitted[-1].job] if all_submitted else _queued(folder)
        script = job.folder / (SCRIPT if len(job.runs) == 1 and not job.is_array else f"{job.name}.sh")
        _write(script, script_text(job))
        submit_time = utc_now()
        submitted = jobs.Submitted(
            job=submit(script, after=after, ended=before),
            name=job.name,
            submitted=submit_time,
            folder=str(folder),
            site=str(site_path),
            script=str(script),
            num_nodes=job.site.nodes,
            num_processes=job.num_processes,
            num_runs=len(job.runs),
            is_array=job.is_array,
            after=tuple(after),
        )
        jobs.record_submission(submitted)
        all_submitted.append(submitted)
        runs = f" of {len(job.runs)} runs" if job.is_array else ""
        waits = f"; it starts after {' '.join(before)} (--max-at-once)" if before else ""
        _log(f"job {submitted.job}{runs}: {job.name}; script and output: {job.folder}{waits}")
    return all_submitted


def _write(path: Path, text: str) -> None:
    with os_error_as(
        CheckpointError, f"{path} cannot be written", "change run.folder", code="output.not_writable", path=path
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def wait_for_jobs(submitted: Sequence[jobs.Submitted], *, as_json: bool) -> int:
    try:
        statuses = jobs.wait_for(submitted, _log)
    except KeyboardInterrupt:
        numbers = " ".join(job.job for job in submitted)
        _log(f"no longer waiting; the jobs continue: paratune jobs shows them, scancel {numbers} ends them")
        raise
    if as_json:
        print_json([jobs.as_dict(status) for status in statuses], indent=1)
    codes = [EXIT_FAILED if status.exit_code is None else status.exit_code for status in statuses]
    for status, code in zip(statuses, codes, strict=True):
        failed = (run for run in status.submitted.run_ids if jobs.recorded_exit(status.submitted, run) != "0")
        if code and (run := next(failed, None)) is not None:
            folder = status.submitted.slurm_folder
            for path in [*folder.glob(f"{run}.txt"), *sorted(folder.glob(f"{run}.node*.txt"))]:
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
                _log("\n".join([f"--- {path}", *(plain(line) for line in lines)]))
    return next((code for code in codes if code), EXIT_OK)


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
