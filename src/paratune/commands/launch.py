"""`paratune launch`: write the batch script of a run, or of the runs of a matrix, submit it, and wait if asked to."""

import fcntl
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from paratune.base.text import plain
from paratune.cluster import jobs
from paratune.cluster.script import ArrayRun, BatchJob, script_text
from paratune.cluster.shell import why_no_sbatch_path
from paratune.cluster.site import Site, processes_per_node, read_site, with_size
from paratune.cluster.slurm import check_job_id, known, queue, submit
from paratune.cluster.wait import wait_for
from paratune.config.layers import read_text
from paratune.config.load import load_config, show_text
from paratune.config.sections import run_path
from paratune.config.yaml_tree import read_tree
from paratune.console import print_json, print_warning
from paratune.errors import EXIT_FAILED, EXIT_OK, CheckpointError, ConfigError, LaunchError, option_error, os_error_as
from paratune.processes.place import global_batch_size
from paratune.records import is_finished
from paratune.records.run_folder import SLURM_FOLDER, check_same_run, check_usable
from paratune.sweep.asked import invalid, none_possible, only
from paratune.sweep.cells import cells_of, missing_files
from paratune.sweep.environment import for_a_run
from paratune.sweep.listing import write_listed
from paratune.sweep.matrix import read_matrix
from paratune.sweep.plan import Step, check_unchanged, plan_of
from paratune.sweep.run import config_of, take

SCRIPT = "job.sh"
CONFIG = "config.yaml"
LOCK = ".launch.lock"
TAIL_LINES = 30


