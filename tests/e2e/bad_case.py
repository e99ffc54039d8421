"""A case of bad input, and functions that create bad input."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from world import rows_of


def _nothing(folder: Path) -> None:
    return


@dataclass(frozen=True)
class Case:
    """One kind of bad input."""

    name: str
    arguments: tuple[str, ...]
    """After `paratune`."""
    code: int
    message_parts: tuple[str, ...]
    """Parts of the message: the place, the value, and the remedy."""
    prepare: Callable[[Path], None] = _nothing
    """Creates the bad input in the folder."""


def train_with(*pairs: str) -> tuple[str, ...]:
    return ("train", "c.yaml", *(argument for pair in pairs for argument in ("--set", pair)))


def text_file(name: str, text: str | bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)

    return write


def with_row(name: str, row: str, num_rows: int = 40) -> Callable[[Path], None]:
    """Write the first rows of data.csv and one more row."""

    def write(folder: Path) -> None:
        lines = [*rows_of(folder / "data.csv")[: num_rows + 1], *([row] if row else [])]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")

    return write


def damaged_model(name: str, change: Callable[[Path], None]) -> Callable[[Path], None]:
    """Make a damaged copy of the model folder."""

    def copy(folder: Path) -> None:
        shutil.copytree(folder / "model", folder / name)
        change(folder / name)

    return copy
