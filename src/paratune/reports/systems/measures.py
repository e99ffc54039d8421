"""The measures of runs, how they are aggregated over the runs of a configuration, and their format.

Of each run a figure is what its record has: totals, or totals over totals. Over runs, rates are again totals over
totals (all samples over all of their time); other figures are means. The spread is that of the runs' own figures.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from paratune.base.units import NOT_AVAILABLE
from paratune.config.metric_names import direction
from paratune.records import ALL_PHASES
from paratune.records.efficiency import NOISE_KINDS, noise_field
from paratune.reports.rows.devices import device_hours
from paratune.reports.rows.row import byte_unit, decimals
from paratune.reports.rows.scores import metric_name
from paratune.reports.rows.speed import EPOCH_SOURCE, EPOCH_SOURCES, PHASE_NAMES, epoch_s, step_ms, step_part_ms
from paratune.reports.runs.read import RunRecord, number_in, steps_taken

_SECONDS = ((36_000.0, "h", 3600.0), (1_200.0, "min", 60.0), (0.0, "s", 1.0))
"""Smallest largest value, unit and its seconds, for each unit of time."""
Form = Literal["seconds", "ms", "bytes", "rate", "share", "score", "joules", "hours", "price", "count"]
"""Kind of a measure, which decides its format."""


@dataclass(frozen=True)
class ReportMeasure:
    """A measure of runs."""

    key: str
    """Name in CSV and JSON, with the unit last."""
    label: str
    """Label without the unit, which depends on the size of the values."""
    form: Form
    better: int
    """1 if more is better, -1 if less is better, 0 if neither."""
    source: str
    """Fields of the record, and the computation."""
    read: Callable[[RunRecord], float | None] = lambda run: None
    """Reads the measure of a run; None for measures of configurations."""
    is_quality: bool = False
    """Whether it measures quality: unknown for probes, and repeats count once."""


@dataclass(frozen=True)
class Amount:
    """A measure over the runs of a configuration."""

    measure: ReportMeasure
    values: Mapping[str, float]
    """Value of each run that has one, by the run's name."""
    center: float | None
    """Totals over totals for a rate, else the mean; None when no run has a value."""
    num_runs: int
    """Number of runs that could have a value."""
    remark: str = ""
    """How the value was computed, or why it is unknown, if that differs from the measure."""
    is_of_all: bool = False
    """Whether it is one value for all runs together, such as a ratio, without a spread."""
    interval: tuple[float, float] | None = None
    """95% confidence interval of such a value; None where there is one run."""

    @cached_property
    def deviation(self) -> float | None:
        """Sample standard deviation (n - 1) over the runs; None for fewer than two runs."""
        return statistics.stdev(self.values.values()) if len(self.values) > 1 and not self.is_of_all else None

    @property
    def median(self) -> float | None:
        return statistics.median(self.values.values()) if self.values else None


def _number(key: str, label: str, form: Form, better: int, source: str) -> ReportMeasure:
    return ReportMeasure(key, label, form, better, source, lambda run: run.number(source))


def _step_part(phase: str) -> ReportMeasure:
    source = f"summary.phases.{phase}.total_s over summary.throughput.num_steps_measured"
    return ReportMeasure(f"{phase}_mean_ms", PHASE_NAMES[phase], "ms", -1, source, lambda run: step_part_ms(run, phase))


def _total_part(phase: str) -> ReportMeasure:
    source = f"summary.ranks[].phases_total_s.{phase}, mean over ranks, all steps"
    return ReportMeasure(f"{phase}_s", PHASE_NAMES[phase], "seconds", -1, source, lambda run: phase_total_s(run, phase))


def phase_total_s(run: RunRecord, phase: str) -> float | None:
    """Return the seconds of a phase over all steps of a run, averaged over the ranks.

    A record without the totals of its ranks has those of the measured steps, which are scaled to all steps.
    """
    totals = [rank.get("phases_total_s") for rank in run.objects("summary.ranks")]
    values = [number_in(phases.get(phase)) for phases in totals if isinstance(phases, Mapping)]
    known = [value for value in values if value is not None]
    if known and len(known) == len(totals):
        return statistics.fmean(known)
    mean_ms, steps = step_part_ms(run, phase), steps_taken(run)
    return None if mean_ms is None or steps is None else mean_ms * steps / 1000


