"""What `paratune sweep --dry-run` and `--list` print: the runs of a matrix, how far each is, and how to start it."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.base.units import counted
from paratune.console import print_json, print_result
from paratune.errors import ConfigError
from paratune.sweep.asked import names_of
from paratune.sweep.cell import Cell
from paratune.sweep.listing import listed
from paratune.sweep.matrix import Matrix
from paratune.sweep.plan import IN_USE, Step, SweepPlan


def counts(plan: SweepPlan, asked: set[str]) -> str:
    """Return how many runs there are in each state, in words."""
    states = [_state(step) for step in plan.steps if step.cell.name in asked]
    found = {state: states.count(state) for state in dict.fromkeys(states)}
    runs = counted(len(states), "run")
    return f"{runs} ({', '.join(f'{count} {state}' for state, count in found.items())})"


def _state(step: Step) -> str:
    """Return what a run is at; the record of one that another process trains says that it was cut off until it ends."""
    return "changed" if step.changed else "running" if step.record.reason == IN_USE else step.record.state


def show_plan(matrix: Matrix, plan: SweepPlan, asked: set[str], *, retry_failed: bool, as_json: bool) -> None:
    """Print what would be done."""
    steps = [step for step in plan.in_order() if step.cell.name in asked]
    if as_json:
        runs = [_step_dict(step, retry_failed) for step in steps]
        about = _about(matrix, [step.cell for step in plan.steps])
        print_json({**about, "problems": None, "runs": runs, "past": list(plan.record.past)}, indent=1)
        return
    from rich.table import Table
    from rich.text import Text

    print_result(Text(plain(f"{matrix.name}: {counts(plan, asked)} in {matrix.folder}")))
    for axis in matrix.axes:
        kind = " (seeds)" if axis.axis.is_seed else ""
        print_result(Text(plain(f"  {axis.axis.label}{kind}: {', '.join(axis.axis.values.values())}")))
    for line in _settings(matrix):
        print_result(Text(plain(f"  {line}")))
    for each in matrix.exclude:
        left_out = ", ".join(f"{label}: {' or '.join(names)}" for label, names in each.items())
        print_result(Text(plain(f"  left out: {left_out}")))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("run", "processes", "state", "next"):
        table.add_column(name, overflow="fold", justify="right" if name == "processes" else "left")
    for step in steps:
        if step.record.state == "skipped":
            continue
        then = "trained" if step.runs(retry_failed=retry_failed) else "left as it is"
        then = "probed" if then == "trained" and step.cell.kind == "probe" else then
        then = "refused" if step.changed else "waited for" if step.record.reason == IN_USE else then
        table.add_row(Text(step.cell.name), str(step.cell.num_processes), _state(step), then)
    print_result(table)
    skipped: dict[str, list[Cell]] = {}
    for step in steps:
        if step.record.state == "skipped":
            skipped.setdefault(step.record.reason or "", []).append(step.cell)
    for reason, cells in skipped.items():
        print_result(Text(plain(f"skipped: {reason} (in {names_of(cells, len(steps))})")))
    for step in steps:
        for change in step.changed:
            print_result(Text(plain(f"{step.cell.name}: {change}")))
    if any(step.changed for step in steps):
        print_result(Text("changed runs are refused; --overwrite deletes them and trains them again"))
    if plan.record.past:
        names = ", ".join(plan.record.past[:5]) + (", ..." if len(plan.record.past) > 5 else "")
        are = "is" if len(plan.record.past) == 1 else "are"
        print_result(
            Text(plain(f"{counted(len(plan.record.past), 'run')} {are} no longer in the matrix and stay: {names}"))
        )


def _settings(matrix: Matrix) -> Iterator[str]:
    """Yield what the matrix says of all runs beside their options."""
    if matrix.environment:
        given = (
            f"{name}={value}" if value is not None else f"{name} unset" for name, value in matrix.environment.items()
        )
        yield f"env: {', '.join(given)}"
    if matrix.repeats > 1:
        yield f"repeats: {matrix.repeats}, each run once before any is made again"
    yield f"order: {matrix.order}"


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
        "kind": step.cell.kind,
        "repeat": step.cell.repeat,
        "environment": dict(step.cell.environment),
        "state": step.record.state,
        "reason": step.record.reason,
        "changed": list(step.changed),
        "to_train": step.runs(retry_failed=retry_failed),
    }


def show_list(matrix: Matrix, todo: Sequence[Step], *, as_json: bool) -> None:
    """Print what is to be trained as independent commands, one a line."""
    runs = [listed(matrix.folder, step) for step in todo]
    if as_json:
        print_json(
            {"sweep": matrix.name, "folder": str(matrix.folder), "directory": str(Path.cwd()), "runs": runs}, indent=1
        )
        return
    for run in runs:
        print(run["line"])  # noqa: T201
    if not runs:
        print(plain(f"{matrix.name}: nothing is left to train"), file=sys.stderr)  # noqa: T201


def show_invalid(matrix: Matrix, cells: Sequence[Cell], error: ConfigError, *, as_json: bool) -> None:
    if as_json:
        runs = [
            {
                "name": cell.name,
                "values": dict(cell.values),
                "problems": [each.message for each in cell.problems]
                + [cell.impossible] * (cell.impossible is not None),
            }
            for cell in cells
        ]
        errors = [fault.as_dict() for fault in error.faults]
        print_json({**_about(matrix, cells), "problems": str(error), "errors": errors, "runs": runs}, indent=1)
        return
    print_result(plain(f"{matrix.name}: {counted(len(cells), 'run')}"))
    for cell in cells:
        print_result(
            plain(f"  {cell.name}: {'cannot be trained' if cell.problems or cell.impossible else 'can be trained'}")
        )
    print(f"error: {error.text()}", file=sys.stderr)  # noqa: T201