def launch_command(
    path: Path,
    overrides: Sequence[str],
    *,
    site_path: Path,
    nodes: int | None,
    gpus_per_node: int | None,
    is_array: bool,
    max_at_once: int | None,
    only_words: Sequence[str],
    retry_failed: bool,
    after: Sequence[str],
    wait: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Run the command; return its exit code.

    Raises:
        ParatuneError: The site, the configuration or the matrix is wrong, or Slurm refuses.
    """
    _check_counts(nodes=nodes, gpus_per_node=gpus_per_node, max_at_once=max_at_once)
    for each in after:
        check_job_id(each, "--after")
    if not is_array and (max_at_once is not None or only_words or retry_failed):
        raise ConfigError(
            "--max-at-once, --only and --retry-failed choose among the runs of a matrix: add --array",
            code="cli.option_missing",
            option="--array",
        )
    site = with_size(read_site(site_path), nodes=nodes, gpus_per_node=gpus_per_node)
    with ExitStack() as held:
        if is_array:
            given = _array_jobs(
                path,
                overrides,
                site,
                only_words,
                nodes=nodes,
                retry_failed=retry_failed,
                max_at_once=max_at_once,
                dry_run=dry_run,
            )
        else:
            given = _run_jobs(path, overrides, site, after, None if dry_run else held)
        if dry_run:
            return _show_scripts(given, as_json=as_json)
        _check_known(after)
        submitted = [_submit(job, folder, site_path, after) for job, folder in given]
    if not wait:
        if as_json:
            print_json([each.__dict__ for each in submitted], indent=1)
        return EXIT_OK
    return _wait(submitted, as_json=as_json)


def _check_counts(*, nodes: int | None, gpus_per_node: int | None, max_at_once: int | None) -> None:
    for option, value, least in (
        ("nodes", nodes, 1),
        ("gpus-per-node", gpus_per_node, 0),
        ("max-at-once", max_at_once, 1),
    ):
        if value is not None and value < least:
            raise ConfigError(
                f"--{option} {value}: at least {least} is needed",
                code="cli.out_of_range",
                option=option,
                value=value,
                least=least,
            )


def _check_known(after: Sequence[str]) -> None:
    """Refuse to wait for a job that Slurm does not know: it would take that one to have ended well.

    Raises:
        LaunchError: There is such a job.
    """
    for each in after:
        if not known(each):
            raise LaunchError(
                f"--after {each}: Slurm has no such job (any more) and would start this one at once; leave "
                "--after out if that is right (paratune jobs shows how jobs ended)",
                code="slurm.unknown_job",
                option="--after",
            )


def _run_jobs(
    path: Path, overrides: Sequence[str], site: Site, after: Sequence[str], held: ExitStack | None
) -> list[tuple[BatchJob, Path]]:
    """Return the job of a configuration; none when its run is finished.

    Args:
        path: The configuration.
        overrides: What lies above it.
        site: Where it goes.
        after: Jobs that it is to come after.
        held: Holds the run until it is submitted, so that of two launches one is refused; None to write nothing.
    """
    tree = read_tree(read_text(path), path.name)
    if isinstance(tree.value, dict) and "axes" in tree.value:
        raise ConfigError(
            f"{path} is a matrix of runs: add --array, which submits each of them as a separate job",
            code="cli.option_missing",
            path=path,
            option="--array",
        )
    loaded = load_config(path, overrides)
    folder = run_path(loaded.config).absolute()
    name = loaded.config.run.name or path.stem
    job = _job(name, site, (ArrayRun(name, _slurm_folder(folder) / CONFIG),), folder)
    if loaded.config.device == "cpu" and site.gpus_per_node:
        raise ConfigError(
            f"device: cpu, and the site gives {site.gpus_per_node} GPUs a node; use --gpus-per-node 0",
            code="device.conflict",
            key="device",
            gpus_per_node=site.gpus_per_node,
        )
    size = global_batch_size(loaded.config, job.num_processes, site.nodes)
    check_same_run(folder, loaded.values, global_batch_size=size)
    if is_finished(folder):
        print(plain(f"{folder} is already finished: nothing was submitted"), file=sys.stderr)  # noqa: T201
        return []
    for _, message in missing_files(loaded):
        print_warning(f"{message}; the nodes must see it", "data.not_on_nodes")
    if held is not None:
        if not after:  # else it may be in use by a job that this one is to come after
            _check_not_queued(folder, after)
            check_usable(folder, "resume")
        held.enter_context(_alone(_slurm_folder(folder)))
        _check_not_queued(folder, after)
        _write(_slurm_folder(folder) / CONFIG, f"# {plain(path)}, as submitted\n{show_text(loaded)}")
    return [(job, folder)]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other launches of a run waiting; Slurm knows of a job only once it is submitted.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    _write(folder / LOCK, "")
    with (folder / LOCK).open() as file:
        with suppress(OSError):  # a file system without locks: as it was without them
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check_not_queued(folder: Path, after: Sequence[str]) -> None:
    """Refuse a second job of a run: it would find the run in use.

    Raises:
        LaunchError: There is one, and this is not to start after it.
    """
    earlier = [each for each in jobs.submissions([folder]) if each.job not in after]
    if not earlier:
        return
    queued = queue()
    for each in earlier:
        if not jobs.status(each, queued).is_over:
            raise LaunchError(
                f"job {each.job} of this run is in the queue; paratune cancel {each.job} takes it out, and with "
                f"--after {each.job} this one starts when it has ended well",
                code="slurm.already_queued",
                job=each.job,
            )


def _array_jobs(
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
    """Return an array of what is left of a matrix, one for each number of processes and nodes."""
    tree = read_tree(read_text(path), path.name)
    if isinstance(tree.value, dict) and "axes" not in tree.value and not {"task", "data"}.isdisjoint(tree.value):
        raise ConfigError(
            f"{path} is the configuration of one run, and --array is for a matrix (axes:): leave it out",
            code="cli.no_effect",
            path=path,
            option="--array",
        )
    matrix = read_matrix(path)
    cells = cells_of(matrix, overrides, here=False)
    asked_cells = only(matrix, cells, only_words) if only_words else cells
    error = invalid(matrix, cells) or none_possible(matrix, asked_cells)
    if error is not None:
        raise error
    if nodes is not None and (clash := next((cell for cell in asked_cells if cell.num_nodes), None)):
        raise option_error(
            "--nodes",
            nodes,
            f"the matrix sets nodes: {clash.num_nodes} for {clash.name}; leave out --nodes",
            code="cli.conflict",
        )
    asked = {cell.name for cell in asked_cells}
    plan = plan_of(matrix, cells, sys.argv)
    check_unchanged(matrix, [step for step in plan.steps if step.cell.name in asked])
    todo = [s for s in plan.in_order() if s.cell.name in asked and s.runs(retry_failed=retry_failed)]
    if not dry_run:
        lock = take(matrix.folder)
        try:
            write_listed(matrix.folder, plan.record, todo)
        finally:
            lock.release()
    if not todo:
        print(plain(f"{matrix.name}: nothing is left to train"), file=sys.stderr)  # noqa: T201
    elif not dry_run:
        _say_of_queued(matrix.folder)
    by_size: dict[tuple[int, int], list[Step]] = {}
    for step in todo:
        by_size.setdefault((step.cell.num_processes, step.cell.num_nodes or 0), []).append(step)
    folder = matrix.folder.absolute()
    return [
        (
            replace(
                _job(
                    matrix.name if len(by_size) == 1 else _array_name(matrix.name, count, num_nodes),
                    _site_for(site, count, num_nodes, steps[0].cell.name),
                    tuple(
                        ArrayRun(
                            step.cell.name,
                            config_of(matrix.folder, step.cell.name).absolute(),
                            for_a_run(step.cell.environment),
                        )
                        for step in steps
                    ),
                    folder,
                ),
                is_array=True,
                max_at_once=max_at_once,
            ),
            folder,
        )
        for (count, num_nodes), steps in sorted(by_size.items())
    ]


def _array_name(matrix: str, num_processes: int, num_nodes: int) -> str:
    return f"{matrix}-{num_processes}" + (f"-nodes-{num_nodes}" if num_nodes else "")


def _say_of_queued(folder: Path) -> None:
    """Warn of arrays of a matrix that are in the queue: they may hold the same runs, or others (--only)."""
    earlier = jobs.submissions([folder])
    queued = queue() if earlier else []
    numbers = " ".join(each.job for each in earlier if not jobs.status(each, queued).is_over)
    if numbers:
        print_warning(
            f"jobs of this matrix are in the queue: {numbers}; a run that is in two jobs is trained once, and the "
            f"second job ends with an error if the first one still trains it; paratune cancel {numbers} removes them",
            "slurm.runs_queued",
        )


def _site_for(site: Site, num_processes: int, num_nodes: int, name: str) -> Site:
    """Return the site with as many nodes and processes as a run of a matrix wants.

    Args:
        site: With the nodes of the command line, where it gives any.
        num_processes: Of the run.
        num_nodes: Nodes that the matrix asks for. 0 leaves them to the site: its own number when that is above 1, else
            as few as hold the processes.
        name: Of the run.

    Raises:
        ConfigError: The processes cannot be divided equally among the nodes, or a node does not hold its part.
    """
    most = processes_per_node(site)
    num_nodes = num_nodes or (site.nodes if site.nodes > 1 else 0)
    if num_nodes and (num_processes % num_nodes or num_processes // num_nodes > most):
        raise ConfigError(
            f"{name} needs {num_processes} processes on {num_nodes} nodes, and a node of the site has {most}: nproc "
            f"may be a multiple of {num_nodes}, up to {num_nodes * most}; --nodes or the matrix (nodes:) changes them",
            code="site.too_small",
            name=name,
            num_processes=num_processes,
            num_nodes=num_nodes,
            most=most,
        )
    if not num_nodes and num_processes > most and num_processes % most:
        raise ConfigError(
            f"{name} needs {num_processes} processes, and a node of the site has {most}: a run on several nodes takes "
            f"all of each; nproc may be up to {most}, or a multiple of it",
            code="site.too_small",
            name=name,
            num_processes=num_processes,
            most=most,
        )
    each = num_processes // num_nodes if num_nodes else min(num_processes, most)
    gpus = each if site.gpus_per_node else 0
    return site.model_copy(
        update={"nodes": num_processes // each, "gpus_per_node": gpus, "processes_per_node": None if gpus else each}
    )


def _job(name: str, site: Site, runs: tuple[ArrayRun, ...], folder: Path) -> BatchJob:
    for path in (folder, Path.cwd()):
        if reason := why_no_sbatch_path(str(path)):
            raise ConfigError(f"{reason}; change run.folder, or the working directory", code="run.name_unfit")
    return BatchJob(name, site, runs, folder=_slurm_folder(folder), directory=Path.cwd())


def _slurm_folder(folder: Path) -> Path:
    return folder / SLURM_FOLDER


def _show_scripts(given: Sequence[tuple[BatchJob, Path]], *, as_json: bool) -> int:
    if as_json:
        print_json([{"name": job.name, "script": script_text(job)} for job, _ in given], indent=1)
    for job, _ in () if as_json else given:
        print(script_text(job), end="")  # noqa: T201
    return EXIT_OK


def _submit(job: BatchJob, folder: Path, site_path: Path, after: Sequence[str]) -> jobs.Submitted:
    script = job.folder / (SCRIPT if len(job.runs) == 1 and not job.is_array else f"{job.name}.sh")
    _write(script, script_text(job))
    began = jobs.now()
    number = submit(script, after=after)
    submitted = jobs.Submitted(
        job=number,
        name=job.name,
        submitted=began,
        folder=str(folder),
        site=str(site_path),
        script=str(script),
        num_nodes=job.site.nodes,
        num_processes=job.num_processes,
        num_runs=len(job.runs),
        is_array=job.is_array,
        after=tuple(after),
    )
    jobs.note(submitted)
    runs = f" of {len(job.runs)} runs" if job.is_array else ""
    _say(f"job {number}{runs}: {job.name}; script and output: {job.folder}")
    return submitted


def _write(path: Path, text: str) -> None:
    with os_error_as(
        CheckpointError, f"{path} cannot be written", "change run.folder", code="run.not_writable", path=path
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _wait(submitted: Sequence[jobs.Submitted], *, as_json: bool) -> int:
    try:
        found = wait_for(submitted, _say)
    except KeyboardInterrupt:
        numbers = " ".join(each.job for each in submitted)
        _say(
            f"no longer waiting; the submitted jobs continue: paratune jobs shows it, paratune cancel {numbers} ends it"
        )
        raise
    if as_json:
        print_json([jobs.as_dict(each) for each in found], indent=1)
    codes = [each.exit_code if each.exit_code is not None else EXIT_FAILED for each in found]
    for each, code in zip(found, codes, strict=True):
        if code:
            _show_tail(each)
    return next((code for code in codes if code), EXIT_OK)


def _show_tail(found: jobs.Status) -> None:
    """Print the last lines of what a failed run printed."""
    submitted = found.submitted
    for run in submitted.run_ids:
        if jobs.exit_said(submitted, run) == "0":
            continue
        folder = submitted.slurm_folder
        for path in [*folder.glob(f"{run}.txt"), *sorted(folder.glob(f"{run}.node*.txt"))]:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
            _say("\n".join([f"--- {path}", *(plain(line) for line in lines)]))
        return


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
