"""The configurations of a matrix, its cells without seed and repeat, with their runs, baselines and measures.

Statistical efficiency is (phi + m0) / (phi + m): phi the gradient noise scale, m the global batch size, m0 the
reference batch of the baseline. Source: Qiao et al., Pollux, OSDI 2021, equation 7. Goodput is samples/s times
efficiency. Both are those of each run, as verdicts have them; over runs they are totals over totals: what all samples
were worth, over their number and over their time.
"""

import json
import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.text import plain
from paratune.config.plain import flatten
from paratune.errors import CheckpointError, Fault
from paratune.records.efficiency import NoiseKind
from paratune.records.finished import RunRecord, read_record
from paratune.records.sweep import Axis, CellRecord, SweepRecord, cell_run_folder
from paratune.reports.amounts import Amount, amount, mean, measured_samples
from paratune.reports.measures import EFFICIENCY, GOODPUT, MEASURES, NOISE_KEYS, SCALING, SPEED_UP, Measure, cost, score
from paratune.reports.runs.machine import machine_kinds
from paratune.reports.runs.read import Certificate, Unfinished, find_certificates, log_warnings
from paratune.reports.runs.sameness import allowed_by_axes, differs_of
from paratune.verdicts import Differs, Group, Verdict, speeds

NPROC, NODES, PROBE, ENV, MATRIX = "nproc", "nodes", "probe", "env", "matrix"
"""Keys of axes that are no options: processes, nodes, probes, environment variables, and the matrix."""
GONE = "its folder is gone: copy it back, or repeat paratune sweep, which trains it again"
_OF_A_SEED = ("run", "data.split.seed")
MAX_BARS = 30  # figures with bars show at most so many configurations


@dataclass(frozen=True)
class CellRun:
    cell: CellRecord
    folder: Path
    record: RunRecord | None = None  # record without events; None for an unfinished or unreadable run
    reason: str | None = None  # reason why there is no record

    @property
    def scores(self) -> Mapping[str, Mapping[str, float | None]]:
        """Scores by split and metric; empty for an unfinished run and for a probe."""
        return {} if self.record is None or self.cell.kind == "probe" else self.record.summary.scores

    def score(self, split: str, metric: str) -> float | None:
        return self.scores.get(split, {}).get(metric)


def read_cell_runs(folder: Path, record: SweepRecord) -> tuple[CellRun, ...]:
    """Read the runs of a matrix, without their events; a damaged record is the reason why there is none."""
    cell_runs = []
    for cell in record.cells:
        run, found = cell_run_folder(folder, cell.name), None
        state = "not trained yet" if cell.state == "pending" else cell.state
        reason: str | None = ": ".join(filter(None, [state, cell.reason]))
        if cell.state == "finished":
            try:
                found, reason = read_record(run, cell.name), None
            except CheckpointError as error:
                why = plain(str(error).removeprefix(f"{run}/"))
                reason = f"its record cannot be read: {why}" if run.exists() else GONE
        cell_runs.append(CellRun(cell, run, found, reason))
    return tuple(cell_runs)


