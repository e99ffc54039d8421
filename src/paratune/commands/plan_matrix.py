"""`paratune plan MATRIX`: every cell of a matrix as it would run, for a report to show beside what is measured."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE, format_bytes, format_duration
from paratune.config.differences import flatten
from paratune.console import Display, print_json, print_result, set_up_logging, stdout_for_results
from paratune.errors import EXIT_FAILED, EXIT_OK, ConfigError, DataError
from paratune.report.sweep.planned import GENERATOR, SCHEMA_VERSION
from paratune.sweep.asked import invalid
from paratune.sweep.cell import Cell
from paratune.sweep.cells import cells_of
from paratune.sweep.matrix import read_matrix

if TYPE_CHECKING:
    from paratune.commands.plan import PlanArguments

_NOT_OF_A_MATRIX = (
    ("--devices", "devices"),
    ("--strategies", "strategies"),
    ("--precision", "precision"),
    ("--micro-batch-size", "micro_batch_size"),
    ("--goal", "goal"),
    ("--measured", "measured"),
    ("--write-probes", "write_probes"),
    ("--calibrate", "calibrate"),
)
"""Options that vary what the axes of a matrix say, or choose among ways."""

_NOT_PLANNED = ("run.", "train.learning_rate", "train.schedule", "train.warmup", "train.weight_decay")
"""Settings that change neither memory nor time."""


def plan_matrix(
    path: Path, overrides: Sequence[str], wanted: "PlanArguments", *, write: Path | None, as_json: bool
) -> int:
    """Print what is planned of each cell; return the exit code, 1 where no cell can be planned.

    Raises:
        ParatuneError: The matrix, a cell, an option, a model or the data is wrong.
    """
    from paratune.plan.written import check_writable
    from paratune.records import write_json

    given = [option for option, name in _NOT_OF_A_MATRIX if getattr(wanted, name)]
    if given:
        raise ConfigError(
            f"{given[0]} has no effect on a matrix, whose axes list what varies; leave it out",
            code="cli.no_effect",
            option=given[0],
            path=path,
        )
    if write is not None:
        check_writable(write, is_data=True)
    matrix = read_matrix(path)
    cells = cells_of(matrix, overrides, here=False, need_files=wanted.max_length is None)
    if (error := invalid(matrix, cells)) is not None:
        raise error
    set_up_logging(speaks=True)
    with stdout_for_results():
        planned = _planned(cells, wanted)
    found: dict[str, Any] = {
        "generator": GENERATOR,
        "schema_version": SCHEMA_VERSION,
        "matrix": matrix.name,
        "cells": planned,
    }
    if write is not None:
        write_json(write, found)
    if as_json:
        print_json(found)
    else:
        _show(matrix.name, planned)
        if write is not None:
            print_result(plain(f"written to {write}: paratune report {matrix.folder} --plan {write}"))
    return EXIT_OK if any("memory" in each for each in planned.values()) else EXIT_FAILED


def _planned(cells: Sequence[Cell], wanted: "PlanArguments") -> dict[str, dict[str, Any]]:
    """Return what is planned of each cell by its name; a reason where nothing can be."""
    from paratune.commands.plan import make_plan

    found: dict[str, dict[str, Any]] = {}
    done: dict[str, dict[str, Any]] = {}
    with Display(speaks=True).bar("plan", len(cells)) as bar:
        for number, cell in enumerate(cells):
            bar.update(number, cell.name)
            same = _plan_key(cell)
            if same not in done:
                done[same] = _plan_of(cell, wanted, make_plan)
            found[cell.name] = done[same]
    return found


def _plan_of(cell: Cell, wanted: "PlanArguments", make_plan: Any) -> dict[str, Any]:
    assert cell.loaded is not None
    if cell.impossible is not None:
        return {"reason": cell.impossible}
    baseline = cell.loaded.config.baseline
    if baseline is not None:
        return {"reason": f"baseline: {baseline.kind} has no steps to plan"}
    own = replace(
        wanted,
        devices=str(cell.num_processes),
        nodes=cell.num_nodes or wanted.nodes,
        strategies=str(cell.loaded.config.strategy.kind),
    )
    try:
        plan = make_plan(cell.loaded, own)
    except (ConfigError, DataError) as error:  # a model or data that is not here; other runs can be planned
        return {"reason": str(error)}
    if not plan.predictions:
        return {"reason": "; ".join(each.reason for each in plan.impossible)}
    (prediction,) = plan.predictions
    return dict(prediction.as_dict())


def _plan_key(cell: Cell) -> str:
    """Return what a plan depends on: repetitions with other seeds or learning rates are planned once."""
    assert cell.loaded is not None
    values = {key: value for key, value in flatten(cell.loaded.values).items() if not key.startswith(_NOT_PLANNED)}
    return repr((cell.num_processes, cell.num_nodes, sorted(values.items(), key=lambda item: item[0])))


def _show(name: str, planned: Mapping[str, Mapping[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    print_result(Text(plain(f"{name}: the plan of each run")))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, label in enumerate(("run", "devices", "micro-batch", "memory", "fits", "step", "whole run")):
        table.add_column(label, overflow="fold", justify="left" if number == 0 else "right")
    for cell, found in planned.items():
        if "memory" not in found:
            table.add_row(Text(cell), *[NOT_AVAILABLE] * 6)
            continue
        spans = [found[key][0] if found[key] else None for key in ("step_s", "run_s")]
        fits = {True: "yes", False: "no"}.get(found["fits"], NOT_AVAILABLE)
        sizes = (str(found["num_ranks"]), str(found["micro_batch_size"]))
        table.add_row(
            Text(cell), *sizes, format_bytes(found["memory"]["total_bytes"]), fits, *map(format_duration, spans)
        )
    print_result(table)
    for cell, found in planned.items():
        if "reason" in found:
            print_result(Text(plain(f"{cell}: {found['reason']}")))
