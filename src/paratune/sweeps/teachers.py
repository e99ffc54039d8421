"""Teachers of a distillation that are runs of the same matrix: `distil.teacher: {size: large}` in a matrix file.

The mapping names values of axes; on all other axes, seeds included, a teacher has the values of its student. Several
values of an axis are an ensemble: `{size: large, seed: [1, 2, 3]}`.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paratune.config.layers import Layer, layer_of, merge
from paratune.config.optional_sections import Distil, teacher_names
from paratune.config.problems import Problem, SourceLocation
from paratune.records.sweep import CellRecord, SweepRecord, cell_run_folder
from paratune.sweeps.axes import find_values
from paratune.sweeps.cell import Cell
from paratune.sweeps.matrix import Matrix

TEACHER = "distil.teacher"


def resolve_teachers(
    matrix: Matrix, values: Mapping[str, str], layer: Layer, name_of: Callable[[Mapping[str, str]], str]
) -> tuple[Layer, tuple[str, ...], tuple[Problem, ...]]:
    """Return the settings of the student of these values with folders of teachers, names of their runs, problems."""
    distil = layer.values.get("distil")
    wanted = distil.get("teacher") if isinstance(distil, dict) else None
    if not isinstance(wanted, dict):
        return layer, (), ()
    place = next((at for key, at in layer.places.items() if key == TEACHER or key.startswith(f"{TEACHER}.")), None)
    chosen, problems = find_values(matrix.axes, wanted)
    messages = [problem.message for problem in problems]
    if not wanted:
        messages = ["it is an empty mapping; name a value of an axis, such as {size: large}, or a run"]
    if messages:
        return layer, (), tuple(_problem(message, place) for message in messages)
    combinations = itertools.product(*chosen.values())
    names = [name_of({**values, **dict(zip(chosen, names, strict=True))}) for names in combinations]
    folders = [str(cell_run_folder(matrix.folder, name)) for name in names]
    value: Any = folders[0] if len(folders) == 1 else folders
    places = {TEACHER: place or SourceLocation(matrix.source.name)}
    return merge(layer, layer_of(TEACHER, value, places)), tuple(names), ()


def _problem(message: str, place: SourceLocation | None = None) -> Problem:
    return Problem(f"{TEACHER}: {message}", (TEACHER,), place, code="sweep.teacher")


def missing_teachers(matrix: Matrix, distil: Distil | None, place: SourceLocation | None) -> Iterator[Problem]:
    """Yield a problem for each teacher without a folder, except runs of the matrix, which are trained first."""
    for name in () if distil is None else teacher_names(distil):
        path = Path(name).expanduser()
        if not path.is_dir() and not path.resolve().is_relative_to(matrix.folder.resolve()):
            message = f"{TEACHER}: {name} is not a folder; name the folder of a finished run, or a model folder"
            yield Problem(message, (TEACHER,), place, code="distil.no_teacher")


def check_teachers(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the cells; those whose teacher is missing, themselves or cannot run have a problem or a reason."""
    by_name = {cell.name: cell for cell in cells}
    for cell in cells:
        above: dict[str, None] = {}  # its teachers, their teachers, and so on
        rest = list(cell.record.teachers)
        while rest:
            if (name := rest.pop()) not in above:
                above[name] = None
                rest += by_name[name].record.teachers if name in by_name else ()
        problem = impossible = None
        if missing := [name for name in cell.record.teachers if name not in by_name]:
            problem = f"{missing[0]} is not a run of the matrix, exclude leaves it out; name another teacher"
        elif cell.name in above:
            problem = f"{cell.name} is a teacher of itself; name a run without it as teacher"
        elif above and cell.record.kind == "probe":
            impossible = "its teacher is a run of this matrix, and a probe has no trained model; train the whole runs"
        else:
            teachers = (by_name[name] for name in above if name in by_name)
            failing = next((teacher for teacher in teachers if teacher.impossible is not None), None)
            if failing is not None:
                impossible = f"its teacher {failing.name} cannot run: {failing.impossible}"
        if problem is not None:
            yield replace(cell, loaded=None, problems=(_problem(problem),))
        elif cell.impossible is None and not cell.problems:
            yield replace(cell, impossible=impossible)
        else:
            yield cell


def teachers_first(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Return cells in their order, with each teacher in front of its first student."""
    by_name = {cell.name: cell for cell in cells}
    ordered: dict[str, Cell] = {}

    def place(cell: Cell) -> None:
        for name in cell.record.teachers:
            if name in by_name and name not in ordered:
                place(by_name[name])
        ordered.setdefault(cell.name, cell)

    for cell in cells:
        place(cell)
    return tuple(ordered.values())


def waits_for(record: SweepRecord, cell: CellRecord) -> str | None:
    """Return why a run cannot start yet: a teacher of it is not finished; None where it can."""
    states = {other.name: other.state for other in record.cells}
    for name in cell.teachers:
        if (state := states.get(name, "unknown")) != "finished":
            return f"its teacher {name} is not finished ({state})"
    return None