TRAIN_S = _number("train_s", "Training time", "seconds", -1, "summary.time.train_s")
EPOCH_S = ReportMeasure("epoch_s", "Time per epoch", "seconds", -1, EPOCH_SOURCE, epoch_s)
TOTAL_S = _number("total_s", "Whole run", "seconds", -1, "summary.time.total_s")
SAMPLES_PER_S = _number("samples_per_s", "Samples/s", "rate", 1, "summary.throughput.samples_per_s")
TOKENS_PER_S = _number("tokens_per_s", "Real tokens/s", "rate", 1, "summary.throughput.tokens_per_s")
_STEPS = "summary.throughput.num_steps_measured"
STEP_MS = ReportMeasure("step_mean_ms", "Mean step", "ms", -1, f"summary.phases.*.total_s over {_STEPS}", step_ms)
PEAK_BYTES = _number("peak_memory_largest_bytes", "Peak memory per device", "bytes", -1, "summary.memory.largest_bytes")
SUM_BYTES = _number("peak_memory_sum_bytes", "Total memory", "bytes", -1, "summary.memory.sum_bytes")
UTILISATION = _number("utilisation", "Utilisation", "share", 1, "summary.utilisation.mean")
MFU = _number("mfu", "MFU", "share", 1, "summary.flops.mfu")
ENERGY_J = _number("energy_j", "Energy", "joules", -1, "summary.utilisation.energy_j")
COMMUNICATION = _number("communication_share", "Communication", "share", -1, "summary.communication.share")
_EXPOSED = "summary.communication.exposed_share"
EXPOSED = _number("exposed_communication_share", "Exposed communication", "share", -1, _EXPOSED)
WAITING = _number("wait_share", "Waiting for ranks", "share", -1, "summary.stragglers.wait_share")
GET_BATCH_SHARE = _number("get_batch_share", "Loader wait", "share", -1, "summary.phases.get_batch.share")
BUBBLE = _number("bubble_share", "Pipeline bubble", "share", -1, "summary.pipeline.bubble_share")
PADDING = _number("padding_share", "Padding", "share", -1, "summary.throughput.padding_share")
_HOURS = "summary.time.total_s times run.world_size"
DEVICE_HOURS = ReportMeasure("device_hours", "Device-hours", "hours", -1, _HOURS, device_hours)
STEP_PARTS = tuple(_step_part(phase) for phase in ALL_PHASES)
TOTAL_PARTS = tuple(_total_part(phase) for phase in ALL_PHASES)

RESOURCES = (
    UTILISATION, MFU, COMMUNICATION, EXPOSED, WAITING, GET_BATCH_SHARE, BUBBLE, PADDING, ENERGY_J, TOTAL_S,
    DEVICE_HOURS,
)  # fmt: skip
"""Measures of resources: utilisation, communication, waiting, energy and device-hours."""
_SOURCES = (
    *(measure.source for measure in (SAMPLES_PER_S, TOKENS_PER_S, PEAK_BYTES, SUM_BYTES, *RESOURCES[:-1])),
    *EPOCH_SOURCES,
    *(f"summary.phases.{phase}.total_s" for phase in ALL_PHASES),
    "run.world_size", "run.batch.global_batch_size", "summary.throughput.num_steps_measured",
    *(noise_field(kind, key) for kind in NOISE_KINDS for key in ("value", "trace", "squared_norm", "num_steps")),
)  # fmt: skip
"""Fields of the record that measures are computed from."""


def score(split: str, metric: str) -> ReportMeasure:
    """Return the measure of a score."""
    try:
        better = 1 if direction(metric) == "max" else -1
    except KeyError:  # a metric of a later version
        better = 0
    path = ("summary", "scores", split, metric)
    key, label = f"{split}_{metric}", f"{split.capitalize()} {metric_name(metric).rstrip(' ↑↓')}"
    return ReportMeasure(key, label, "score", better, ".".join(path), lambda run: run.number(path), is_quality=True)


def check_numbers(run: RunRecord) -> None:
    """Check that every measured field is a number or unknown, and that the slices are complete.

    Raises:
        CheckpointError: The record contains something else.
    """
    for source in _SOURCES:
        run.number(source)
    _ = run.slices
    scores = run.get("summary.scores")
    for split, split_scores in scores.items() if isinstance(scores, Mapping) else ():
        for metric in split_scores if isinstance(split_scores, Mapping) else ():
            run.number(("summary", "scores", str(split), str(metric)))


