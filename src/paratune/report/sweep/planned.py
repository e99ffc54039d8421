"""What `paratune plan MATRIX --write` planned of the cells of a matrix, for its report."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paratune import records
from paratune.base.text import plain
from paratune.errors import CheckpointError

GENERATOR = "paratune plan of a matrix"
SCHEMA_VERSION = 1
_STATES = ("weights", "gradients", "optimizer")
_NOT_COUNTED = ("context", "fragmentation")


@dataclass(frozen=True)
class PlannedCell:
    """The planned figures of one run."""

    time_s: float | None
    memory_bytes: float | None
    """Of the fullest rank, as PyTorch counts it."""
    state_bytes: float | None
    """Of them, weights, gradients and optimizer states."""

    @classmethod
    def of(cls, time_s: Any, memory_bytes: Any, terms: Any) -> "PlannedCell | None":
        """Return the figures as far as they are numbers; None where nothing is known.

        Args:
            time_s: Of all steps.
            memory_bytes: Of the fullest rank, with the CUDA context and fragmentation, which PyTorch does not count and
                which are left out.
            terms: Of the memory, by name.
        """
        by_term = {name: _number(value) for name, value in terms.items()} if isinstance(terms, Mapping) else {}
        states = [by_term.get(name) for name in _STATES]
        known = [each for each in states if each is not None]
        memory = _number(memory_bytes)
        if memory is not None:
            memory -= sum(by_term.get(name) or 0.0 for name in _NOT_COUNTED)
        cell = cls(_number(time_s), memory, math.fsum(known) if len(known) == len(states) else None)
        return None if cell.time_s is None and cell.memory_bytes is None else cell

    def figure(self, measure: str) -> float | None:
        """Return a planned figure by the name of its published measure; None where plans have none."""
        match measure:
            case "time":
                return self.time_s
            case "memory":
                return self.memory_bytes
            case "state_memory":
                return self.state_bytes
        return None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def read_plan(path: Path, matrix: str) -> dict[str, PlannedCell]:
    """Return the planned figures of each cell, by its name.

    Args:
        path: The file that `paratune plan MATRIX --write` wrote.
        matrix: Name of the matrix that is reported.

    Raises:
        CheckpointError: The file is absent, damaged, of another kind, or of another matrix.
    """
    found = records.read_json(path)
    is_plan = isinstance(found, dict) and found.get("generator") == GENERATOR
    if not is_plan or found.get("schema_version") != SCHEMA_VERSION or not isinstance(found.get("cells"), dict):
        raise CheckpointError(
            f"{plain(path)} is not the plan of a matrix; paratune plan MATRIX --write {plain(path.name)} writes one",
            code="report.no_plan",
            path=path,
        )
    if found.get("matrix") != matrix:
        raise CheckpointError(
            f"{plain(path)} is the plan of the matrix {plain(str(found.get('matrix')))}, and the report is "
            f"about {plain(matrix)}; "
            f"plan {plain(matrix)}",
            code="report.no_plan",
            path=path,
            matrix=found.get("matrix"),
        )
    cells = {}
    for name, option in found["cells"].items():
        memory = option.get("memory") if isinstance(option, dict) else None
        if not isinstance(memory, dict):
            continue
        span, terms = option.get("run_s"), memory.get("terms")
        cell = PlannedCell.of(span[0] if isinstance(span, list) and span else None, memory.get("total_bytes"), terms)
        if cell is not None:
            cells[str(name)] = cell
    return cells
