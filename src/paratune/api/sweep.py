"""`paratune.sweep`: trains the runs of a matrix, one after the other or side by side."""

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from paratune.api.configuration import set_texts
from paratune.api.process import process_as_before, several
from paratune.api.run import Sweep
from paratune.api.sweep_slots import Parallel, read_parallel
from paratune.api.sweep_train import TrainedSweep, read_rounds, train_steps
from paratune.base.text import plain
from paratune.base.units import counted
from paratune.console import set_up_logging
from paratune.errors import ConfigError, LaunchError, require_installed
from paratune.processes.launcher import sweep_problem
from paratune.records.sweep import REPORT_FOLDER
from paratune.sweeps.cell import Cell, invalid, none_possible, select, waits_for
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import Matrix, read_matrix
from paratune.sweeps.run import SweepPlan, check_unchanged, locked, plan_of, write_listed
from paratune.sweeps.search import TRIAL, next_trials

log = logging.getLogger(__name__)

Use = Literal["train", "show", "list"]
"""What is done with the runs: they are trained here, shown (`dry_run`), or listed for other programs."""


def sweep(
    matrix: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    dry_run: bool = False,
    only: str | Sequence[str] = (),
    retry_failed: bool = False,
    overwrite: bool = False,
    probe: bool = False,
    until: str | None = None,
    parallel: int | str | None = None,
    timing: bool = False,
    run_code: bool = False,
) -> Sweep:
    """Train every combination of a matrix, each in new processes of this machine, and write the report.

    Runs that are impossible here are skipped with the reason. After a crash or an interrupt, repeat the call: finished
    runs are kept, and unfinished runs are resumed. A failed run does not stop the others.

    Args:
        matrix: A YAML file with axes, or with a search.
        overrides: Values by dotted key for all runs.
        dry_run: Return the runs and their states; start none, and write nothing.
        only: Only these runs: "AXIS=VALUE[,VALUE]" or a pattern of names; several conditions are combined.
        retry_failed: Train failed runs again.
        overwrite: Delete and train again the runs whose settings changed in the matrix.
        probe: Train only 20 steps of each run, to measure speed, in a separate folder.
        until: Add seeds only where a verdict is not decided: decided (all measures), speed or quality.
        parallel: Most runs at a time, or "auto": one on each GPU, or on each set of four cores; default: `parallel` of
            the matrix. Runs side by side disturb the times of each other.
        timing: Afterwards time each run alone by a probe of 20 steps, in a separate folder.
        run_code: Also run the code that the folders of models and teachers name; that of the matrix always runs.

    Returns:
        The matrix with its record and runs; `failed` names the runs that failed.

    Raises:
        ParatuneError: The matrix or an option is invalid, another sweep uses the folder, or runs in the folder have
            other settings than the matrix.
        Stopped: A signal or an interrupt stopped the sweep; the present run has saved a checkpoint.

    >>> [cell.name for cell in paratune.sweep("matrix.yaml", dry_run=True).cells]
    ['high', 'low']
    """
    prepared = prepare(
        Path(matrix), set_texts(overrides), "show" if dry_run else "train", only=several(only),
        retry_failed=retry_failed, overwrite=overwrite, probe=probe, until=until,
        parallel=None if parallel is None else str(parallel), timing=timing,
    )  # fmt: skip
    folder = prepared.matrix.folder
    if dry_run:
        cells = [cell for cell in prepared.plan.in_order() if cell.name in prepared.names]
        record = replace(prepared.plan.record, cells=tuple(cell.record for cell in cells))
        return Sweep(folder, record, {cell.name: cell.changed for cell in cells if cell.changed})
    with process_as_before():
        set_up_logging(speaks=True)
        from paratune.reports.matrix import make_sweep

        for part in (prepared, prepared.timing):
            if part is not None:
                trained = train_matrix(part, run_code=run_code)
                make_sweep(part.matrix.folder, part.matrix.folder / REPORT_FOLDER)
                trained.check(is_last=part.timing is None)
    return Sweep(folder)


@dataclass(frozen=True)
class PreparedSweep:
    """The runs of a matrix, compared with the content of its folder; nothing is written."""

    matrix: Matrix
    overrides: tuple[str, ...]
    cells: tuple[Cell, ...]
    names: frozenset[str]
    """Of the selected runs."""
    plan: SweepPlan
    """The states of the runs."""
    retry_failed: bool
    overwrite: bool
    parallel: Parallel = 1
    """Most runs at a time."""
    timing: "PreparedSweep | None" = None
    """Probes of the runs, which are trained alone after them."""


