"""The configurations of a matrix: its cells without seed and repeat, each with its runs and what was set for it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paratune.config.differences import flatten
from paratune.records.sweep import Axis, SweepRecord
from paratune.report.machine import nodes_of
from paratune.report.read import RunRecord
from paratune.report.systems.cell_runs import CellRun

NPROC, NODES, PROBE, ENV, MATRIX = "nproc", "nodes", "probe", "env", "matrix"
"""What an axis may be of that is no option of a configuration: processes, nodes, what is timed alone, variables, and of
several matrices which one it is."""
_OF_A_SEED = ("run", "data.split.seed")


@dataclass(frozen=True)
class Configuration:
    """One way of running the job."""

    label: str
    """How tables and figures call it."""
    values: Mapping[str, str]
    """The name of its value on each axis but those of seeds, by the axis' label."""
    cell_runs: tuple[CellRun, ...]
    """Of all its seeds and repeats."""
    settings: Mapping[str, Any]
    """What was set for it, of all that the axes vary, by dotted key."""

    @cached_property
    def runs(self) -> tuple[RunRecord, ...]:
        """The finished ones whose records can be read."""
        return tuple(each.record for each in self.cell_runs if each.record is not None)

    @cached_property
    def scored(self) -> tuple[RunRecord, ...]:
        """The runs whose scores count: no probes, and the first one of repeats, which all train the same."""
        return tuple(each.record for each in self.cell_runs if each.record is not None and each.cell.counts)

    @cached_property
    def is_probe(self) -> bool:
        return any(each.cell.kind == "probe" for each in self.cell_runs)

    @cached_property
    def world_size(self) -> int:
        """Processes, one a device."""
        return int(self._count("run.world_size") or self.cell_runs[0].cell.num_processes)

    @cached_property
    def global_batch_size(self) -> int | None:
        return self._count("run.batch.global_batch_size")

    def _count(self, source: str) -> int | None:
        value = self.runs[0].number(source) if self.runs else None
        return None if value is None else int(value)


def configurations_of(record: SweepRecord, cell_runs: Sequence[CellRun]) -> tuple[Configuration, ...]:
    """Return the configurations of a matrix in the order of its axes, also those without a finished run."""
    axes = [axis for axis in record.axes if not axis.is_seed]
    groups: dict[tuple[str, ...], list[CellRun]] = {}
    for each in cell_runs:
        groups.setdefault((each.cell.kind, *(each.cell.values[axis.label] for axis in axes)), []).append(each)
    keys = _varied_keys(record, cell_runs)
    kinds = {each.cell.kind for each in cell_runs}
    found = []
    for (kind, *names), group in groups.items():
        values = dict(zip((axis.label for axis in axes), names, strict=True))
        label = label_of(axes, values) or record.name
        if len(kinds) > 1 and kind == "probe" and not any(PROBE in axis.keys for axis in axes):
            label += ", probe"
        of_matrix = next(({MATRIX: values[axis.label]} for axis in axes if MATRIX in axis.keys), {})
        found.append(Configuration(label, values, tuple(group), of_matrix | _settings(group, keys)))
    return tuple(found)


def setting_of(run: RunRecord, key: str) -> Any:
    """Return what a run was given for a key of an axis; None where its record does not say."""
    if key == NPROC:
        return run.get("run.world_size")
    if key == NODES:
        return len(nodes_of(run))
    if key.startswith(f"{ENV}."):
        return run.get(("run", "environment", key.removeprefix(f"{ENV}.")))
    return run.get(("run", "config", *key.split(".")))


def label_of(axes: Sequence[Axis], values: Mapping[str, str]) -> str:
    """Return the values of the axes that vary: names by themselves, numbers behind the name of their axis.

    Args:
        axes: What is to be told apart.
        values: The name of the value on each axis, by the axis' label.
    """
    parts = []
    for axis in axes:
        if len(axis.values) > 1:
            shown = axis.values[values[axis.label]]
            parts.append(shown if _is_name(shown) else f"{_axis_name(axis)} {shown}")
    return ", ".join(parts)


def _axis_name(axis: Axis) -> str:
    """Return a label in words; variables keep their names."""
    return axis.label if axis.key.startswith(f"{ENV}.") else axis.label.replace("_", " ")


def _is_name(text: str) -> bool:
    return bool(text) and text[0].isalpha() and text not in ("true", "false", "null")


def _settings(cell_runs: Sequence[CellRun], keys: Sequence[str]) -> dict[str, Any]:
    """Return what a configuration was given; of variables and processes also without a finished run."""
    run = next((each.record for each in cell_runs if each.record is not None), None)
    cell = cell_runs[0].cell
    settings: dict[str, Any] = {}
    for key in keys:
        if key == NPROC:
            settings[key] = cell.num_processes
        elif key == NODES:
            settings[key] = cell.num_nodes
        elif key.startswith(f"{ENV}.") and key.removeprefix(f"{ENV}.") in cell.environment:
            settings[key] = cell.environment[key.removeprefix(f"{ENV}.")]
        elif key != PROBE and run is not None:
            settings[key] = setting_of(run, key)
    return settings


def _varied_keys(record: SweepRecord, cell_runs: Sequence[CellRun]) -> list[str]:
    """Return the keys that tell configurations apart: those of the axes, down to single options.

    A record of an earlier version does not say what its axes set: then all options in which its runs differ.
    """
    axes = [axis for axis in record.axes if not axis.is_seed]
    runs = [each.record for each in cell_runs if each.record is not None]
    flat = [_flat(run) for run in runs]
    sizes = {each.cell.num_processes for each in cell_runs}
    known = all(axis.keys for axis in axes)
    said = [key for axis in axes for key in axis.keys]
    keys = [key for key in dict.fromkeys(said) if key in (NPROC, NODES) or key.startswith(f"{ENV}.")]
    if not known and len(sizes) > 1 and NPROC not in keys:
        keys.append(NPROC)
    for option in dict.fromkeys(key for one in flat for key in one):
        if any(option == each or option.startswith(f"{each}.") for each in _OF_A_SEED):
            continue
        of_axis = any(option == key or option.startswith(f"{key}.") for key in said)
        if (of_axis or not known) and len({json.dumps(one.get(option), default=str) for one in flat}) > 1:
            keys.append(option)
    return keys


def _flat(run: RunRecord) -> dict[str, Any]:
    config = run.get("run.config")
    return flatten(config) if isinstance(config, Mapping) else {}
