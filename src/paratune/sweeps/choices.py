"""Checks that candidates can be compared: their validation scores must have the same meaning."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from paratune.config.check_own_code import metrics_of
from paratune.config.plain import one_line
from paratune.config.problems import Problem
from paratune.config.sections import Config
from paratune.errors import did_you_mean
from paratune.sweeps.cell import Cell
from paratune.sweeps.matrix import Matrix

_ANSWERS_ALIKE = {"start_at_mean", "threshold", "stride", "max_answer_tokens", "num_best", "null_threshold"}
"""Options of a task that leave rows and scores comparable: how a model is initialized or answers."""


def check_choices(matrix: Matrix, cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the cells; those that cannot be compared with other candidates have a problem."""
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        # Those that will have scores, as far as is known.
        if cell.loaded is not None and cell.record.kind == "full" and cell.impossible is None:
            groups.setdefault(tuple(cell.values[label] for label in matrix.select_per), []).append(cell)
    problems: dict[str, list[Problem]] = {}
    for group in groups.values():
        of_all = list(_of_a_group(matrix, group))
        problems |= {cell.name: [*of_all, *_of_the_metric(matrix, cell)] for cell in group}
    for cell in cells:
        wrong = problems.get(cell.name, [])
        yield replace(cell, loaded=None, problems=tuple(wrong)) if wrong else cell


def _of_the_metric(matrix: Matrix, cell: Cell) -> Iterator[Problem]:
    metric, known = matrix.options.select_by, metrics_of(cell.config)
    if metric is not None and metric not in known:
        near = f"{did_you_mean(metric, known)}; allowed: {', '.join(known)}"
        yield Problem(f"select_by: {metric} is not a metric of {cell.config.task.kind}{near}", code="metric.unknown")


def _of_a_group(matrix: Matrix, group: Sequence[Cell]) -> Iterator[Problem]:
    """Yield why runs of which one is selected cannot be compared."""
    seeds = sorted(axis.label for axis in matrix.axes if axis.is_seed)
    if len({tuple(name for label, name in cell.values.items() if label not in seeds) for cell in group}) < 2:
        return
    remedy = "name the axis that differs in select_per"
    kinds = sorted({cell.config.task.kind for cell in group})
    if len(kinds) > 1:
        message = f"the best of runs of different tasks is asked for ({', '.join(kinds)}); {remedy}"
        yield Problem(message, code="sweep.select")
        return
    metrics = sorted({cell.metric for cell in group})
    if matrix.options.select_by is None and len(metrics) > 1:
        listed = ", ".join(metrics)
        message = f"evaluate.best differs between runs of which one is to be selected ({listed}); set select_by"
        yield Problem(message, code="sweep.select")
    rows = [_validation_rows(cell.config) for cell in group]
    if None in rows:
        message = "one of several runs is to be chosen, and that needs a validation set"
        remedy = "give data.validation or data.split.validation"
        yield Problem(f"{message}; {remedy}", code="data.validation_missing")
        return
    of_seeds = {tuple(cell.values[label] for label in seeds) for cell in group}
    with_rows = {
        (*(cell.values[label] for label in seeds), one_line(row)) for cell, row in zip(group, rows, strict=True)
    }
    if len(with_rows) > len(of_seeds):
        message = f"runs with different validation sets, or tasks with other scores, cannot be compared; {remedy}"
        yield Problem(message, code="sweep.select")


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
