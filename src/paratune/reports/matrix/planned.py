"""Plans of the cells of a matrix, from the file of `paratune plan MATRIX --write`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paratune import records
from paratune.base.text import plain
from paratune.errors import CheckpointError
from paratune.records.finished import number_in
from paratune.records.published import NOT_ALLOCATED

GENERATOR = "paratune plan of a matrix"
SCHEMA_VERSION = 1
_STATES = ("weights", "gradients", "optimizer")


def planned_figures(time_s: Any, memory_bytes: Any, terms: Any) -> dict[str, float]:
    """Return the known planned figures of a run by published measure: time (s), memory and state_memory (bytes).

    Args:
        time_s: Of all steps.
        memory_bytes: Of the fullest rank, with the CUDA context and fragmentation, which PyTorch does not count and
            which are left out.
        terms: Of the memory, by name.
    """
    by_term = {name: number_in(value) for name, value in terms.items()} if isinstance(terms, Mapping) else {}
    time, memory = number_in(time_s), number_in(memory_bytes)
    figures = {} if time is None else {"time": time}
    left_out = [part for name in NOT_ALLOCATED if (part := by_term.get(name, 0.0)) is not None]
    if memory is not None and len(left_out) == len(NOT_ALLOCATED):
        figures["memory"] = memory - math.fsum(left_out)
    states = [part for name in _STATES if (part := by_term.get(name)) is not None]
    if len(states) == len(_STATES):
        figures["state_memory"] = math.fsum(states)
    return figures


def read_plan(path: Path, matrix: str) -> dict[str, dict[str, float]]:
    """Return the planned figures of each cell of a matrix by its name, from a file of `paratune plan MATRIX --write`.

    Raises:
        CheckpointError: The file is absent, damaged, of another kind, or of another matrix.
    """
    plan = records.read_json(path)
    is_plan = isinstance(plan, dict) and plan.get("generator") == GENERATOR
    name = plan.get("matrix") if is_plan else None
    if name != matrix or plan.get("schema_version") != SCHEMA_VERSION or not isinstance(plan.get("cells"), dict):
        what = f"the plan of the matrix {plain(str(name))}" if name is not None else "not the plan of a matrix"
        raise CheckpointError(
            f"{plain(path)} is {what}, and the report is about {plain(matrix)}; paratune plan MATRIX --write "
            f"{plain(path.name)} writes its plan",
            code="report.no_plan",
            path=path,
            matrix=name,
        )
    figures = {}
    for cell, option in plan["cells"].items():
        memory = option.get("memory") if isinstance(option, dict) else None
        if isinstance(memory, dict):
            span = option.get("run_s")
            time_s = span[0] if isinstance(span, list) and span else None
            figures[str(cell)] = planned_figures(time_s, memory.get("total_bytes"), memory.get("terms"))
    return figures