def cost(price: float) -> ReportMeasure:
    """Return the measure of the cost of a run, for a price of a device-hour."""

    def read(run: RunRecord) -> float | None:
        hours = device_hours(run)
        return None if hours is None else hours * price

    return ReportMeasure("cost", "Cost", "price", -1, f"device-hours times {price:g}", read)


def amount(measure: ReportMeasure, runs: Sequence[RunRecord]) -> Amount:
    """Return a measure over runs of one configuration; of a score, over the runs whose scores count."""
    values = {run.name: value for run in runs if (value := measure.read(run)) is not None}
    if measure.form == "rate" and values:
        return Amount(measure, values, _pooled([run for run in runs if run.name in values], values), len(runs))
    return Amount(measure, values, statistics.fmean(values.values()) if values else None, len(runs))


def _pooled(runs: Sequence[RunRecord], rates: Mapping[str, float]) -> float | None:
    """Return the rate of several runs: total work divided by total time.

    Each run did, up to a factor that is the same for all, as much as it has measured steps of its global batch.
    """
    parts = [(measured_samples(run), rates[run.name]) for run in runs]
    if any(rate <= 0 for _, rate in parts):
        return None
    if any(done is None for done, _ in parts):
        # The rate of equal amounts of work; the arithmetic mean would be that of equal times.
        return statistics.harmonic_mean([rate for _, rate in parts])
    done = [samples or 0.0 for samples, _ in parts]
    return (
        sum(done) / sum(samples / rate for samples, (_, rate) in zip(done, parts, strict=True)) if sum(done) else None
    )


def measured_samples(run: RunRecord) -> float | None:
    """Return the samples of the measured steps of a run, up to a factor that is equal for runs of a configuration."""
    steps, size = run.number("summary.throughput.num_steps_measured"), run.number("run.batch.global_batch_size")
    return None if steps is None or size is None else steps * size


@dataclass(frozen=True)
class ColumnScale:
    """Format of the values of a column."""

    unit: str
    """Unit in the label of the column; empty if there is none."""
    size: float
    """Size of the unit, in the unit of the values."""
    places: int

    def text(self, value: float | None) -> str:
        """Return one value."""
        if value is not None and self.unit == "mm:ss":
            return "{:02}:{:02}".format(*divmod(round(value), 60))
        return NOT_AVAILABLE if value is None else f"{value / self.size:,.{self.places}f}"

    def label(self, name: str) -> str:
        return f"{name} ({self.unit})" if self.unit else name


def column_scale(measure: ReportMeasure, values: Sequence[float | None]) -> ColumnScale:
    """Return the format of the values of a column, which are in the measure's own unit."""
    known = [value for value in values if value is not None]
    most = max((abs(value) for value in known), default=0.0)
    match measure.form:
        case "bytes":
            unit, num_bytes = byte_unit(known)
            return ColumnScale(unit, num_bytes, decimals([value / num_bytes for value in known]))
        case "seconds":
            unit, size = next((unit, size) for least, unit, size in _SECONDS if most >= least)
            return ColumnScale(unit, size, decimals([value / size for value in known]))
        case "ms" if most >= 10_000:
            return ColumnScale("s", 1000.0, decimals([value / 1000 for value in known]))
        case "share":
            return ColumnScale("%", 0.01, 1)
        case "score":
            return ColumnScale("", 1.0, 4)
        case "joules":
            unit, size = ("kJ", 1000.0) if most >= 10_000 else ("J", 1.0)
            return ColumnScale(unit, size, decimals([value / size for value in known]))
    return ColumnScale({"ms": "ms", "hours": "h"}.get(measure.form, ""), 1.0, decimals(known))


def amount_text(amount: Amount, scale: ColumnScale) -> str:
    """Return the value with its spread over runs."""
    if amount.center is None:
        return NOT_AVAILABLE
    spread = "" if amount.deviation is None else f" ± {scale.text(amount.deviation)}"
    if amount.interval is not None:
        spread = " [{}, {}]".format(*map(scale.text, amount.interval))
    few = f" ({len(amount.values)} of {amount.num_runs})" if len(amount.values) < amount.num_runs else ""
    return f"{scale.text(amount.center)}{spread}{few}"
