"""The configurations of a matrix and their baselines, as data for tables and figures."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from paratune.base.grouping import grouped
from paratune.records.finished import RunRecord
from paratune.records.sweep import SweepRecord
from paratune.reports.amounts import Amount, amount
from paratune.reports.measures import Measure, cost
from paratune.reports.runs.certificates import Certificate, find_certificates
from paratune.reports.runs.machine import machine_kinds
from paratune.reports.systems.configurations import MATRIX, CellRun, Configuration, build_configurations, read_cell_runs
from paratune.reports.systems.sameness import configuration_differs
from paratune.verdicts import Differs, Verdict

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Systems:
    """The configurations of a matrix with their runs."""

    record: SweepRecord
    cell_runs: tuple[CellRun, ...]
    """The run of each cell."""
    prices: Mapping[str, float | None] = field(default_factory=dict)
    """Prices of a device-hour of several matrices, by their names."""
    verdicts: tuple[Verdict, ...] = ()
    """Verdicts on the configurations, whose changes tables show too."""

    @cached_property
    def configurations(self) -> tuple[Configuration, ...]:
        """The configurations in the order of the axes, including those without a finished run."""
        return build_configurations(self.record, self.cell_runs)

    @cached_property
    def _named(self) -> Configuration | None:
        named = (member for member in self.measured if self.record.baseline.items() <= member.values.items())
        return next(named, None)

    @property
    def baseline(self) -> Configuration | None:
        """The baseline: named by the matrix, or the first configuration; None when no run can be read."""
        return self._named or next(iter(self.measured), None)

    @property
    def baseline_remark(self) -> str:
        """Reason why the baseline is not the one that the matrix names."""
        if self._named or not self.record.baseline:
            return ""
        wanted = ", ".join(f"{label} {name}" for label, name in self.record.baseline.items())
        return f"the baseline of the matrix ({wanted}) has no finished run"

    @cached_property
    def measured(self) -> tuple[Configuration, ...]:
        """The configurations with a finished and readable run."""
        return tuple(member for member in self.configurations if member.runs)

    @cached_property
    def runs(self) -> list[RunRecord]:
        """The finished and readable runs, in the order of the configurations."""
        return [run for member in self.measured for run in member.runs]

    @cached_property
    def axis_keys(self) -> tuple[str, ...]:
        """The dotted keys that the axes set."""
        keys = [key for axis in self.record.axes for key in (axis.keys or (axis.key,))]
        return tuple(dict.fromkeys([*keys, *(key for member in self.measured for key in member.settings)]))

    @cached_property
    def machines(self) -> Mapping[Hashable, list[RunRecord]]:
        """The runs grouped by kind of machine, in the order of the runs."""
        by_matrix = grouped((self.matrix_of(member), run) for member in self.measured for run in member.runs)
        # By matrix: a run on one GPU does not record the links of its node, which are those of its own matrix.
        return grouped(pair for runs in by_matrix.values() for pair in zip(machine_kinds(runs), runs, strict=True))

    @cached_property
    def certificates(self) -> tuple[tuple[Certificate, ...], tuple[str, ...]]:
        """The certificates next to the runs, and notes on those that cannot be read."""
        return find_certificates(self.runs, ())

    @property
    def num_machines(self) -> int:
        """Number of kinds of machines."""
        return len(self.machines)

    @cached_property
    def differing(self) -> Mapping[str, Differs]:
        """Differences between each configuration and its baseline, by label."""
        return {member.label: self.differs(member, self.baseline_of(member)) for member in self.measured}

    def differs(self, configuration: Configuration, base: Configuration) -> Differs:
        """Return the differences between the experiments of two configurations."""
        return configuration_differs(configuration, base, self.axis_keys)

    def baseline_of(self, configuration: Configuration) -> Configuration:
        """Return the baseline of a configuration: the one with its values on the axes that the baseline does not
        name.
        """
        base = self.baseline
        assert base is not None
        held = {label: configuration.values[label] for label in self._held if label in configuration.values}
        named = self._baselines.get(_key({**base.values, **held}, configuration.is_probe))
        # A joined matrix may have no run with the other values of the baseline: then its first configuration is its
        # baseline.
        of_matrix = {label: name for label, name in held.items() if label in self._matrix_labels}
        nearest = (member for member in self.measured if of_matrix and of_matrix.items() <= member.values.items())
        return named or next(nearest, base)

    @cached_property
    def _matrix_labels(self) -> frozenset[str]:
        return frozenset(axis.label for axis in self.record.axes if MATRIX in axis.keys)

    @cached_property
    def _held(self) -> tuple[str, ...]:
        """Axes on which a configuration and its baseline have equal values."""
        if self.record.baseline:
            return tuple(axis.label for axis in self.record.axes if axis.label not in self.record.baseline)
        return self.record.select_per

    @cached_property
    def _baselines(self) -> Mapping[str, Configuration]:
        return {_key(member.values, member.is_probe): member for member in self.measured}

    def amount(self, measure: Measure, configuration: Configuration) -> Amount:
        """Return a measure of a configuration; scores only of the runs whose scores count.

        Probes have no time of a whole run.
        """
        if configuration.is_probe and measure.key in ("train_s", "epoch_s", "total_s"):
            return Amount(measure, {}, None, len(configuration.runs))
        return self.once(
            measure.key,
            configuration,
            lambda: amount(measure, configuration.scored if measure.is_quality else configuration.runs),
        )

    def matrix_of(self, configuration: Configuration) -> str:
        """Return the name of its matrix, of several; empty for a single one."""
        return next((configuration.values[label] for label in self._matrix_labels), "")

    def price_of(self, configuration: Configuration) -> float | None:
        """Return the price of a device-hour of its matrix."""
        return self.prices.get(self.matrix_of(configuration), self.record.price_per_device_hour)

    def cost(self, configuration: Configuration) -> Amount:
        """Return the cost of a run of a configuration; unknown without a price."""
        price = self.price_of(configuration)
        return amount(cost(price or 0.0), () if price is None else configuration.runs)

    def once(self, name: str, configuration: Configuration, find: Callable[[], _Found]) -> _Found:
        """Return a value of a configuration, which `find` computes once for all tables and figures."""
        # By identity: the mappings of a configuration cannot be hashed.
        place = (name, id(configuration))
        if place not in self._found:
            self._found[place] = find()
        value: _Found = self._found[place]
        return value

    @cached_property
    def _found(self) -> dict[tuple[str, int], Any]:
        return {}

    @property
    def quality(self) -> tuple[str, str] | None:
        """Split and metric of quality, if all configurations have the same."""
        metrics = {cell_run.cell.metric for cell_run in self.cell_runs if cell_run.cell.counts}
        if len(metrics) != 1 or not any(member.scored for member in self.measured):
            return None
        return "validation", metrics.pop()


def _key(values: Mapping[str, str], is_probe: bool) -> str:
    return repr((sorted(values.items()), is_probe))


def build_systems(folder: Path, record: SweepRecord) -> Systems:
    """Return a matrix with the records of its runs."""
    return Systems(record, read_cell_runs(folder, record))
