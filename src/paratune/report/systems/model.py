"""What a matrix says of systems, before it is written in any format."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from paratune.records.sweep import SweepRecord, run_folder_of
from paratune.report.machine import machine_kinds
from paratune.report.read import RunRecord
from paratune.report.systems.cell_runs import CellRun, read_cell_runs
from paratune.report.systems.configurations import MATRIX, Configuration, configurations_of
from paratune.report.systems.measures import Amount, ReportMeasure, amount
from paratune.report.systems.sameness import what_differs
from paratune.verdicts import Differs

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Systems:
    """The configurations of a matrix with their runs."""

    record: SweepRecord
    cell_runs: tuple[CellRun, ...]
    configurations: tuple[Configuration, ...]
    baseline: Configuration | None
    """What others are compared with: what the matrix names, or the first; None where no run can be read."""
    baseline_remark: str = ""
    """Why the baseline is not the one that the matrix names."""

    @cached_property
    def measured(self) -> tuple[Configuration, ...]:
        """The configurations with a finished run that can be read."""
        return tuple(one for one in self.configurations if one.runs)

    @cached_property
    def axis_keys(self) -> tuple[str, ...]:
        """The dotted keys that the axes set."""
        said = [key for axis in self.record.axes for key in (axis.keys or (axis.key,))]
        return tuple(dict.fromkeys([*said, *(key for one in self.measured for key in one.settings)]))

    @cached_property
    def machines(self) -> Mapping[Hashable, tuple[RunRecord, ...]]:
        """The runs by the kind of machine that they used, in the order of the runs."""
        runs = [run for one in self.measured for run in one.runs]
        by_kind: dict[Hashable, list[RunRecord]] = {}
        for run, kind in zip(runs, machine_kinds(runs), strict=True):
            by_kind.setdefault(kind, []).append(run)
        return {kind: tuple(members) for kind, members in by_kind.items()}

    @property
    def num_machines(self) -> int:
        """Kinds of machines that runs were made on."""
        return len(self.machines)

    @cached_property
    def differing(self) -> Mapping[str, Differs]:
        """In what each configuration is another experiment than the baseline, by its label."""
        found = {}
        for one in self.measured:
            found[one.label] = self.differs(one, self.baseline_of(one))
        return found

    def differs(self, one: Configuration, base: Configuration) -> Differs:
        """Return in what a configuration is another experiment than another one."""
        return what_differs(one, base, self.axis_keys)

    def baseline_of(self, one: Configuration) -> Configuration:
        """Return what a configuration is compared with: within the axes that the baseline does not name."""
        base = self.baseline
        assert base is not None
        own = {label: one.values[label] for label in self._held if label in one.values}
        found = self._baselines.get(_key({**base.values, **own}, one.is_probe))
        # A matrix beside others may have no run with the other values of the baseline: then it is its own first one.
        of_matrix = {label: name for label, name in own.items() if label in self._matrix_labels}
        nearest = (each for each in self.measured if of_matrix and of_matrix.items() <= each.values.items())
        return found or next(nearest, base)

    @cached_property
    def _matrix_labels(self) -> frozenset[str]:
        return frozenset(axis.label for axis in self.record.axes if MATRIX in axis.keys)

    @cached_property
    def _held(self) -> tuple[str, ...]:
        """The axes within whose values configurations are compared."""
        if self.record.baseline:
            return tuple(axis.label for axis in self.record.axes if axis.label not in self.record.baseline)
        return self.record.select_per

    @cached_property
    def _baselines(self) -> Mapping[str, Configuration]:
        return {_key(one.values, one.is_probe): one for one in self.measured}

    def amount(self, measure: ReportMeasure, one: Configuration) -> Amount:
        """Return a figure of a configuration; scores are of the runs whose scores count."""
        return self.once(measure.key, one, lambda: amount(measure, one.scored if measure.is_quality else one.runs))

    def once(self, what: str, one: Configuration, find: Callable[[], _Found]) -> _Found:
        """Return something of a configuration, found when it is first asked for: tables and figures share it.

        Args:
            what: Names it.
            one: The configuration.
            find: Finds it.
        """
        place = (what, id(one))
        if place not in self._found:
            self._found[place] = find()
        found: _Found = self._found[place]
        return found

    @cached_property
    def _found(self) -> dict[tuple[str, int], Any]:
        return {}

    @property
    def quality(self) -> tuple[str, str] | None:
        """The split and metric by which models are judged, where all configurations have the same."""
        metrics = {each.cell.metric for each in self.cell_runs if each.cell.counts}
        if len(metrics) != 1 or not any(one.scored for one in self.measured):
            return None
        return "validation", metrics.pop()


def _key(values: Mapping[str, str], is_probe: bool) -> str:
    return repr((sorted(values.items()), is_probe))


def build_systems(folder: Path, record: SweepRecord, folders: Sequence[Path] | None = None) -> Systems:
    """Return the configurations of a matrix with the records of their runs.

    Args:
        folder: Of the matrix.
        record: Its sweep.json.
        folders: Of the run of each cell, where they are not those of the matrix.
    """
    places = [run_folder_of(folder, cell.name) for cell in record.cells] if folders is None else folders
    cell_runs = read_cell_runs(record.cells, places)
    configurations = configurations_of(record, cell_runs)
    baseline, remark = _baseline(record, configurations)
    return Systems(record, cell_runs, configurations, baseline, remark)


def _baseline(record: SweepRecord, configurations: Sequence[Configuration]) -> tuple[Configuration | None, str]:
    """Return the configuration that the matrix names as baseline, or the first with a run."""
    measured = [one for one in configurations if one.runs]
    wanted = record.baseline
    named = [one for one in measured if all(one.values.get(label) == name for label, name in wanted.items())]
    if wanted and not named:
        what = ", ".join(f"{label} {name}" for label, name in wanted.items())
        return (measured[0] if measured else None), f"the baseline of the matrix ({what}) has no finished run"
    return next(iter(named), None), ""
