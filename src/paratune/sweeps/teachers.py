"""Teachers of a distillation that are runs of the same matrix: `distil.teacher: {size: large}` in a matrix file.

The mapping names values of axes; on all other axes, seeds included, a teacher has the values of its student. Several
values of an axis are an ensemble: `{size: large, seed: [1, 2, 3]}`.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paratune.config.distil_section import Distil, teacher_names
from paratune.config.layers import Layer, layer_of, merge
from paratune.config.problems import Problem, SourceLocation
from paratune.records.sweep import CellRecord, SweepRecord, cell_run_folder
from paratune.sweeps.axes import find_values
from paratune.sweeps.cell import Cell
from paratune.sweeps.matrix import Matrix

TEACHER = "distil.teacher"


def resolve_teachers(
    matrix: Matrix, values: Mapping[str, str], layer: Layer, name_of: Callable[[Mapping[str, str]], str]
) -> tuple[Layer, tuple[str, ...], tuple[Problem, ...]]:
    """Return the settings with the folders of the teachers, the names of the teachers' runs, and problems.

    Args:
        values: The name of the student's value on each axis, by label.
    """
    distil = layer.values.get("distil")
    wanted = distil.get("teacher") if isinstance(distil, dict) else None
    if not isinstance(wanted, dict):
        return layer, (), ()
    place = next((at for key, at in layer.places.items() if key == TEACHER or key.startswith(f"{TEACHER}.")), None)
    chosen, found = find_values(matrix.axes, wanted)
    if not wanted:
        found = [("it is an empty mapping; name a value of an axis, such as {size: large}, or a run", "")]
    if found:
        return (
            layer,
            (),
            tuple(Problem(f"{TEACHER}: {message}", (TEACHER,), place, code="sweep.teacher") for message, _ in found),
        )
    combinations = itertools.product(*chosen.values())
    names = [name_of({**values, **dict(zip(chosen, names, strict=True))}) for names in combinations]
    folders = [str(cell_run_folder(matrix.folder, name)) for name in names]
    places = {TEACHER: place or SourceLocation(matrix.source.name)}
    value: Any = folders[0] if len(folders) == 1 else folders
    return merge(layer, layer_of(TEACHER, value, places)), tuple(names), ()


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
        missing = next((name for name in cell.record.teachers if name not in by_name), None)
        if missing is not None:
            message = f"{TEACHER}: {missing} is not a run of the matrix, exclude leaves it out; name another teacher"
            yield replace(cell, loaded=None, problems=(Problem(message, (TEACHER,), code="sweep.teacher"),))
        elif cell.name in (above := set(_above(cell, by_name))):
            message = f"{TEACHER}: {cell.name} is a teacher of itself; name a run without it as teacher"
            yield replace(cell, loaded=None, problems=(Problem(message, (TEACHER,), code="sweep.teacher"),))
        elif cell.impossible is None and cell.problems == () and above:
            yield replace(cell, impossible=_why_not(cell, [by_name[name] for name in above if name in by_name]))
        else:
            yield cell


def _above(cell: Cell, by_name: Mapping[str, Cell]) -> list[str]:
    """Return the names of the teachers of a cell, of their teachers, and so on."""
    found: list[str] = []
    rest = list(cell.record.teachers)
    while rest:
        name = rest.pop()
        if name not in found:
            found.append(name)
            rest += by_name[name].record.teachers if name in by_name else ()
    return found


def _why_not(cell: Cell, teachers: Iterable[Cell]) -> str | None:
    if cell.record.kind == "probe":
        return "its teacher is a run of this matrix, and a probe has no trained model; train the whole runs"
    impossible = next((teacher for teacher in teachers if teacher.impossible is not None), None)
    return None if impossible is None else f"its teacher {impossible.name} cannot run: {impossible.impossible}"


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
        if states.get(name) != "finished":
            return f"its teacher {name} is not finished ({states.get(name, 'unknown')})"
    return None
