"""The runs of a matrix as independent commands, for a cluster or to start by hand.

Each command writes into the folder of the matrix, where `paratune sweep` and `paratune report` read its record.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paratune.records.sweep import LOGS_FOLDER, SweepRecord, cell_run_folder, write_sweep
from paratune.sweeps.environment import for_a_run
from paratune.sweeps.plan import Step
from paratune.sweeps.run import config_of, words_of, write_cell

PROGRAM = "paratune"


def write_listed(folder: Path, record: SweepRecord, steps: Sequence[Step]) -> None:
    """Write the record of the matrix, and the configurations of the runs that are listed.

    Raises:
        CheckpointError: They cannot be written.
    """
    listed_now = (step.cell.name for step in steps)
    write_sweep(folder, replace(record, listed=tuple(dict.fromkeys([*record.listed, *listed_now]))))
    for step in steps:
        write_cell(folder, record.matrix, step.cell)


def listed(folder: Path, step: Step, *, run_code: bool = False) -> dict[str, Any]:
    """Return a run as plain data: its command, with --run-code if wanted, its variables and its files."""
    environment = for_a_run(step.cell.environment)
    command = [PROGRAM, *words_of(folder, step), *(["--run-code"] if run_code else [])]
    return {
        "name": step.cell.name,
        "kind": step.cell.kind,
        "repeat": step.cell.repeat,
        "num_processes": step.cell.num_processes,
        "num_nodes": step.cell.num_nodes,
        "environment": environment,
        "config": str(config_of(folder, step.cell.name)),
        "folder": str(cell_run_folder(folder, step.cell.name)),
        "log": str(folder / LOGS_FOLDER / f"{step.cell.name}.txt"),
        "state": step.record.state,
        "command": command,
        "line": shell_line(command, environment),
    }


def shell_line(command: Sequence[str], environment: Mapping[str, str | None]) -> str:
    """Return a command for a shell, with its variables in front."""
    unset = [word for name, value in environment.items() if value is None for word in ("-u", name)]
    given = [f"{name}={value}" for name, value in environment.items() if value is not None]
    return shlex.join([*(["env", *unset, *given] if environment else []), *command])