@dataclass(frozen=True, eq=False)
class Configuration:
    """The runs of one combination of values: of all axes except seeds, or, of a candidate, of those that may change
    the quality. A candidate may have several runs of a seed, which differ only in how they train.
    """

    label: str  # name in tables and figures
    values: Mapping[str, str]  # name of its value on each of these axes, by label of the axis
    cell_runs: tuple[CellRun, ...]  # runs of all seeds and repeats
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Its values of all keys that the axes vary, by dotted key; and `MATRIX` of several, as tables show it."""
    seeds: tuple[str, ...] = ()  # labels of the axes of seeds, of a candidate
    num_left_out: int = 0  # seeds that other candidates have, and that are excluded or cannot run here

    @cached_property
    def runs(self) -> tuple[RunRecord, ...]:
        """The finished runs with readable records."""
        return tuple(cell_run.record for cell_run in self.cell_runs if cell_run.record is not None)

    @cached_property
    def scored(self) -> tuple[RunRecord, ...]:
        """The runs whose scores count: no probes, and the first of several repeats, which train the same."""
        return tuple(item.record for item in self.cell_runs if item.record is not None and item.cell.counts)

    @cached_property
    def group(self) -> Group:
        """The runs as verdicts compare them, probes without scores; it remembers what the steps do."""
        runs = self.runs
        if self.is_probe:
            runs = tuple(replace(run, summary=run.summary.model_copy(update={"scores": {}})) for run in runs)
        return Group(self.label, runs)

    @cached_property
    def by_seed(self) -> Mapping[str, list[CellRun]]:
        """The runs of each seed, by its name."""
        return grouped((", ".join(item.cell.values[label] for label in self.seeds), item) for item in self.cell_runs)

    def score_over_seeds(self, split: str, metric: str) -> Amount:
        """Return a score over the seeds that have it, each the mean over its runs; the remark has how many lack it."""
        known = {
            seed: [value for cell_run in cell_runs if (value := cell_run.score(split, metric)) is not None]
            for seed, cell_runs in self.by_seed.items()
        }
        values = {seed: of_seed for seed, scores in known.items() if (of_seed := mean(scores)) is not None}
        num_runs, num_planned = (sum(len(of[seed]) for seed in values) for of in (known, self.by_seed))
        few = f"{num_runs} of {num_planned} runs" if num_runs < num_planned else ""
        num_seeds = len(self.by_seed) + self.num_left_out
        return Amount(score(split, metric), values, mean(values.values()), num_seeds, few)

    def is_whole(self, metric: str) -> bool:
        """Return whether each seed, also those that only other candidates have, has the score on validation."""
        found = self.score_over_seeds("validation", metric)
        return len(found.values) == found.num_runs

    @cached_property
    def can_run(self) -> bool:
        return any(item.cell.state != "skipped" for item in self.cell_runs)

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


def values_label(axes: Sequence[Axis], values: Mapping[str, str]) -> str:
    """Return the values, by label, of the axes that vary: names alone, numbers after the name of their axis."""
    parts = []
    for axis in axes:
        if len(axis.values) > 1:
            shown = axis.values[values[axis.label]]
            is_name = MATRIX in axis.keys or (shown[:1].isalpha() and shown not in ("true", "false", "null"))
            # Names of variables stay unchanged.
            of_axis = axis.label if axis.key.startswith(f"{ENV}.") else axis.label.replace("_", " ")
            parts.append(shown if is_name else f"{of_axis} {shown}".lstrip())
    return ", ".join(parts)


def speed_up(first: Configuration, member: Configuration, measure: Measure = SPEED_UP, by: float = 1.0) -> Amount:
    """Return samples/s over those of another configuration: the ratio of geometric means over runs, divided by `by`."""
    before, after = ([MEASURES["samples_per_s"].of(run) for run in one.runs] for one in (first, member))
    # Of a pair alone, the order of the runs says too little to be adjusted for.
    (found,) = speeds.changes_of(first.group, [member.group], "samples_per_s", [(before, after)], is_speed=False)
    if found.change is None:
        return Amount(measure, {}, None, len(member.runs))
    value = (1 + found.change) / by
    runs = dict.fromkeys((run.name for run in (*member.runs, *first.runs)), value)
    limits = None
    # Runs that do not vary at all tell nothing about other runs.
    if first is not member and found.low is not None and found.high is not None and found.low < found.high:
        limits = ((1 + found.low) / by, (1 + found.high) / by)
    return Amount(measure, runs, value, len(runs), is_pooled=True, interval=limits)


def noise_amount(kind: NoiseKind, configuration: Configuration) -> Amount:
    """Return the noise scale of a configuration from its own runs together, with its 95% interval over runs.

    Its runs are those that it was measured in; its remark is why it is unknown.
    """
    runs, own = configuration.runs, MEASURES[NOISE_KEYS[kind]]
    measure = replace(own, source=f"{own.source}: all traces over all squared norms")
    noise, interval = speeds.pooled_noise(runs, kind)
    if noise is None:
        reason = next((str(reason) for run in runs if (reason := run.noise(kind).reason)), "it was not measured")
        return Amount(measure, {}, None, len(runs), f"noise scale unknown: {reason}")
    values = {run.name: noise for run in runs if (found := run.noise(kind)).num_steps or found.value}
    return Amount(measure, values, noise, len(values), is_pooled=True, interval=interval)


@dataclass(frozen=True)
class Systems:
    """The configurations of a matrix with their runs."""

    record: SweepRecord
    cell_runs: tuple[CellRun, ...]  # the run of each cell
    verdicts: tuple[Verdict, ...] = ()  # verdicts on the configurations, whose changes tables show too
    matrices: Mapping[str, SweepRecord] = field(default_factory=dict)  # by the name that tables show
    allowed: frozenset[str] = frozenset()  # names of `runs.sameness.ALLOW`, besides the differences that the axes make
    # What all tables and figures use is computed once.
    _amounts: dict[tuple[str, Configuration], Amount] = field(default_factory=dict, init=False, repr=False)
    _differs: dict[tuple[Configuration, Configuration], Differs] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def configurations(self) -> tuple[Configuration, ...]:
        """The configurations in the order of the axes, including those without a finished run."""
        axes = [axis for axis in self.record.axes if not axis.is_seed]
        labels, kinds = [axis.label for axis in axes], {item.cell.kind for item in self.cell_runs}
        shown = {axis.label: axis.values for axis in axes}
        by_values = grouped(
            ((item.cell.kind, *(item.cell.values[label] for label in labels)), item) for item in self.cell_runs
        )
        keys = [(key, axis.label) for axis in axes for key in axis.keys]
        flat = [flatten(item.record.run.config) for item in self.cell_runs if item.record is not None]
        below_axes, below_seeds = (tuple(f"{key}." for key in some) for some in (dict(keys), _OF_A_SEED))
        options = [  # the single options that the axes vary
            option
            for option in dict.fromkeys(key for options in flat for key in options)
            if f"{option}.".startswith(below_axes) and not f"{option}.".startswith(below_seeds)
            and len({json.dumps(options.get(option), default=str) for options in flat}) > 1
        ]  # fmt: skip
        configurations = []
        for (kind, *names), cell_runs in by_values.items():
            values = dict(zip(labels, names, strict=True))
            label = values_label(axes, values) or self.record.name
            if len(kinds) > 1 and kind == "probe" and not any(PROBE in axis.keys for axis in axes):
                label += ", probe"
            cell, run = cell_runs[0].cell, next((item.record for item in cell_runs if item.record), None)
            settings: dict[str, Any] = {}
            for key, of_axis in keys:
                name = key.removeprefix(f"{ENV}.")
                if key == MATRIX:
                    settings[key] = shown[of_axis][values[of_axis]]
                elif key in (NPROC, NODES):
                    settings[key] = cell.num_processes if key == NPROC else cell.num_nodes
                elif name != key and (name in cell.environment or run is not None):
                    settings[key] = cell.environment.get(name, run and run.run.environment.get(name))
            if run is not None:  # processes, nodes and variables are known without a run, options are not
                settings |= {option: run.setting(option) for option in options}
            configurations.append(Configuration(label, values, tuple(cell_runs), settings))
        return tuple(configurations)

    @cached_property
    def baseline(self) -> Configuration | None:
        """The baseline: named by the matrix, or the first configuration; None when no run can be read."""
        named = (member for member in self.measured if self.record.baseline.items() <= member.values.items())
        return next(named, next(iter(self.measured), None))

    @cached_property
    def measured(self) -> tuple[Configuration, ...]:
        """The configurations with a finished and readable run."""
        return tuple(member for member in self.configurations if member.runs)

    @cached_property
    def runs(self) -> list[RunRecord]:
        """The finished and readable runs, in the order of the configurations."""
        return [run for member in self.measured for run in member.runs]

    @cached_property
    def unfinished(self) -> tuple[Unfinished, ...]:
        """The runs without a record that can be read."""
        lost = (item for item in self.cell_runs if item.record is None)
        return tuple(Unfinished(item.cell.name, item.folder, item.reason or "") for item in lost)

    @cached_property
    def noise_kind(self) -> NoiseKind:
        """The noise scale that the goodput of all configurations uses."""
        return speeds.noise_kind(self.runs)

    @cached_property
    def machines(self) -> Mapping[tuple[Hashable, str | None], list[RunRecord]]:
        """The runs grouped by kind of machine and name of the system, in the order of the runs."""
        of_system: dict[tuple[str | None, Any], list[RunRecord]] = {}
        for member in self.measured:
            system = self.matrix_of(member).system
            # By system, else by matrix: a run on one GPU does not record the links of its node, which others have.
            of_system.setdefault((system, system or member.settings.get(MATRIX)), []).extend(member.runs)
        return grouped(
            ((kind, system), run) for (system, _), runs in of_system.items()
            for kind, run in zip(machine_kinds(runs), runs, strict=True)
        )  # fmt: skip

    @cached_property
    def certificates(self) -> tuple[tuple[Certificate, ...], tuple[str, ...]]:
        """The certificates next to the runs, and notes on those that cannot be read."""
        return find_certificates(self.runs, ())

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What event logs of the runs lack, and what is damaged in them; empty if they are whole."""
        problems: list[Fault] = []
        warnings = log_warnings(self.runs, problems)
        return (*warnings, *(f"{plain(problem.message)}." for problem in problems))

    def differs(self, configuration: Configuration, base: Configuration | None = None) -> Differs:
        """Return the differences between the experiments of two configurations; None: its baseline."""
        base = base or self.baseline_of(configuration)
        if configuration is base or not configuration.runs or not base.runs:
            return Differs()
        if (pair := (configuration, base)) not in self._differs:
            of_probe = {"steps"} if configuration.is_probe != base.is_probe else set()
            keys = [key for axis in self.record.axes for key in (axis.keys or (axis.key,))]
            keys += [key for member in self.measured for key in member.settings]
            allowed = self.allowed | allowed_by_axes(keys) | of_probe
            self._differs[pair] = differs_of(base.runs, configuration.runs, allowed)
        return self._differs[pair]

    def baseline_of(self, configuration: Configuration) -> Configuration:
        """Return the baseline of a configuration, which has its values on the axes that the baseline does not name."""
        return self._baselines[configuration.label]

    @cached_property
    def _baselines(self) -> Mapping[str, Configuration]:
        base, named = self.baseline, self.record.baseline
        assert base is not None
        # The axes on which each configuration keeps its own value.
        kept = [axis.label for axis in self.record.axes if axis.label not in named] if named else self.record.select_per
        by_values = {(member.is_probe, *sorted(member.values.items())): member for member in self.measured}
        found = {}
        for member in self.configurations:
            own = {label: member.values[label] for label in kept if label in member.values}
            same = by_values.get((member.is_probe, *sorted({**base.values, **own}.items())))
            if same is None and own:
                # Without a run with the other values of the baseline, the first configuration with equal kept values:
                # comparing across kept axes would compare models, or machines of joined matrices.
                same = next((other for other in self.measured if own.items() <= other.values.items()), member)
            found[member.label] = same or base
        return found

    def amount(self, measure: Measure, configuration: Configuration, first: Configuration | None = None) -> Amount:
        """Return a measure of a configuration; `first` is the one that its speed-up is against, itself when None."""
        first = first or configuration
        if measure.key == SPEED_UP.key:
            return speed_up(first, configuration)
        if measure.key == SCALING.key:
            return speed_up(first, configuration, SCALING, configuration.world_size / first.world_size)
        if (place := (measure.key, configuration)) not in self._amounts:
            self._amounts[place] = self._amount(measure, configuration)
        return self._amounts[place]

    def _amount(self, measure: Measure, configuration: Configuration) -> Amount:
        """Return a measure that needs no first configuration."""
        if kind := next((kind for kind, key in NOISE_KEYS.items() if key == measure.key), None):
            return noise_amount(kind, configuration)
        if measure.key == EFFICIENCY.key:
            return self._efficiency(configuration)
        if measure.key == GOODPUT.key:  # samples/s times statistical efficiency, for each run and for all together
            share, rate = self.amount(EFFICIENCY, configuration), self.amount(MEASURES["samples_per_s"], configuration)
            if share.center is None or rate.center is None:
                return Amount(GOODPUT, {}, None, rate.num_runs, share.remark)
            values = {run: value * share.values.get(run, share.center) for run, value in rate.values.items()}
            # The efficiency column has the remark.
            return Amount(GOODPUT, values, rate.center * share.center, rate.num_runs)
        if configuration.is_probe and measure.key in ("train_s", "epoch_s", "total_s", "epoch_cost"):  # of a whole run
            return Amount(measure, {}, None, len(configuration.runs))
        if measure.unit == "price":
            price = self.matrix_of(configuration).price_per_device_hour
            own = cost(price or 0.0)[measure.key == "epoch_cost"]
            return amount(replace(measure, read=own.read), () if price is None else configuration.runs)
        return amount(measure, configuration.scored if measure.is_quality else configuration.runs)

    def _efficiency(self, configuration: Configuration) -> Amount:
        """Return the statistical efficiency of a configuration against the reference batch of the baseline."""
        kind, runs = self.noise_kind, configuration.runs
        noise = noise_amount(kind, configuration)
        base = speeds.reference_batch_of(self.baseline_of(configuration).runs[0])
        by_run = {run.name: speeds.efficiency_of(run, noise.center, base, kind) for run in runs}
        values = {name: value for name, value in by_run.items() if value is not None}
        if not values:
            return Amount(EFFICIENCY, {}, None, len(runs), noise.remark)
        if configuration.global_batch_size == base or not any(run.noise(kind).value for run in runs):
            # 1, or all by the same noise scale, so that there is no spread.
            return Amount(EFFICIENCY, values, statistics.fmean(values.values()), len(values), is_pooled=True)
        done = {run.name: measured_samples(run) or 0.0 for run in runs if run.name in values}
        weights = done if all(done.values()) else dict.fromkeys(done, 1.0)
        center = sum(weights[name] * values[name] for name in weights) / sum(weights.values())
        return Amount(EFFICIENCY, values, center, len(runs), noise.remark)

    def matrix_of(self, configuration: Configuration) -> SweepRecord:
        """Return the record of its matrix, which has the name of its system and the price of a device-hour."""
        return self.matrices.get(configuration.settings.get(MATRIX, ""), self.record)

    def drawn(self, limit: int = MAX_BARS) -> tuple[list[Configuration], str]:
        """Return the baseline and the fastest measured configurations, in their order; and a sentence about them."""
        members = [*self.measured]
        if len(members) <= limit:
            return members, ""
        # One of unknown speed is not known to be slow: it is drawn.
        rates = [(self.amount(MEASURES["samples_per_s"], member).center, member) for member in members]
        rates.sort(key=lambda pair: (pair[1] is not self.baseline, -math.inf if pair[0] is None else -pair[0]))
        drawn = {id(member) for _, member in rates[:limit]}
        sentence = f"Drawn: the {limit} fastest of {len(members)} configurations (by samples/s); the table has all."
        return [member for member in members if id(member) in drawn], sentence
