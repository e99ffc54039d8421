"""Prints the runs of a matrix for `paratune sweep --dry-run` and `--list`: states, problems, commands."""

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.base.units import counted
from paratune.console import print_json, print_result, print_table
from paratune.errors import ConfigError
from paratune.sweeps.asked import names_of
from paratune.sweeps.cell import IN_USE, Cell
from paratune.sweeps.matrix import Matrix
from paratune.sweeps.plan import SweepPlan
from paratune.sweeps.run import listed
from paratune.sweeps.search import halving_needs
from paratune.sweeps.teachers import waits_for


def show_plan(
    matrix: Matrix,
    plan: SweepPlan,
    names: Collection[str],
    error: ConfigError | None = None,
    *,
    retry_failed: bool,
    as_json: bool,
) -> None:
    """Print the runs and their actions, the skipped runs with reasons, and the error when all runs are skipped."""
    cells = [cell for cell in plan.in_order() if cell.name in names]
    later = _later(matrix, plan, cells, retry_failed=retry_failed)
    if as_json:
        runs = [_cell_dict(cell, retry_failed) | {"if_kept": cell.name in later} for cell in cells]
        about = _about(matrix, plan.cells)
        problems = {"problems": None} if error is None else _problems(error)
        print_json({**about, **problems, "runs": runs, "past": list(plan.record.past)}, indent=1)
        return
    from rich.text import Text

    print_result(Text(plain(f"{matrix.name}: {plan.counts(names)} in {matrix.folder}")))
    for axis in matrix.axes:
        kind = " (seeds)" if axis.is_seed else ""
        print_result(Text(plain(f"  {axis.label}{kind}: {', '.join(axis.values.values())}")))
    for line in _settings(matrix):
        print_result(Text(plain(f"  {line}")))
    for values_by_label in matrix.exclude:
        excluded = ", ".join(f"{label}: {' or '.join(values)}" for label, values in values_by_label.items())
        print_result(Text(plain(f"  excluded: {excluded}")))
    rows = []
    for cell in cells:
        if cell.record.state == "skipped":
            continue
        action = "none"
        if cell.changed:
            action = "refuse"
        elif cell.record.reason == IN_USE:
            action = "wait"
        elif cell.runs(retry_failed=retry_failed):
            action = "probe" if cell.record.kind == "probe" else "train"
            action += " if its trial is kept" if cell.name in later else ""
        rows.append((cell.name, cell.record.num_processes, cell.shown_state, action))
    if rows:
        print_table(("run", "processes", "state", "action"), rows, right=("processes",))
    skipped: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.record.state == "skipped":
            skipped.setdefault(cell.record.reason or "", []).append(cell)
    for reason, alike in skipped.items():
        print_result(Text(plain(f"skipped: {reason} (in {names_of(alike, len(cells))})")))
    for cell in cells:
        for change in cell.changed:
            print_result(Text(plain(f"{cell.name}: {change}")))
    if any(cell.changed for cell in cells):
        print_result(Text("a run with changed settings is an error; --overwrite deletes it and trains it again"))
    if plan.record.past:
        past = ", ".join(plan.record.past[:5]) + (", ..." if len(plan.record.past) > 5 else "")
        are = "is" if len(plan.record.past) == 1 else "are"
        print_result(
            Text(plain(f"{counted(len(plan.record.past), 'run')} {are} no longer in the matrix and are kept: {past}"))
        )
    if error is not None:  # its reasons are those of the skipped runs above
        print(f"error: {error.text().splitlines()[0]}", file=sys.stderr)  # noqa: T201


def _later(matrix: Matrix, plan: SweepPlan, cells: Sequence[Cell], *, retry_failed: bool) -> set[str]:
    """Return the runs of later rounds of successive halving, which follow for the best trials only."""
    todo = {cell.name for cell in cells if cell.runs(retry_failed=retry_failed)}
    if matrix.search is None or matrix.search.method != "halving":
        return set()
    return todo - halving_needs(matrix.folder, plan.record, matrix.search, todo)[0]


def _settings(matrix: Matrix) -> Iterator[str]:
    """Yield the settings of the matrix for all runs that are not options of a run."""
    if matrix.environment:
        variables = (
            f"{name}={value}" if value is not None else f"{name} unset" for name, value in matrix.environment.items()
        )
        yield f"env: {', '.join(variables)}"
    if matrix.search is not None:
        yield matrix.search.record(matrix.trials).text()
    if matrix.options.repeats > 1:
        yield f"repeats: {matrix.options.repeats}, every run once, then every run again"
    yield f"order: {matrix.options.order}"


def _about(matrix: Matrix, cells: Sequence[Cell]) -> dict[str, Any]:
    return {
        "sweep": matrix.name,
        "folder": str(matrix.folder),
        "num_runs": len(cells),
        "axes": {axis.label: list(axis.values.values()) for axis in matrix.axes},
        "select_per": list(matrix.select_per),
        **({} if matrix.search is None else {"search": asdict(matrix.search.record(matrix.trials))}),
    }


def _cell_dict(cell: Cell, retry_failed: bool) -> dict[str, Any]:
    return {
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


def show_list(matrix: Matrix, todo: Sequence[Cell], *, run_code: bool, as_json: bool) -> None:
    """Print the commands of the runs to train, one a line."""
    runs = [listed(matrix.folder, cell, run_code=run_code) for cell in todo]
    if as_json:
        print_json(
            {"sweep": matrix.name, "folder": str(matrix.folder), "directory": str(Path.cwd()), "runs": runs}, indent=1
        )
        return
    for run in runs:
        print(run["line"])  # noqa: T201
    if not runs:
        print(plain(f"{matrix.name}: nothing is left to train"), file=sys.stderr)  # noqa: T201


def show_waiting(plan: SweepPlan, names: Collection[str], *, retry_failed: bool) -> None:
    """Print on stderr how many runs are not listed because a teacher is not finished."""
    cells = [cell for cell in plan.cells if cell.name in names and cell.runs(retry_failed=retry_failed)]
    num_waiting = sum(waits_for(plan.record, cell.record) is not None for cell in cells)
    if num_waiting:
        runs = counted(num_waiting, "run")
        print(f"{runs} not listed: a teacher is not finished; repeat the command when it is", file=sys.stderr)  # noqa: T201


def _problems(error: ConfigError) -> dict[str, Any]:
    return {"problems": str(error), "errors": [fault.as_dict() for fault in error.faults]}


def show_invalid(matrix: Matrix, cells: Sequence[Cell], error: ConfigError, *, as_json: bool) -> None:
    if as_json:
        runs = [
            {
                "name": cell.name,
                "values": dict(cell.values),
                "problems": [problem.message for problem in cell.problems]
                + [cell.impossible] * (cell.impossible is not None),
            }
            for cell in cells
        ]
        print_json({**_about(matrix, cells), **_problems(error), "runs": runs}, indent=1)
        return
    print_result(plain(f"{matrix.name}: {counted(len(cells), 'run')}"))
    for cell in cells:
        print_result(
            plain(f"  {cell.name}: {'cannot be trained' if cell.problems or cell.impossible else 'can be trained'}")
        )
    print(f"error: {error.text()}", file=sys.stderr)  # noqa: T201
