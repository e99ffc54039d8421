"""The order in which the cells of a matrix run, and runs that are made several times for their speed."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from paratune.config.load import LoadedConfig
from paratune.sweep.cell import Cell

Order = Literal["shuffled", "given"]
ORDERS: tuple[Order, ...] = ("shuffled", "given")


def repeated(cells: Sequence[Cell], repeats: int) -> tuple[Cell, ...]:
    """Return each cell `repeats` times, one behind the other; all but the first are called NAME_r2, NAME_r3, ..."""
    return tuple(cell if number == 1 else _again(cell, number) for cell in cells for number in range(1, repeats + 1))


def _again(cell: Cell, number: int) -> Cell:
    name = f"{cell.name}_r{number}"
    return replace(cell, name=name, repeat=number, loaded=cell.loaded and renamed(cell.loaded, name))


def renamed(loaded: LoadedConfig, name: str, folder: str | None = None) -> LoadedConfig:
    """Return the same configuration for a run of another name, and perhaps in another folder."""
    changed = {"name": name} | ({} if folder is None else {"folder": folder})
    config = loaded.config.model_copy(update={"run": loaded.config.run.model_copy(update=changed)})
    return replace(loaded, config=config, values={**loaded.values, "run": {**loaded.values["run"], **changed}})


def in_order(cells: Sequence[Cell], matrix: str, order: Order) -> tuple[Cell, ...]:
    """Return cells in the order in which they run: all of the first time, then all of the second, ...

    Each time is shuffled by itself, so that a machine that becomes slower, as it warms or others use it, hits all
    cells alike and not the last value of an axis. A place in it follows from the names of matrix and run alone: another
    call has the same, and a value more on an axis leaves the others in theirs.

    Args:
        cells: In the order of the file.
        matrix: Its name.
        order: `given` keeps the order of the file within each time.
    """
    if order == "given":
        return tuple(sorted(cells, key=lambda cell: cell.repeat))
    return tuple(sorted(cells, key=lambda cell: (cell.repeat, _draw(f"{matrix}/{cell.name}"))))


def _draw(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
