"""`paratune sweep`: a matrix of runs, planned, trained, and reported."""

import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paratune.base.text import listing, plain
from paratune.base.units import counted
from paratune.commands.options import Json, Overrides
from paratune.console import outlive_readers, print_json, print_result, print_table, set_up_logging
from paratune.errors import EXIT_OK, ConfigError

if TYPE_CHECKING:
    from paratune.sweeps.matrix import Matrix
    from paratune.sweeps.run import SweepPlan


def sweep(
    matrix: Path,
    /,
    *,
    set_: Overrides = (),
    dry_run: bool = False,
    only: Sequence[str] = (),
    retry_failed: bool = False,
    overwrite: bool = False,
    probe: bool = False,
    list_: bool = False,
    until: str | None = None,
    parallel: str | None = None,
    timing: bool = False,
    run_code: bool = False,
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
        until: add seeds only until the verdicts are decided on speed, on quality, or on both (decided)
        parallel: most runs at a time, or auto: one on each GPU or each set of four cores; default: parallel: of MATRIX
        timing: time each run afterwards, alone, by a probe of 20 steps in a separate folder
        run_code: also run code that the folders of models and teachers name; that of MATRIX always runs
    """
    from paratune.api.sweep import prepare, steps_to_list, train_matrix
    from paratune.records.sweep import REPORT_FOLDER
    from paratune.sweeps.run import listed

    if dry_run and list_:
        message = "--list writes files and --dry-run writes nothing; use one of them"
        raise ConfigError(message, code="cli.conflict", options=("--list", "--dry-run"))
    prepared = prepare(
        matrix, set_, "list" if list_ else "show" if dry_run else "train", only=only,
        retry_failed=retry_failed, overwrite=overwrite, probe=probe, until=until, parallel=parallel, timing=timing,
    )  # fmt: skip
    if dry_run:
        show_plan(prepared.matrix, prepared.plan, prepared.names, retry_failed=retry_failed, as_json=json)
        return EXIT_OK
    set_up_logging(speaks=True)
    folder = prepared.matrix.folder
    if list_:
        runs = [listed(folder, cell, run_code=run_code) for cell in steps_to_list(prepared)]
        if json:
            about = {"sweep": prepared.matrix.name, "folder": str(folder), "directory": str(Path.cwd())}
            print_json({**about, "runs": runs}, indent=1)
            return EXIT_OK
        for run in runs:
            print(run["line"])  # noqa: T201
        if not runs:
            print(plain(f"{prepared.matrix.name}: nothing is left to train"), file=sys.stderr)  # noqa: T201
        return EXIT_OK
    outlive_readers()
    from paratune.reports.matrix import make_sweep
    from paratune.reports.terminal import SWEEP_LINES, terminal_sweep

    trained = train_matrix(prepared, run_code=run_code)
    report = make_sweep(folder, folder / REPORT_FOLDER)
    if not json:
        print_result(terminal_sweep(report, SWEEP_LINES))
        files = {"report": report.files[0], "runs": report.folder / "runs", "logs": report.folder / "logs"}
        for name, path in files.items():
            print(f"{name}: {plain(path)}")  # noqa: T201
    timed_ones, result = [], report.as_dict()
    if prepared.timing is not None and trained.signal is None:
        timed_ones.append(train_matrix(prepared.timing, run_code=run_code))
        folder = prepared.timing.matrix.folder
        timed = make_sweep(folder, folder / REPORT_FOLDER)
        result["timing"] = timed.as_dict()
        if not json:
            print_result(terminal_sweep(timed, SWEEP_LINES))
            print(f"report of times: {plain(timed.files[0])}")  # noqa: T201
    if json:
        print_json(result, indent=1)
    return max(trained.check(is_last=prepared.timing is None), *(timed.check() for timed in timed_ones), EXIT_OK)


def show_plan(
    matrix: "Matrix", plan: "SweepPlan", names: Collection[str], *, retry_failed: bool, as_json: bool
) -> None:
    """Print the runs of these names and their actions; as JSON the content of sweep.json before they are trained."""
    cells = [cell for cell in plan.in_order() if cell.name in names]
    if as_json:
        about = {
            "folder": str(matrix.folder),
            "to_train": [cell.name for cell in cells if cell.runs(retry_failed=retry_failed)],
            "changed": {cell.name: list(cell.changed) for cell in cells if cell.changed},
        }
        print_json({**asdict(replace(plan.record, cells=tuple(cell.record for cell in cells))), **about}, indent=1)
        return
    rows = []
    for cell in cells:
        trains = "probe" if cell.record.kind == "probe" else "train"
        trains += f" after {listing(cell.record.needs, 2)}" if cell.record.needs else ""
        will_run = cell.runs(retry_failed=retry_failed)
        action = {"changed": "refuse", "running": "wait"}.get(cell.shown_state, trains if will_run else "none")
        if cell.record.state != "skipped":
            rows.append((cell.name, cell.record.num_processes, cell.shown_state, action))
    print_result(f"{matrix.name}: {plan.counts(names)} in {matrix.folder}")
    for axis in matrix.axes:
        kind = " (seeds)" if axis.is_seed else ""
        print_result(f"  {axis.label}{kind}: {', '.join(axis.values.values())}")
    if rows:
        print_table(("run", "processes", "state", "action"), rows, right=("processes",))
    notes = plan.left_out(names) + [f"{cell.name}: {change}" for cell in cells for change in cell.changed]
    if any(cell.changed for cell in cells):
        notes.append("a run with changed settings is an error; --overwrite deletes it and trains it again")
    if past := plan.record.past:
        are = "is" if len(past) == 1 else "are"
        notes.append(f"{counted(len(past), 'run')} {are} no longer in the matrix and are kept: {listing(past, 5)}")
    for note in notes:
        print_result(note)
