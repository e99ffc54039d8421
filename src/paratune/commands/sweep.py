"""`paratune sweep`: a matrix of runs, planned, trained one after the other, and reported."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from paratune.base.text import plain
from paratune.base.units import format_duration
from paratune.commands.sweep_plan import counts, show_invalid, show_list, show_plan
from paratune.console import Display, outlive_readers, print_json, print_result, set_up_logging
from paratune.errors import EXIT_CONFIG, EXIT_OK, ConfigError, LaunchError, Stopped, require_installed
from paratune.launch.one import OneByOne
from paratune.processes.launcher import why_no_sweep
from paratune.records import SUMMARY_FILE, read_json
from paratune.records.sweep import REPORT_FOLDER, CellRecord, SweepRecord, run_folder_of, write_sweep
from paratune.report.sweep import SweepReport, make_sweep, terminal_sweep
from paratune.report.sweep.export import as_dict
from paratune.sweep.asked import invalid, none_possible, only
from paratune.sweep.cells import cells_of
from paratune.sweep.listing import write_listed
from paratune.sweep.matrix import Matrix, all_probes, read_matrix
from paratune.sweep.plan import Step, SweepPlan, check_unchanged, plan_of
from paratune.sweep.run import Start, exit_code, run_step, take
from paratune.sweep.warmup import warm_ups

log = logging.getLogger(__name__)


def sweep_command(
    path: Path,
    overrides: Sequence[str],
    *,
    dry_run: bool,
    only_words: Sequence[str],
    retry_failed: bool,
    overwrite: bool,
    as_json: bool,
    probe: bool = False,
    as_list: bool = False,
    data_figures: bool = False,
) -> int:
    """Run the command; return its exit code.

    Raises:
        ParatuneError: The file or a cell is wrong, the folder is in use or holds other runs, or a signal came.
    """
    if not (dry_run or as_list) and (reason := why_no_sweep()):
        raise LaunchError(reason, code="launch.started_twice")
    if dry_run and as_list:
        raise ConfigError(
            "--list writes files and --dry-run writes nothing; use one of them",
            code="cli.conflict",
            options=("--list", "--dry-run"),
        )
    matrix = all_probes(read_matrix(path)) if probe else read_matrix(path)
    cells = cells_of(matrix, overrides, here=not as_list)
    error = invalid(matrix, cells)
    if dry_run and error is not None:
        show_invalid(matrix, cells, error, as_json=as_json)
        return EXIT_CONFIG
    asked_cells = only(matrix, cells, only_words) if only_words else cells
    error = error or none_possible(matrix, asked_cells)
    if error is not None:
        raise error
    if data_figures:
        from paratune.commands.data_figures import check_kind

        check_kind(asked_cells[0].config.task)
        require_installed("matplotlib", extra="plots")
    asked = {cell.name for cell in asked_cells}
    plan = plan_of(matrix, cells, sys.argv)
    if dry_run:
        show_plan(matrix, plan, asked, retry_failed=retry_failed, as_json=as_json)
        return EXIT_OK
    lock = take(matrix.folder)
    try:
        plan = plan_of(matrix, cells, sys.argv)  # another sweep may have trained since the first look
        if not overwrite:
            check_unchanged(matrix, [step for step in plan.steps if step.cell.name in asked])
        if as_list:
            todo = _todo(plan, asked, retry_failed=retry_failed)
            write_listed(matrix.folder, plan.record, todo)
            show_list(matrix, todo, as_json=as_json)
            return EXIT_OK
        return _run(matrix, plan, asked, retry_failed=retry_failed, as_json=as_json, data_figures=data_figures)
    finally:
        lock.release()


def _todo(plan: SweepPlan, asked: set[str], *, retry_failed: bool) -> list[Step]:
    """Return what is to be trained, in the order in which it is."""
    return [step for step in plan.in_order() if step.cell.name in asked and step.runs(retry_failed=retry_failed)]


def _run(
    matrix: Matrix, plan: SweepPlan, asked: set[str], *, retry_failed: bool, as_json: bool, data_figures: bool
) -> int:
    outlive_readers()
    set_up_logging(speaks=True)
    todo = _todo(plan, asked, retry_failed=retry_failed)
    total = sum(step.cell.name in asked and step.record.state != "skipped" for step in plan.steps)
    record = replace(plan.record, listed=())  # from here on this process starts them
    write_sweep(matrix.folder, record)
    _say(f"{matrix.name}: {counts(plan, asked)}; {len(todo)} to train now")
    with OneByOne() as children, Display(speaks=True).bar("runs", total) as bar:
        start = partial(children.run, timeout_s=matrix.timeout_s)
        _warm_up(matrix, todo, start, children)
        for number, step in enumerate(todo, start=total - len(todo)):
            if children.signal is not None:
                break
            if sys.stderr.isatty():  # elsewhere the lines below say it
                bar.update(number, step.cell.name)
            _say(f"[{number + 1}/{total}] {step.cell.name}{_how(step)}")
            record = run_step(matrix.folder, record, step, start, stopped=lambda: children.signal is not None)
            cell = next(each for each in record.cells if each.name == step.cell.name)
            _say(f"[{number + 1}/{total}] {_ended(cell)}{_score(matrix, cell)}")
        signal = children.signal
    report = make_sweep(matrix.folder, matrix.folder / REPORT_FOLDER)
    if data_figures and signal is None and report.num_finished:
        # Only now: what reads the data stays in memory, and is not to be beside the runs that are measured.
        from paratune.commands.matrix_data import data_section

        report = make_sweep(matrix.folder, matrix.folder / REPORT_FOLDER, more=data_section)
    if as_json:
        print_json(as_dict(report), indent=1)
    else:
        print_result(terminal_sweep(report))
        _say_where(report)
    code = exit_code(record, sorted(asked), was_stopped=signal is not None)
    if signal is not None and code != EXIT_OK:
        raise Stopped(f"stopped by {signal}; the same command continues it", code="stopped.signal", signal=signal)
    _name_failed(record, asked)
    return code


def _warm_up(matrix: Matrix, todo: Sequence[Step], start: Start, children: OneByOne) -> None:
    """Run what is thrown away; one that fails says so, and the runs themselves will."""
    for each in warm_ups(matrix, todo):
        if children.signal is not None:
            return
        _say(f"warm-up: the first steps of {each.of}, thrown away")
        code = each.run(start)
        if code != EXIT_OK and children.signal is None:
            _say(f"the warm-up ended with exit code {code}; its output is in {each.log}")


def _say(text: str) -> None:
    log.info("%s", plain(text))


def _how(step: Step) -> str:
    if step.changed:
        return ": deleted, and trained again with the present settings"
    return ": resumed" if step.is_begun else ""


def _ended(cell: CellRecord) -> str:
    last = cell.attempts[-1]
    took = format_duration(_seconds(last["began"], last["ended"]))
    reason = (cell.reason or "").splitlines()
    return f"{cell.state} after {took}{f': {reason[0]}' if reason else ''}"


def _score(matrix: Matrix, cell: CellRecord) -> str:
    if cell.state != "finished" or cell.kind == "probe":
        return ""
    scores = read_json(run_folder_of(matrix.folder, cell.name) / SUMMARY_FILE)["scores"]
    value = (scores.get("validation") or {}).get(cell.metric)
    return "" if value is None else f": {cell.metric} {value:.4f} on validation"


def _seconds(began: str, ended: str) -> float:
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()


def _say_where(report: SweepReport) -> None:
    for name, path in (("report", report.files[0]), ("runs", report.folder / "runs"), ("logs", report.folder / "logs")):
        print(f"{name}: {plain(path)}")  # noqa: T201


def _name_failed(record: SweepRecord, asked: set[str]) -> None:
    failed = [cell.name for cell in record.cells if cell.state == "failed" and cell.name in asked]
    if failed:
        _say(f"{len(failed)} failed; their output is in logs/; --retry-failed continues from their checkpoints")
