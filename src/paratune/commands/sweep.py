"""`paratune sweep`: a matrix of runs, planned, trained one after the other, and reported."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paratune.commands.options import Json, Overrides
from paratune.errors import EXIT_CONFIG, EXIT_OK, ConfigError, LaunchError, require_installed
from paratune.processes.launcher import sweep_problem


def sweep(
    matrix: Path,
    *,
    set_: Overrides = (),
    dry_run: bool = False,
    only: Sequence[str] = (),
    retry_failed: bool = False,
    overwrite: bool = False,
    probe: bool = False,
    list_: bool = False,
    data_figures: bool = False,
    until: str | None = None,
    budget: str | None = None,
    json: Json = False,
) -> int:
    """Train every combination of MATRIX, select the best by validation, and write a report.

    Runs that are impossible here are skipped with the reason. After a crash, repeat the command: finished runs are
    kept, and unfinished runs are resumed.

    Args:
        dry_run: show the runs and their problems; start none
        only: only these runs: AXIS=VALUE[,VALUE] or a pattern of names; repeat it to combine conditions
        retry_failed: train failed runs again
        overwrite: delete and train again the runs whose settings changed in MATRIX
        probe: train only 20 steps of each run, to measure speed, in a separate folder
        list_: print the command of each run, for a cluster; start none
        data_figures: add figures of the data to the report; reads the data again after the runs
        until: add seeds only where a verdict is not decided: decided (all measures), speed or quality
        budget: with --until, time of all runs together, such as 8h or 90min
    """
    from paratune.commands.sweep_plan import show_invalid, show_list, show_plan
    from paratune.commands.sweep_run import steps_to_train, train_steps
    from paratune.commands.sweep_search import Searching, check_options
    from paratune.sweeps import asked
    from paratune.sweeps.cells import cells_of
    from paratune.sweeps.listing import write_listed
    from paratune.sweeps.matrix import all_probes, read_matrix
    from paratune.sweeps.plan import check_unchanged, plan_of
    from paratune.sweeps.rounds import read_rounds
    from paratune.sweeps.run import take

    if not (dry_run or list_) and (reason := sweep_problem()):
        raise LaunchError(reason, code="launch.started_twice")
    if dry_run and list_:
        raise ConfigError(
            "--list writes files and --dry-run writes nothing; use one of them",
            code="cli.conflict",
            options=("--list", "--dry-run"),
        )
    if until is not None and (dry_run or list_):
        other = "--dry-run" if dry_run else "--list"
        raise ConfigError(
            f"--until adds runs by the verdicts on earlier ones, so {other} cannot show which; use one of them",
            code="cli.conflict",
            options=("--until", other),
        )
    loaded = all_probes(read_matrix(matrix)) if probe else read_matrix(matrix)
    check_options(loaded, only=only, until=until)
    cells = cells_of(loaded, set_, here=not list_)
    error = asked.invalid(loaded, cells)
    if dry_run and error is not None:
        show_invalid(loaded, cells, error, as_json=json)
        return EXIT_CONFIG
    selected = asked.only(loaded, cells, only) if only else cells
    if error is not None:
        raise error
    nothing_to_run = asked.none_possible(loaded, selected)
    if nothing_to_run is not None and not dry_run:
        raise nothing_to_run
    if data_figures:
        from paratune.commands.data_figures import check_kind

        check_kind(selected[0].config.task)
        require_installed("matplotlib", extra="plots")
    names = {cell.name for cell in selected}
    plan = plan_of(loaded, cells, sys.argv)
    rounds = read_rounds(loaded, plan.record.cells, until, budget)
    if dry_run:
        show_plan(loaded, plan, names, nothing_to_run, retry_failed=retry_failed, as_json=json)
        return EXIT_OK if nothing_to_run is None else nothing_to_run.exit_code
    lock = take(loaded.folder)
    try:
        plan = plan_of(loaded, cells, sys.argv)  # another sweep may have trained since the plan above
        if not overwrite:
            check_unchanged(loaded, [step for step in plan.steps if step.cell.name in names])
        searching = Searching(loaded, set_, here=not list_)
        if list_:
            todo = steps_to_train(plan, names, retry_failed=retry_failed)
            record, todo = searching.present_round(plan.record, todo)
            write_listed(loaded.folder, record, todo)
            show_list(loaded, todo, as_json=json)
            return EXIT_OK
        plan = replace(plan, record=replace(plan.record, rounds=rounds))
        return train_steps(
            loaded, plan, names, searching, retry_failed=retry_failed, as_json=json, data_figures=data_figures
        )
    finally:
        lock.release()
