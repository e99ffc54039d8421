"""`paratune sweep`: a matrix of runs, planned, trained one after the other, and reported."""

import logging
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from paratune.console import Display, print_json, print_result, set_up_logging
from paratune.errors import EXIT_CONFIG, EXIT_OK, LaunchError, Stopped
from paratune.launch.one import OneByOne
from paratune.place import place_from_environment
from paratune.records import SUMMARY_FILE, read_json
from paratune.report.sweep import SweepReport, make_sweep, terminal_sweep
from paratune.report.sweep.export import as_dict
from paratune.sweep.cells import Cell, cells_of, invalid, only
from paratune.sweep.matrix import Matrix, read_matrix
from paratune.sweep.plan import Plan, Step, check_unchanged, plan_of
from paratune.sweep.run import exit_code, run_step, take
from paratune.sweep_record import REPORT_FOLDER, CellRecord, SweepRecord, run_folder_of, write_sweep
from paratune.text import plain
from paratune.units import format_duration

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
) -> int:
    """Run the command; return its exit code.

    Raises:
        ParatuneError: The file or a cell is wrong, the folder is in use or holds other runs, or a signal came.
    """
    if place_from_environment().world_size > 1:
        raise LaunchError("paratune sweep starts its processes itself (nproc:); leave out torchrun")
    matrix = read_matrix(path)
    cells = cells_of(matrix, overrides)
    error = invalid(matrix, cells)
    if dry_run and error is not None:
        _show_invalid(matrix, cells, str(error), as_json=as_json)
        return EXIT_CONFIG
    if error is not None:
        raise error
    asked = {cell.name for cell in (only(matrix, cells, only_words) if only_words else cells)}
    plan = plan_of(matrix, cells, sys.argv)
    if dry_run:
        _show_plan(matrix, plan, asked, retry_failed=retry_failed, as_json=as_json)
        return EXIT_OK
    lock = take(matrix.folder)
    try:
        plan = plan_of(matrix, cells, sys.argv)  # another sweep may have trained since the first look
        if not overwrite:
            check_unchanged(matrix, [step for step in plan.steps if step.cell.name in asked])
        return _run(matrix, plan, asked, retry_failed=retry_failed, as_json=as_json)
    finally:
        lock.release()


def _run(matrix: Matrix, plan: Plan, asked: set[str], *, retry_failed: bool, as_json: bool) -> int:
    set_up_logging(speaks=True)
    wanted = [step for step in plan.steps if step.cell.name in asked]
    todo = [step for step in wanted if step.runs(retry_failed=retry_failed)]
    record = plan.record
    write_sweep(matrix.folder, record)
    _say(f"{matrix.name}: {_counts(plan, asked)}; {len(todo)} to train now")
    with OneByOne() as children, Display(speaks=True).bar("runs", len(wanted)) as bar:
        for number, step in enumerate(todo, start=len(wanted) - len(todo)):
            if children.signal is not None:
                break
            if sys.stderr.isatty():  # elsewhere the lines below say it
                bar.update(number, step.cell.name)
            _say(f"[{number + 1}/{len(wanted)}] {step.cell.name}{_how(step)}")
            record = run_step(matrix.folder, record, step, children.run, stopped=lambda: children.signal is not None)
            cell = next(each for each in record.cells if each.name == step.cell.name)
            _say(f"[{number + 1}/{len(wanted)}] {_ended(cell)}{_score(matrix, cell)}")
        signal = children.signal
    report = make_sweep(matrix.folder, matrix.folder / REPORT_FOLDER)
    if as_json:
        print_json(as_dict(report), indent=1)
    else:
        print_result(terminal_sweep(report))
        _say_where(report)
    code = exit_code(record, sorted(asked), was_stopped=signal is not None)
    if signal is not None and code != EXIT_OK:
        raise Stopped(f"stopped by {signal}; the same command goes on with it")
    _name_failed(record, asked)
    return code


def _say(text: str) -> None:
    log.info("%s", plain(text))


def _how(step: Step) -> str:
    if step.changed:
        return ": deleted, and trained anew as the file says now"
    return ": goes on" if step.is_begun else ""


