"""Prints the runs of a matrix for `paratune sweep --dry-run` and `--list`: states, actions, commands."""

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.text import plain
from paratune.base.units import counted
from paratune.console import print_json, print_result, print_table
from paratune.sweeps.cell import IN_USE, Cell, names_of
from paratune.sweeps.matrix import Matrix
from paratune.sweeps.plan import SweepPlan
from paratune.sweeps.run import listed


def show_plan(matrix: Matrix, plan: SweepPlan, names: Collection[str], *, retry_failed: bool, as_json: bool) -> None:
    """Print the runs and their actions, and the skipped runs with reasons."""
    cells = [cell for cell in plan.in_order() if cell.name in names]
    if as_json:
        print_json(_plan_dict(matrix, plan, cells, retry_failed=retry_failed), indent=1)
        return
    from rich.text import Text

    lines = list(_lines_above(matrix, plan, names))
    rows = [
        (cell.name, cell.record.num_processes, cell.shown_state, _action(cell, retry_failed=retry_failed))
        for cell in cells
        if cell.record.state != "skipped"
    ]
    for line in lines:
        print_result(Text(plain(line)))
    if rows:
        print_table(("run", "processes", "state", "action"), rows, right=("processes",))
    for line in _lines_below(plan, cells):
        print_result(Text(plain(line)))


def _action(cell: Cell, *, retry_failed: bool) -> str:
    if cell.changed:
        return "refuse"
    if cell.record.reason == IN_USE:
        return "wait"
    if cell.runs(retry_failed=retry_failed):
        return "probe" if cell.record.kind == "probe" else "train"
    return "none"


def _lines_above(matrix: Matrix, plan: SweepPlan, names: Collection[str]) -> Iterator[str]:
    """Yield the counts and the axes."""
    yield f"{matrix.name}: {plan.counts(names)} in {matrix.folder}"
    for axis in matrix.axes:
        kind = " (seeds)" if axis.is_seed else ""
        yield f"  {axis.label}{kind}: {', '.join(axis.values.values())}"


def _lines_below(plan: SweepPlan, cells: Sequence[Cell]) -> Iterator[str]:
    """Yield the skipped runs, the changed settings, and the runs that are no longer in the matrix."""
    skipped = grouped((cell.record.reason, cell) for cell in cells if cell.record.state == "skipped")
    for reason, alike in skipped.items():
        yield f"skipped: {reason} (in {names_of(alike, len(cells))})"
    for cell in cells:
        for change in cell.changed:
            yield f"{cell.name}: {change}"
    if any(cell.changed for cell in cells):
        yield "a run with changed settings is an error; --overwrite deletes it and trains it again"
    if plan.record.past:
        past = ", ".join(plan.record.past[:5]) + (", ..." if len(plan.record.past) > 5 else "")
        are = "is" if len(plan.record.past) == 1 else "are"
        yield f"{counted(len(plan.record.past), 'run')} {are} no longer in the matrix and are kept: {past}"


def _plan_dict(matrix: Matrix, plan: SweepPlan, cells: Sequence[Cell], *, retry_failed: bool) -> dict[str, Any]:
    return {
        "sweep": matrix.name,
        "folder": str(matrix.folder),
        "num_runs": len(plan.cells),
        "axes": {axis.label: list(axis.values.values()) for axis in matrix.axes},
        "select_per": list(matrix.select_per),
        **({} if plan.record.search is None else {"search": asdict(plan.record.search)}),
        "runs": [
            {
                "name": cell.name,
                "values": dict(cell.values),
                "num_processes": cell.record.num_processes,
                "kind": cell.record.kind,
                "repeat": cell.record.repeat,
                "environment": dict(cell.record.environment),
                "state": cell.record.state,
                "reason": cell.record.reason,
                "changed": list(cell.changed),
                "to_train": cell.runs(retry_failed=retry_failed),
            }
            for cell in cells
        ],
        "past": list(plan.record.past),
    }


def show_list(matrix: Matrix, todo: Sequence[Cell], *, run_code: bool, as_json: bool) -> None:
    """Print the commands of the runs to train, one a line."""
    runs = [listed(matrix.folder, cell, run_code=run_code) for cell in todo]
    if as_json:
        about = {"sweep": matrix.name, "folder": str(matrix.folder), "directory": str(Path.cwd())}
        print_json({**about, "runs": runs}, indent=1)
        return
    for run in runs:
        print(run["line"])  # noqa: T201
    if not runs:
        print(plain(f"{matrix.name}: nothing is left to train"), file=sys.stderr)  # noqa: T201
