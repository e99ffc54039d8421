"""The configurations of a matrix and their baselines, as data for tables and figures."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from paratune.base.grouping import grouped
from paratune.records.finished import RunRecord
from paratune.records.sweep import SweepRecord
from paratune.reports.amounts import Amount, amount
from paratune.reports.measures import MEASURES, Measure, cost
from paratune.reports.runs.certificates import Certificate, find_certificates
from paratune.reports.runs.machine import machine_kinds
from paratune.reports.runs.sameness import allowed_by_axes, differs_of
from paratune.reports.systems.configurations import MATRIX, CellRun, Configuration, build_configurations, read_cell_runs
from paratune.verdicts import Differs, Verdict

MAX_BARS = 30
"""Figures with bars show at most so many configurations."""
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Systems:
    """The configurations of a matrix with their runs."""

    record: SweepRecord
    cell_runs: tuple[CellRun, ...]
    """The run of each cell."""
    verdicts: tuple[Verdict, ...] = ()
    """Verdicts on the configurations, whose changes tables show too."""
    prices: Mapping[str, float | None] = field(default_factory=dict)
    """Prices of a device-hour of several matrices, by their names."""
    allowed: frozenset[str] = frozenset()
    """Names of `runs.sameness.ALLOW`: differences that are allowed besides those that the axes make."""

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

    @cached_property
    def differing(self) -> Mapping[str, Differs]:
        """Differences between each configuration and its baseline, by label."""
        return {member.label: self.differs(member, self.baseline_of(member)) for member in self.measured}

    def differs(self, configuration: Configuration, base: Configuration) -> Differs:
        """Return the differences between the experiments of two configurations."""
        if configuration is base or not configuration.runs or not base.runs:
            return Differs()
        of_probe = {"steps"} if configuration.is_probe != base.is_probe else set()
        allowed = self.allowed | allowed_by_axes(self.axis_keys) | of_probe
        find = lambda: differs_of(base.runs, configuration.runs, allowed)  # noqa: E731
        return self.once(f"differs from {id(base)}", configuration, find)

    def baseline_of(self, configuration: Configuration) -> Configuration:
        """Return the baseline of a configuration: the one with its values on the axes that the baseline does not
        name.
        """
        return self._baselines[_key(configuration.values, configuration.is_probe)]

    @cached_property
    def _baselines(self) -> Mapping[tuple[Any, ...], Configuration]:
        """The baselines of all configurations."""
        base, record = self.baseline, self.record
        assert base is not None
        held = record.select_per
        if record.baseline:
            held = tuple(axis.label for axis in record.axes if axis.label not in record.baseline)
        by_values = {_key(member.values, member.is_probe): member for member in self.measured}
        found = {}
        for member in self.configurations:
            own = {label: member.values[label] for label in held if label in member.values}
            # Without a run with the other values of the baseline, the first configuration with equal held values is
            # the baseline: comparing across held axes would compare models, or machines of joined matrices.
            nearest = (other for other in self.measured if own.items() <= other.values.items())
            named = by_values.get(_key({**base.values, **own}, member.is_probe))
            found[_key(member.values, member.is_probe)] = named or (next(nearest, member) if own else base)
        return found

    def amount(self, measure: Measure, configuration: Configuration) -> Amount:
        """Return a measure of a configuration; scores only of the runs whose scores count.

        Probes have no time of a whole run.
        """
        if configuration.is_probe and measure.key in ("train_s", "epoch_s", "total_s"):
            return Amount(measure, {}, None, len(configuration.runs))
        if measure.key == "cost":
            price = self.price_of(configuration)
            return amount(cost(price or 0.0), () if price is None else configuration.runs)
        return self.once(
            measure.key,
            configuration,
            lambda: amount(measure, configuration.scored if measure.is_quality else configuration.runs),
        )

    @cached_property
    def _matrix_labels(self) -> frozenset[str]:
        return frozenset(axis.label for axis in self.record.axes if MATRIX in axis.keys)

    def matrix_of(self, configuration: Configuration) -> str:
        """Return the name of its matrix, of several; empty for a single one."""
        return next((configuration.values[label] for label in self._matrix_labels), "")

    def price_of(self, configuration: Configuration) -> float | None:
        """Return the price of a device-hour of its matrix."""
        return self.prices.get(self.matrix_of(configuration), self.record.price_per_device_hour)

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

    def drawn(self, members: Sequence[Configuration], limit: int = MAX_BARS) -> tuple[list[Configuration], str]:
        """Return the baseline and the fastest members, in their order; and a sentence about the selection."""
        if len(members) <= limit:
            return list(members), ""
        # One of unknown speed is not known to be slow: it is drawn.
        rates = {
            id(member): math.inf if rate is None else rate
            for member in members
            for rate in [self.amount(MEASURES["samples_per_s"], member).center]
        }
        fastest = sorted(members, key=lambda member: (member is not self.baseline, -rates[id(member)]))[:limit]
        drawn = {id(member) for member in fastest}
        sentence = f"Drawn: the {limit} fastest of {len(members)} configurations (by samples/s); the table has all."
        return [member for member in members if id(member) in drawn], sentence


def _key(values: Mapping[str, str], is_probe: bool) -> tuple[Any, ...]:
    return (is_probe, *sorted(values.items()))


def build_systems(folder: Path, record: SweepRecord) -> Systems:
    """Return a matrix with the records of its runs."""
    return Systems(record, read_cell_runs(folder, record))