def prepare(
    path: Path,
    overrides: Sequence[str],
    use: Use,
    *,
    only: Sequence[str] = (),
    retry_failed: bool = False,
    overwrite: bool = False,
    probe: bool = False,
    until: str | None = None,
    parallel: str | None = None,
    timing: bool = False,
) -> PreparedSweep:
    """Read a matrix, select its runs, and compare them with the content of its folder; write nothing.

    The arguments are those of `sweep`; `overrides` are `section.key=value`.

    Raises:
        ParatuneError: The matrix or an option is invalid, runs have problems, no selected run is possible, or a
            launcher started this process as one of several.
    """
    if use == "train" and (reason := sweep_problem()):
        raise LaunchError(reason, code="launch.started_twice")
    if use != "train" and until is not None:
        other = "--dry-run" if use == "show" else "--list"
        message = f"--until adds runs by the verdicts on earlier ones, so {other} cannot show which; use one of them"
        raise ConfigError(message, code="cli.conflict", options=("--until", other))
    if use != "train" and (parallel is not None or timing):
        option, other = "--parallel" if parallel else "--timing", "--dry-run" if use == "show" else "--list"
        message = f"{option} is for runs that are trained here, and {other} trains none; use one of them"
        raise ConfigError(message, code="cli.conflict", options=(option, other))
    at_a_time = None if parallel is None else read_parallel(parallel)
    matrix = read_matrix(path, as_probes=probe)
    search, compress = matrix.options.search, matrix.options.compress
    is_bayesian = search is not None and search.method == "bayesian"
    if is_bayesian:
        given: dict[str, Any] = {"--only": only, "--until": until, "--timing": timing, "probe": matrix.probe}
        given |= {f"axes.{axis.key}": True for axis in matrix.axes if not axis.is_seed and axis.key != TRIAL}
        if refused := [name for name, value in given.items() if value]:
            message = f"{matrix.source}: with search.method: bayesian the scores of all earlier runs decide which "
            message += f"trials follow; leave out {', '.join(refused)}, or use method: random"
            raise ConfigError(message, code="cli.conflict", options=(*refused, "search.method"))
    if timing and matrix.probe is not None:
        message = f"{path}: its runs are probes, which --timing adds to whole runs; leave it out"
        raise ConfigError(message, code="cli.no_effect", option="--timing")
    if matrix.probe is not None and at_a_time not in (None, 1):
        message = "probes are for times, which runs side by side disturb; leave --parallel out"
        raise ConfigError(message, code="cli.conflict", options=("--parallel", "--probe" if probe else "probe"))
    at_a_time = at_a_time or (1 if matrix.probe is not None else matrix.options.parallel)
    if until in ("speed", "decided") and at_a_time != 1:
        message = f"--until {until} needs times, which runs side by side disturb; use --until quality, or --parallel 1"
        raise ConfigError(message, code="cli.conflict", options=("--until", "--parallel"))
    if is_bayesian:
        require_installed("optuna", extra="search")
    if compress is not None and any(form != "bf16" for form in compress.forms):
        for name in ("onnx", "onnxruntime"):
            require_installed(name, extra="serve")
    cells = _valid_cells(matrix, overrides, use)
    selected = select(matrix, cells, only)
    if (error := none_possible(matrix, selected)) is not None:
        raise error
    plan = plan_of(matrix, cells, sys.argv)
    # Suggested trials that cannot run here are skipped, and the next ones follow.
    while search is not None and (trials := next_trials(search, matrix.folder, plan.record)) is not None:
        matrix = read_matrix(path, trials)
        cells = selected = _valid_cells(matrix, overrides, use)
        plan = plan_of(matrix, cells, sys.argv)
    plan = replace(plan, record=replace(plan.record, rounds=read_rounds(matrix, plan.record.cells, until)))
    names = frozenset(cell.name for cell in selected)
    probes = None
    if timing:
        probes = prepare(
            path, overrides, use, only=only, retry_failed=retry_failed, overwrite=overwrite, probe=True, parallel="1"
        )
    return PreparedSweep(matrix, tuple(overrides), cells, names, plan, retry_failed, overwrite, at_a_time, probes)


def _valid_cells(matrix: Matrix, overrides: Sequence[str], use: Use) -> tuple[Cell, ...]:
    cells = cells_of(matrix, overrides, here=use != "list")
    if (error := invalid(matrix, cells)) is not None:
        raise error
    return cells


def _present_plan(prepared: PreparedSweep) -> SweepPlan:
    """Return the present states of the runs; another process may have trained since `prepare`."""
    plan = plan_of(prepared.matrix, prepared.cells, sys.argv)
    if not prepared.overwrite:
        check_unchanged(prepared.matrix, [cell for cell in plan.cells if cell.name in prepared.names])
    return plan


def train_matrix(prepared: PreparedSweep, *, run_code: bool) -> TrainedSweep:
    """Train the selected runs that are not finished, with --run-code where `run_code` is set.

    Raises:
        CheckpointError: Another sweep uses the folder, or runs in it have other settings than the matrix.
    """
    folder, search = prepared.matrix.folder, prepared.matrix.options.search
    with locked(folder):
        while True:
            plan = _present_plan(prepared)
            plan = replace(plan, record=replace(plan.record, rounds=prepared.plan.record.rounds))
            names, retry_failed = prepared.names, prepared.retry_failed
            trained = train_steps(
                prepared.matrix, plan, names,
                retry_failed=retry_failed, run_code=run_code, parallel=prepared.parallel,
            )  # fmt: skip
            if search is None or search.method == "random" or trained.signal is not None:
                return trained
            before = prepared
            prepared = replace(prepare(prepared.matrix.source, prepared.overrides, "train"), parallel=prepared.parallel)
            check_unchanged(prepared.matrix, prepared.plan.cells)  # an edit would train the new trials with it
            if prepared.names == before.names or prepared.matrix.folder != folder:  # it was renamed since
                return trained


def steps_to_list(prepared: PreparedSweep, *, writes: bool = True) -> list[Cell]:
    """Return the runs that other programs can start now.

    Args:
        writes: Whether to write the configurations of the runs and the record of the matrix.

    Raises:
        CheckpointError: Another sweep uses the folder, or runs in it have other settings than the matrix.
    """
    matrix = prepared.matrix
    with locked(matrix.folder) if writes else nullcontext():
        plan = _present_plan(prepared)
        for line in plan.left_out(prepared.names):
            log.info("%s", plain(line))
        selected = (cell for cell in plan.in_order() if cell.name in prepared.names)
        todo = [cell for cell in selected if cell.runs(retry_failed=prepared.retry_failed)]
        ready = [cell for cell in todo if waits_for(plan.record, cell.record) is None]
        if len(ready) < len(todo):
            waiting = counted(len(todo) - len(ready), "run")
            log.info("%s left out: a run that they need is not finished; repeat the command when it is", waiting)
        if writes:
            write_listed(matrix.folder, plan.record, ready)
    return ready
