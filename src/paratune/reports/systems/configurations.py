"""The configurations of a matrix: its cells without seed and repeat, each with its runs and settings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.text import plain
from paratune.config.plain import flatten
from paratune.errors import CheckpointError
from paratune.records.finished import RunRecord, read_record
from paratune.records.sweep import Axis, CellRecord, SweepRecord, cell_run_folder

NPROC, NODES, PROBE, ENV, MATRIX = "nproc", "nodes", "probe", "env", "matrix"
"""Keys of axes that are no options of a configuration: processes, nodes, probes, environment variables, and the
matrix.
"""
_OF_A_SEED = ("run", "data.split.seed")


@dataclass(frozen=True)
class CellRun:
    """One run of a matrix."""

    cell: CellRecord
    folder: Path
    record: RunRecord | None = None
    """Record without events; None for an unfinished or unreadable run."""
    reason: str | None = None
    """Reason why there is no record."""

    @property
    def scores(self) -> Mapping[str, Mapping[str, float | None]]:
        """Scores by split and metric; empty for an unfinished run and for a probe."""
        return {} if self.record is None or self.cell.kind == "probe" else self.record.summary.scores

    def score(self, split: str, metric: str) -> float | None:
        """Return a score; None where the run has none."""
        return self.scores.get(split, {}).get(metric)


def read_cell_runs(folder: Path, record: SweepRecord) -> tuple[CellRun, ...]:
    """Read the runs of a matrix, without their events; a damaged record is the reason why there is none."""
    cell_runs = []
    for cell in record.cells:
        run, found, reason = cell_run_folder(folder, cell.name), None, None
        if cell.state == "finished":
            try:
                found = read_record(run, cell.name)
            except CheckpointError as error:
                reason = f"its record cannot be read: {plain(error)}"
        else:
            reason = ": ".join(
                filter(None, ["not trained yet" if cell.state == "pending" else cell.state, cell.reason])
            )
        cell_runs.append(CellRun(cell, run, found, reason))
    return tuple(cell_runs)


@dataclass(frozen=True)
class Configuration:
    """A configuration of a matrix."""

    label: str
    """Name in tables and figures."""
    values: Mapping[str, str]
    """Name of its value on each axis except seeds, by label of the axis."""
    cell_runs: tuple[CellRun, ...]
    """Runs of all seeds and repeats."""
    settings: Mapping[str, Any]
    """Its values of all keys that the axes vary, by dotted key."""

    @cached_property
    def runs(self) -> tuple[RunRecord, ...]:
        """The finished runs with readable records."""
        return tuple(cell_run.record for cell_run in self.cell_runs if cell_run.record is not None)

    @cached_property
    def scored(self) -> tuple[RunRecord, ...]:
        """The runs whose scores count: no probes, and the first of several repeats, which train the same."""
        return tuple(
            cell_run.record for cell_run in self.cell_runs if cell_run.record is not None and cell_run.cell.counts
        )

    @cached_property
    def is_probe(self) -> bool:
        return any(cell_run.cell.kind == "probe" for cell_run in self.cell_runs)

    @cached_property
    def world_size(self) -> int:
        """Processes, one for each device."""
        recorded = self.runs[0].run.world_size if self.runs else None
        return int(recorded or self.cell_runs[0].cell.num_processes)

    @cached_property
    def global_batch_size(self) -> int | None:
        size = self.runs[0].run.batch.global_batch_size if self.runs else None
        return None if size is None else int(size)


def build_configurations(record: SweepRecord, cell_runs: Sequence[CellRun]) -> tuple[Configuration, ...]:
    """Return the configurations of a matrix in the order of its axes, including those without a finished run."""
    axes = [axis for axis in record.axes if not axis.is_seed]
    groups = grouped(
        ((cell_run.cell.kind, *(cell_run.cell.values[axis.label] for axis in axes)), cell_run) for cell_run in cell_runs
    )
    keys = _varied_keys(record, cell_runs)
    kinds = {cell_run.cell.kind for cell_run in cell_runs}
    configurations = []
    for (kind, *names), group in groups.items():
        values = dict(zip((axis.label for axis in axes), names, strict=True))
        label = label_of(axes, values) or record.name
        if len(kinds) > 1 and kind == "probe" and not any(PROBE in axis.keys for axis in axes):
            label += ", probe"
        of_matrix = next(({MATRIX: values[axis.label]} for axis in axes if MATRIX in axis.keys), {})
        configurations.append(Configuration(label, values, tuple(group), of_matrix | _settings(group, keys)))
    return tuple(configurations)


def label_of(axes: Sequence[Axis], values: Mapping[str, str]) -> str:
    """Return the values of the axes that vary: names alone, numbers after the name of their axis.

    `values` has the name of the value on each axis, by the label of the axis.
    """
    parts = []
    for axis in axes:
        if len(axis.values) > 1:
            shown = axis.values[values[axis.label]]
            is_name = shown[:1].isalpha() and shown not in ("true", "false", "null")
            # Names of variables stay unchanged.
            of_axis = axis.label if axis.key.startswith(f"{ENV}.") else axis.label.replace("_", " ")
            parts.append(shown if is_name else f"{of_axis} {shown}".lstrip())
    return ", ".join(parts)


def _settings(cell_runs: Sequence[CellRun], keys: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a configuration; variables and processes are known without a finished run."""
    run = next((cell_run.record for cell_run in cell_runs if cell_run.record is not None), None)
    cell = cell_runs[0].cell
    settings: dict[str, Any] = {}
    for key in keys:
        if key == NPROC:
            settings[key] = cell.num_processes
        elif key == NODES:
            settings[key] = cell.num_nodes
        elif (name := key.removeprefix(f"{ENV}.")) != key:
            if name in cell.environment or run is not None:
                settings[key] = cell.environment.get(name, run and run.run.environment.get(name))
        elif run is not None:
            settings[key] = run.setting(key)
    return settings


def _varied_keys(record: SweepRecord, cell_runs: Sequence[CellRun]) -> list[str]:
    """Return the keys that distinguish configurations: keys of the axes, down to single options."""
    axis_keys = dict.fromkeys(key for axis in record.axes if not axis.is_seed for key in axis.keys)
    flat = [flatten(item.record.run.config) for item in cell_runs if item.record is not None]
    keys = [key for key in axis_keys if key in (NPROC, NODES) or key.startswith(f"{ENV}.")]
    for option in dict.fromkeys(key for options in flat for key in options):
        of_axis = any(option == key or option.startswith(f"{key}.") for key in axis_keys)
        of_seed = any(option == key or option.startswith(f"{key}.") for key in _OF_A_SEED)
        if of_axis and not of_seed and len({json.dumps(options.get(option), default=str) for options in flat}) > 1:
            keys.append(option)
    return keys
