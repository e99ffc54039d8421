"""Plans of the cells of a matrix, from the file of `paratune plan MATRIX --write`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paratune import records
from paratune.base.text import plain
from paratune.errors import CheckpointError
from paratune.records.published import NOT_ALLOCATED
from paratune.reports.runs.read import number_in

GENERATOR = "paratune plan of a matrix"
SCHEMA_VERSION = 1
_STATES = ("weights", "gradients", "optimizer")


@dataclass(frozen=True)
class PlannedCell:
    """The planned figures of one run."""

    time_s: float | None
    memory_bytes: float | None
    """Memory of the fullest rank, as PyTorch counts it."""
    state_bytes: float | None
    """Part of it for weights, gradients and optimizer states."""

    @classmethod
    def from_plan(cls, time_s: Any, memory_bytes: Any, terms: Any) -> "PlannedCell | None":
        """Return the figures that are numbers; None when none is known.

        Args:
            time_s: Of all steps.
            memory_bytes: Of the fullest rank, with the CUDA context and fragmentation, which PyTorch does not count and
                which are left out.
            terms: Of the memory, by name.
        """
        by_term = {name: number_in(value) for name, value in terms.items()} if isinstance(terms, Mapping) else {}
        states = [by_term.get(name) for name in _STATES]
        known = [number for number in states if number is not None]
        memory = number_in(memory_bytes)
        if memory is not None:
            memory -= sum(by_term.get(name) or 0.0 for name in NOT_ALLOCATED)
        cell = cls(number_in(time_s), memory, math.fsum(known) if len(known) == len(states) else None)
        return None if cell.time_s is None and cell.memory_bytes is None else cell

    def figure(self, measure: str) -> float | None:
        """Return the planned figure for a published measure; None when plans do not have it."""
        return {"time": self.time_s, "memory": self.memory_bytes, "state_memory": self.state_bytes}.get(measure)


def read_plan(path: Path, matrix: str) -> dict[str, PlannedCell]:
    """Return the planned figures of each cell of a matrix by its name, from a file of `paratune plan MATRIX --write`.

    Raises:
        CheckpointError: The file is absent, damaged, of another kind, or of another matrix.
    """
    plan = records.read_json(path)
    is_plan = isinstance(plan, dict) and plan.get("generator") == GENERATOR
    if not is_plan or plan.get("schema_version") != SCHEMA_VERSION or not isinstance(plan.get("cells"), dict):
        raise CheckpointError(
            f"{plain(path)} is not the plan of a matrix; paratune plan MATRIX --write {plain(path.name)} writes one",
            code="report.no_plan",
            path=path,
        )
    if plan.get("matrix") != matrix:
        raise CheckpointError(
            f"{plain(path)} is the plan of the matrix {plain(str(plan.get('matrix')))}, and the report is about "
            f"{plain(matrix)}; plan {plain(matrix)}",
            code="report.no_plan",
            path=path,
            matrix=plan.get("matrix"),
        )
    cells = {}
    for name, option in plan["cells"].items():
        memory = option.get("memory") if isinstance(option, dict) else None
        if not isinstance(memory, dict):
            continue
        span, terms = option.get("run_s"), memory.get("terms")
        cell = PlannedCell.from_plan(
            span[0] if isinstance(span, list) and span else None, memory.get("total_bytes"), terms
        )
        if cell is not None:
            cells[str(name)] = cell
    return cells
