"""Checks that candidates can be compared: their validation scores must have the same meaning."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from paratune.base.grouping import grouped
from paratune.config.plain import one_line
from paratune.config.problems import Problem
from paratune.config.sections import Config
from paratune.sweeps.cell import Cell
from paratune.sweeps.matrix import Matrix

_ANSWERS_ALIKE = {"start_at_mean", "threshold", "stride", "max_answer_tokens", "num_best", "null_threshold"}
"""Options of a task that leave rows and scores comparable: how a model is initialized or answers."""


def check_choices(matrix: Matrix, cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the cells; those that cannot be compared with other candidates have a problem."""
    # Those that will have scores, as far as is known.
    scored = (
        cell for cell in cells if cell.loaded is not None and cell.record.kind == "full" and cell.impossible is None
    )
    groups = grouped((tuple(cell.values[label] for label in matrix.select_per), cell) for cell in scored)
    problems: dict[str, Problem] = {}
    for group in groups.values():
        if (problem := _problem_of(matrix, group)) is not None:
            problems |= {cell.name: problem for cell in group}
    for cell in cells:
        problem = problems.get(cell.name)
        yield cell if problem is None else replace(cell, loaded=None, problems=(problem,))


def _problem_of(matrix: Matrix, group: Sequence[Cell]) -> Problem | None:
    """Return why runs of which one is selected cannot be compared; None where they can."""
    seeds = sorted(axis.label for axis in matrix.axes if axis.is_seed)
    if len({tuple(name for label, name in cell.values.items() if label not in seeds) for cell in group}) < 2:
        return None
    kinds = sorted({cell.config.task.kind for cell in group})
    metrics = sorted({cell.metric for cell in group})
    rows = [_validation_rows(cell.config) for cell in group]
    seeds_of = [tuple(cell.values[label] for label in seeds) for cell in group]
    if len(kinds) > 1:
        problem = f"the best of runs of different tasks is asked for ({', '.join(kinds)})"
    elif len(metrics) > 1:
        problem = f"evaluate.best differs between runs of which one is to be selected ({', '.join(metrics)})"
    elif None in rows:
        message = "one of several runs is to be chosen, and that needs a validation set"
        remedy = "give data.validation or data.split.validation"
        return Problem(f"{message}; {remedy}", code="data.validation_missing")
    elif len({*zip(seeds_of, map(one_line, rows), strict=True)}) > len({*seeds_of}):
        problem = "runs with different validation sets, or tasks with other scores, cannot be compared"
    else:
        return None
    return Problem(f"{problem}; name the axis that differs in select_per", code="sweep.select")


def _validation_rows(config: Config) -> list[Any] | None:
    """Return the settings that decide the validation rows and their labels; None without a validation set."""
    data, task = config.data, config.task
    is_cut = data.split is not None and data.split.validation_share is not None
    if data.validation is None and not is_cut:
        return None
    return [
        task.model_dump(exclude=_ANSWERS_ALIKE),
        data.model_dump(include={"validation", "columns", "missing", "hub_revision"}),
        data.max_rows.validation,
        data.model_dump(include={"train", "split"}) if is_cut else None,
        data.max_length if task.kind == "mlm" else None,  # the length of the windows then
    ]
