"""The error with all problems of the cells of a matrix, and the cells that `--only` selects."""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from paratune.config.problems import Problem, failure
from paratune.errors import ConfigError, option_error
from paratune.sweeps.axes import find_values
from paratune.sweeps.cell import Cell
from paratune.sweeps.matrix import Matrix


def invalid(matrix: Matrix, cells: Sequence[Cell]) -> ConfigError | None:
    """Return the error that lists the problems of all cells, each once with the names of its cells, or None."""
    by_problem: dict[Problem, list[Cell]] = {}
    firsts = [cell for cell in cells if cell.record.repeat == 1]  # repeats have the same problems
    for cell in firsts:
        for problem in cell.problems:
            by_problem.setdefault(replace(problem, keys=()), []).append(cell)
    if not by_problem:
        return None
    listed = [
        replace(problem, message=f"{problem.message} (in {names_of(having, len(firsts))})")
        for problem, having in by_problem.items()
    ]
    error = failure(matrix.source, listed, matrix.source.name)
    counts = f"{sum(bool(cell.problems) for cell in cells)} of {len(cells)} runs cannot be trained"
    heading = f"{error.heading}; {counts}: correct them, or leave them out with exclude:; nothing was started"
    return ConfigError(heading, code=error.code, faults=error.faults)


def none_possible(matrix: Matrix, cells: Sequence[Cell]) -> ConfigError | None:
    """Return the error with the reasons why no cell can run; None when one can."""
    by_reason: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.impossible is None:
            return None
        by_reason.setdefault(cell.impossible, []).append(cell)
    lines = [f"  {reason} (in {names_of(same_reason, len(cells))})" for reason, same_reason in by_reason.items()]
    message = f"{matrix.source}: no run of this matrix is possible here"
    return ConfigError("\n".join([message, *lines]), code="sweep.none_possible")


def names_of(cells: Sequence[Cell], total: int) -> str:
    """Return the names of cells in words, at most three of them."""
    if len(cells) == total > 1:
        return f"all {total} runs"
    names = ", ".join(cell.name for cell in cells[:3])
    return f"{names} and {len(cells) - 3} more runs" if len(cells) > 3 else names


def only(matrix: Matrix, cells: Sequence[Cell], wanted: Sequence[str]) -> tuple[Cell, ...]:
    """Return the cells that `--only` selects: AXIS=VALUE[,VALUE...] or patterns of names, which are combined.

    Raises:
        ConfigError: There is no such axis, value or cell.
    """
    selected = tuple(cells)
    for word in wanted:
        key, equals, values = word.partition("=")
        if not equals:
            selected = tuple(cell for cell in selected if fnmatchcase(cell.name, word))
            continue
        found, problems = find_values(matrix.axes, {key: values.split(",")})
        for message, _ in problems:
            raise option_error("--only", word, message, code="sweep.unknown_run", key=key)
        ((label, names),) = found.items()
        selected = tuple(cell for cell in selected if cell.values[label] in names)
    if not selected:
        message = f"--only {' '.join(wanted)}: none of the {len(cells)} runs matches; --dry-run lists them"
        raise ConfigError(message, code="sweep.unknown_run", option="--only")
    return selected
