"""`paratune.sweep`: trains the runs of a matrix one after the other."""

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

from paratune.api.arguments import several
from paratune.api.configuration import set_texts
from paratune.api.process import process_as_before
from paratune.api.sweep_result import Sweep
from paratune.api.sweep_search import Searching, check_options, skip_runs_without_need
from paratune.api.sweep_train import log_failed, steps_to_train, train_steps
from paratune.console import set_up_logging
from paratune.errors import EXIT_FAILED, EXIT_OK, EXIT_STOPPED, ConfigError, LaunchError, Stopped
from paratune.processes.launcher import sweep_problem
from paratune.records.sweep import REPORT_FOLDER, Rounds, SweepRecord
from paratune.sweeps import asked
from paratune.sweeps.cell import Cell
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import Matrix, all_probes, read_matrix
from paratune.sweeps.plan import SweepPlan, check_unchanged, plan_of
from paratune.sweeps.rounds import read_rounds
from paratune.sweeps.run import exit_code, locked, write_listed

log = logging.getLogger(__name__)


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
    budget: str | None = None,
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
        budget: With `until`, time of all runs together, such as "8h" or "90min".
        run_code: Also run the code that the folders of models and teachers name; that of the matrix always runs.

    Returns:
        The matrix with its record and runs; `failed` names the runs that failed.

    Raises:
        ParatuneError: The matrix or an option is invalid, another sweep uses the folder, or runs in the folder have
            other settings than the matrix.
        Stopped: A signal or an interrupt stopped the sweep; the present run has saved a checkpoint.
    """
    request = SweepRequest(
        Path(matrix), tuple(set_texts(overrides)), only=several(only), retry_failed=retry_failed, overwrite=overwrite,
        probe=probe, until=until, budget=budget, run_code=run_code,
    )  # fmt: skip
    check_request(request, starts=not dry_run, shows=dry_run)
    prepared = prepare(request, here=True)
    if prepared.error is not None:
        raise prepared.error
    if dry_run:
        cells = [cell for cell in prepared.plan.in_order() if cell.name in prepared.names]
        record = replace(prepared.plan.record, cells=tuple(cell.record for cell in cells))
        return Sweep(prepared.matrix.folder, record, {cell.name: cell.changed for cell in cells if cell.changed})
    with process_as_before():
        set_up_logging(speaks=True)
        trained = train_matrix(request, prepared)
        from paratune.reports.matrix import make_sweep

        make_sweep(prepared.matrix.folder, prepared.matrix.folder / REPORT_FOLDER)
        trained.check()
    return Sweep(prepared.matrix.folder)


@dataclass(frozen=True)
class SweepRequest:
    """The arguments of a sweep; `sweep` describes them."""

    matrix: Path
    overrides: tuple[str, ...] = ()
    """Each `section.key=value`."""
    _: KW_ONLY
    only: tuple[str, ...] = ()
    retry_failed: bool = False
    overwrite: bool = False
    probe: bool = False
    until: str | None = None
    budget: str | None = None
    run_code: bool = False


@dataclass(frozen=True)
class PreparedSweep:
    """The runs of a matrix, compared with the content of its folder; nothing is written."""

    matrix: Matrix
    cells: tuple[Cell, ...]
    names: frozenset[str]
    """Of the selected runs."""
    steps: SweepPlan | None
    rounds: Rounds | None
    invalid: ConfigError | None = None
    """The problems of the runs."""
    none_possible: ConfigError | None = None
    """Why no selected run can run."""

    @property
    def error(self) -> ConfigError | None:
        """What prevents that a run is started."""
        return self.invalid or self.none_possible

    @property
    def plan(self) -> SweepPlan:
        """The states of valid runs."""
        assert self.steps is not None
        return self.steps


def check_request(request: SweepRequest, *, starts: bool, shows: bool) -> None:
    """Check what needs no file.

    Args:
        request: The arguments.
        starts: Whether runs are to be started here.
        shows: Whether the runs are only shown (`dry_run`).

    Raises:
        LaunchError: A launcher started this process as one of several.
        ConfigError: `until` is given, and no run is to be started.
    """
    if starts and (reason := sweep_problem()):
        raise LaunchError(reason, code="launch.started_twice")
    if request.until is not None and not starts:
        other = "--dry-run" if shows else "--list"
        message = f"--until adds runs by the verdicts on earlier ones, so {other} cannot show which; use one of them"
        raise ConfigError(message, code="cli.conflict", options=("--until", other))


def prepare(request: SweepRequest, *, here: bool) -> PreparedSweep:
    """Read a matrix, select its runs, and compare them with the content of its folder; write nothing.

    Args:
        here: Whether the runs are to run on this machine.

    Raises:
        ParatuneError: The matrix or an option is invalid. Problems of runs are not raised, but in `error`.
    """
    matrix = all_probes(read_matrix(request.matrix)) if request.probe else read_matrix(request.matrix)
    check_options(matrix, only=request.only, until=request.until)
    cells = cells_of(matrix, request.overrides, here=here)
    if (error := asked.invalid(matrix, cells)) is not None:
        return PreparedSweep(matrix, cells, frozenset(), None, None, invalid=error)
    selected = asked.only(matrix, cells, request.only) if request.only else cells
    plan = skip_runs_without_need(matrix, plan_of(matrix, cells, sys.argv), retry_failed=request.retry_failed)
    return PreparedSweep(
        matrix,
        cells,
        frozenset(cell.name for cell in selected),
        plan,
        read_rounds(matrix, plan.record.cells, request.until, request.budget),
        none_possible=asked.none_possible(matrix, selected),
    )


@dataclass(frozen=True)
class TrainedSweep:
    """The record of a matrix after its runs were trained."""

    record: SweepRecord
    names: tuple[str, ...]
    """Of the selected runs, in order."""
    signal: str | None
    """Signal that stopped the sweep."""
    not_compressed: tuple[str, ...] = ()
    """Finished runs without all of their smaller forms (`compress:`)."""

    @property
    def exit_code(self) -> int:
        """Return 0 when all selected runs are finished or skipped, and made smaller; 75 after a signal, else 1."""
        was_stopped = self.signal is not None
        code = exit_code(self.record, self.names, was_stopped=was_stopped)
        return (EXIT_STOPPED if was_stopped else EXIT_FAILED) if self.not_compressed and code == EXIT_OK else code

    def check(self) -> int:
        """Log the failed runs, and return the exit code.

        Raises:
            Stopped: A signal stopped the sweep before all runs were finished.
        """
        code = self.exit_code
        if self.signal is not None and code != EXIT_OK:
            raise Stopped(
                f"stopped by {self.signal}; the same command continues it", code="stopped.signal", signal=self.signal
            )
        log_failed(self.record, self.names)
        return code


def train_matrix(request: SweepRequest, prepared: PreparedSweep) -> TrainedSweep:
    """Train the selected runs that are not finished; `prepared.error` must be None.

    Raises:
        CheckpointError: Another sweep uses the folder, or runs in it have other settings than the matrix.
    """
    searching = Searching(prepared.matrix, request.overrides, here=True)
    with locked(prepared.matrix.folder):
        plan = present_plan(request, prepared)
        plan = replace(plan, record=replace(plan.record, rounds=prepared.rounds))
        trained = train_steps(
            plan, prepared.names, searching, retry_failed=request.retry_failed, run_code=request.run_code
        )
        return TrainedSweep(*trained)


def present_plan(request: SweepRequest, prepared: PreparedSweep) -> SweepPlan:
    """Return the present states of the runs; another process may have trained since `prepare`.

    Raises:
        CheckpointError: Runs in the folder have other settings than the matrix.
    """
    matrix = prepared.matrix
    plan = plan_of(matrix, prepared.cells, sys.argv)
    plan = skip_runs_without_need(matrix, plan, retry_failed=request.retry_failed)
    if not request.overwrite:
        check_unchanged(matrix, [cell for cell in plan.cells if cell.name in prepared.names])
    return plan


def steps_to_list(request: SweepRequest, prepared: PreparedSweep, *, writes: bool = True) -> list[Cell]:
    """Return the runs that other programs can start now.

    Args:
        writes: Whether to write the configurations of the runs and the record of the matrix.

    Raises:
        CheckpointError: Another sweep uses the folder, or runs in it have other settings than the matrix.
    """
    matrix = prepared.matrix
    searching = Searching(matrix, request.overrides, here=False, writes=writes)
    with locked(matrix.folder) if writes else nullcontext():
        plan = present_plan(request, prepared)
        todo = steps_to_train(plan, prepared.names, retry_failed=request.retry_failed)
        record, todo = searching.present_round(plan.record, todo)
        if writes:
            write_listed(matrix.folder, record, todo)
    return todo
