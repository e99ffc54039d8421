"""The order in which the cells of a matrix run, and repeats of runs."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from paratune.config.load import LoadedConfig
from paratune.records.sweep import Axis, CellRecord
from paratune.sweeps.cell import Cell

Order = Literal["shuffled", "given"]
ORDERS: tuple[Order, ...] = ("shuffled", "given")


def repeated(cells: Sequence[Cell], repeats: int) -> tuple[Cell, ...]:
    """Return each cell `repeats` times in a row; the second and later ones are named NAME_r2, NAME_r3, ..."""
    return tuple(cell if number == 1 else _again(cell, number) for cell in cells for number in range(1, repeats + 1))


def _again(cell: Cell, number: int) -> Cell:
    name = f"{cell.name}_r{number}"
    return replace(cell, name=name, repeat=number, loaded=cell.loaded and renamed(cell.loaded, name))


def renamed(loaded: LoadedConfig, name: str, folder: str | None = None) -> LoadedConfig:
    """Return the configuration with another name of the run, and another folder when given."""
    changed = {"name": name} | ({} if folder is None else {"folder": folder})
    config = loaded.config.model_copy(update={"run": loaded.config.run.model_copy(update=changed)})
    return replace(loaded, config=config, values={**loaded.values, "run": {**loaded.values["run"], **changed}})


def in_order(cells: Sequence[Cell], matrix: str, order: Order, axes: Sequence[Axis]) -> tuple[Cell, ...]:
    """Return cells in the order in which they run: one block after the other, each with one run of every configuration.

    Each block has its own random order, so that a drift of the machine, as it warms or others use it, affects all
    configurations alike. A place in it follows from the names of matrix and run alone: another call has the same order,
    and a new value of an axis leaves the order of the others unchanged.

    Args:
        order: `given` keeps the order of the file within each repeat.
    """
    if order == "given":
        return tuple(sorted(cells, key=lambda cell: cell.repeat))

    def draw(cell: Cell) -> str:
        return hashlib.sha256(f"{matrix}/{cell.name}".encode()).hexdigest()

    return tuple(sorted(cells, key=lambda cell: (block_of(cell, axes), draw(cell))))


def block_of(cell: Cell | CellRecord, axes: Sequence[Axis]) -> tuple[int, ...]:
    """Return the number of the repeat and of each seed: runs with the same ones are a block."""
    return (cell.repeat, *(list(axis.values).index(cell.values[axis.label]) for axis in axes if axis.is_seed))