def _ended(cell: CellRecord) -> str:
    last = cell.attempts[-1]
    took = format_duration(_seconds(last["began"], last["ended"]))
    reason = (cell.reason or "").splitlines()
    return f"{cell.state} after {took}{f': {reason[0]}' if reason else ''}"


def _score(matrix: Matrix, cell: CellRecord) -> str:
    if cell.state != "finished":
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
        _say(f"{len(failed)} failed; what they said is in logs/; --retry-failed goes on from their checkpoints")


def _counts(plan: Plan, asked: set[str]) -> str:
    """Return how many runs there are in each state, in words."""
    states = ["changed" if step.changed else step.record.state for step in plan.steps if step.cell.name in asked]
    found = {state: states.count(state) for state in dict.fromkeys(states)}
    runs = f"{len(states)} runs" if len(states) != 1 else "1 run"
    return f"{runs} ({', '.join(f'{count} {state}' for state, count in found.items())})"


def _show_plan(matrix: Matrix, plan: Plan, asked: set[str], *, retry_failed: bool, as_json: bool) -> None:
    """Print what would be done."""
    steps = [step for step in plan.steps if step.cell.name in asked]
    if as_json:
        runs = [_step_dict(step, retry_failed) for step in steps]
        about = _about(matrix, [step.cell for step in plan.steps])
        print_json({**about, "problems": None, "runs": runs, "past": list(plan.record.past)}, indent=1)
        return
    from rich.table import Table
    from rich.text import Text

    print_result(Text(plain(f"{matrix.name}: {_counts(plan, asked)} in {matrix.folder}")))
    for axis in matrix.axes:
        kind = " (seeds)" if axis.axis.is_seed else ""
        print_result(Text(plain(f"  {axis.axis.label}{kind}: {', '.join(axis.axis.values.values())}")))
    for number, each in enumerate(matrix.exclude):
        left_out = ", ".join(f"{label}: {' or '.join(names)}" for label, names in each.items())
        print_result(Text(plain(f"  left out {number + 1}: {left_out}")))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("run", "processes", "state", "next"):
        table.add_column(name, overflow="fold", justify="right" if name == "processes" else "left")
    for step in steps:
        then = "trained" if step.runs(retry_failed=retry_failed) else "left as it is"
        state = "changed" if step.changed else step.record.state
        table.add_row(Text(step.cell.name), str(step.cell.num_processes), state, "refused" if step.changed else then)
    print_result(table)
    for step in steps:
        for change in step.changed:
            print_result(Text(plain(f"{step.cell.name}: {change}")))
    if any(step.changed for step in steps):
        print_result(Text("changed runs are refused; --overwrite deletes them and trains them again"))
    if plan.record.past:
        names = ", ".join(plan.record.past[:5]) + (", ..." if len(plan.record.past) > 5 else "")
        print_result(Text(plain(f"{len(plan.record.past)} runs are no longer in the matrix and stay: {names}")))


def _about(matrix: Matrix, cells: Sequence[Cell]) -> dict[str, Any]:
    return {
        "sweep": matrix.name,
        "folder": str(matrix.folder),
        "num_runs": len(cells),
        "axes": {axis.axis.label: list(axis.axis.values.values()) for axis in matrix.axes},
        "select_per": list(matrix.select_per),
    }


def _step_dict(step: Step, retry_failed: bool) -> dict[str, Any]:
    return {
        "name": step.cell.name,
        "values": dict(step.cell.values),
        "num_processes": step.cell.num_processes,
        "state": step.record.state,
        "reason": step.record.reason,
        "changed": list(step.changed),
        "to_train": step.runs(retry_failed=retry_failed),
    }


def _show_invalid(matrix: Matrix, cells: Sequence[Cell], error: str, *, as_json: bool) -> None:
    if as_json:
        runs = [
            {"name": cell.name, "values": dict(cell.values), "problems": [each.message for each in cell.problems]}
            for cell in cells
        ]
        print_json({**_about(matrix, cells), "problems": error, "runs": runs}, indent=1)
        return
    print_result(plain(f"{matrix.name}: {len(cells)} runs"))
    for cell in cells:
        print_result(plain(f"  {cell.name}: {'cannot be trained' if cell.problems else 'can be trained'}"))
    print(f"error: {error}", file=sys.stderr)  # noqa: T201
