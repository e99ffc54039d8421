"""`paratune plan MATRIX`: predicts every cell of a matrix; a report can show the plan next to the measurements."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paratune.api.plan import make_plan
from paratune.api.plan_options import PlanOptions
from paratune.api.sweep_slots import time_key
from paratune.base.units import NOT_AVAILABLE, format_bytes, format_duration
from paratune.console import Display, print_json, print_screen, set_up_logging, stdout_for_results, text_table
from paratune.errors import EXIT_FAILED, EXIT_OK, ConfigError, DataError
from paratune.reports.published import PLAN_GENERATOR, PLAN_SCHEMA_VERSION
from paratune.sweeps.cell import Cell, first_training, invalid, none_possible
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix

_OF_AXES = ("devices", "strategies", "precision")
"""Options that have no effect on a matrix: its axes set their values."""


def plan_matrix(
    path: Path,
    overrides: Sequence[str],
    options: PlanOptions,
    measured: Sequence[Path],
    *,
    run_code: bool,
    all_: bool,
    as_json: bool,
) -> int:
    """Print the plans, without `all_` one of equal ones; return the exit code, 1 if no cell can be planned.

    Raises:
        ParatuneError: The matrix, a cell, an option, a model or the data is invalid.
    """
    for name in _OF_AXES:
        if getattr(options, name) is not None:
            message = f"--{name} has no effect on a matrix, whose axes set the options; leave it out"
            raise ConfigError(message, code="cli.no_effect", option=f"--{name}", path=path)
    if options.device is not None and "," in options.device:
        message = f"--device {options.device} names several, and a matrix is planned for one; make a plan for each"
        raise ConfigError(message, code="cli.invalid_value", option="--device", path=path)
    matrix = read_matrix(path)
    cells = cells_of(matrix, overrides, here=False, need_files=options.max_length is None)
    if (error := invalid(matrix, cells) or none_possible(matrix, cells)) is not None:
        raise error
    set_up_logging(speaks=True)
    planned: dict[str, dict[str, Any]] = {}
    plans_by_key: dict[str, dict[str, Any]] = {}
    with stdout_for_results(), Display(speaks=True).bar("plan", len(cells)) as bar:
        for number, cell in enumerate(cells):
            bar.update(number, cell.name)
            # Runs that differ in seed or learning rate are planned once.
            if (key := time_key(cell)) not in plans_by_key:
                plans_by_key[key] = _plan_of(cell, options, measured, run_code=run_code)
            planned[cell.name] = plans_by_key[key]
    if as_json:
        about = {"generator": PLAN_GENERATOR, "schema_version": PLAN_SCHEMA_VERSION, "matrix": matrix.name}
        print_json({**about, "cells": planned})
    else:
        seconds = [plan["run_s"][0] for plan in planned.values() if plan.get("run_s")]
        total = f"; {format_duration(sum(seconds))} one after the other" * (len(seconds) == len(planned))
        fits = [plan.get("fits") for plan in planned.values()]
        unknown = f", {fits.count(None)} {NOT_AVAILABLE}" * (None in fits)
        title = f"{matrix.name}: {fits.count(True)} of {len(fits)} runs fit{unknown}{total}"
        kinds: dict[object, list[str]] = {}
        for name, plan in planned.items():
            kinds.setdefault(name if all_ else id(plan), []).append(name)
        headings = ("run", "devices", "micro-batch", "memory", "fits", "step", "whole run")
        rows: list[tuple[Any, ...]] = []
        reasons = []
        for first, *others in kinds.values():
            plan, name = planned[first], first + f" and {len(others)} like it" * bool(others)
            if "memory" not in plan:
                reasons += [f"{name}: {plan['reason']}"] if "reason" in plan else []
                rows.append((name, *[NOT_AVAILABLE] * 6))
                continue
            spans = [plan[key][0] if plan[key] else None for key in ("step_s", "run_s")]
            sizes = (plan["num_ranks"], plan["micro_batch_size"], format_bytes(plan["memory"]["total_bytes"]))
            fit = {True: "yes", False: "no"}.get(plan["fits"], NOT_AVAILABLE)
            rows.append((name, *sizes, fit, *map(format_duration, spans)))
        print_screen(title, text_table(headings, rows, right=headings[1:]), *reasons, all_=all_)
    return EXIT_OK if any("memory" in plan for plan in planned.values()) else EXIT_FAILED


def _plan_of(cell: Cell, shared: PlanOptions, measured: Sequence[Path], *, run_code: bool) -> dict[str, Any]:
    assert cell.loaded is not None
    if cell.impossible is not None:
        return {"reason": cell.impossible}
    baseline = cell.loaded.config.baseline
    if baseline is not None:
        return {"reason": f"baseline: {baseline.kind} has no steps to plan"}
    first = first_training(cell.loaded.config, cell.record.needs)
    if first is not None and not Path(cell.loaded.config.model.name).is_dir():
        return {"reason": f"its model is that of {first}, which is trained first"}
    num_nodes = cell.record.num_nodes
    own = replace(
        shared,
        devices=str(cell.record.num_processes),
        nodes=shared.nodes if num_nodes is None else str(num_nodes),
        strategies=str(cell.loaded.config.strategy.kind),
        precision=cell.loaded.config.precision,
    )
    try:
        plan = make_plan(cell.loaded, own, measured, run_code=run_code, with_remedies=False)
    except (ConfigError, DataError) as error:  # a missing model or missing data; other runs can be planned
        return {"reason": str(error)}
    if not plan.predictions:
        return {"reason": "; ".join(option.reason for option in plan.impossible)}
    (prediction,) = plan.predictions
    return prediction.as_dict()
