"""A measure over the runs of a configuration, and the text of values: all numbers of all tables are formatted here."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from paratune.base.units import GIB, KIB, MIB, NOT_AVAILABLE
from paratune.records.finished import RunRecord
from paratune.reports.measures import Measure, Unit


@dataclass(frozen=True)
class Amount:
    """A measure over the runs of a configuration."""

    measure: Measure
    values: Mapping[str, float]  # of each run that has one, or of each seed, by its name
    center: float | None  # totals over totals for a rate, else the mean; None when no run has a value
    num_runs: int  # runs, or seeds, that could have a value
    remark: str = ""  # how it was computed, or why it is unknown, if that differs from the measure
    is_pooled: bool = False  # one value of all runs together, such as a ratio of means: it has no spread
    interval: tuple[float, float] | None = None  # 95% confidence interval of such a value, over several runs

    @cached_property
    def deviation(self) -> float | None:
        """Sample standard deviation (n - 1) over the runs; None for fewer than two runs."""
        if len(self.values) < 2 or self.is_pooled:
            return None
        try:
            return statistics.stdev(self.values.values())
        except OverflowError:  # beyond the largest number
            return None


def mean(values: Collection[float]) -> float | None:
    """Return the mean; None without values."""
    try:
        return statistics.fmean(values) if values else None
    except OverflowError:  # the sum; the mean is within the range of numbers
        return statistics.mean(values)


def amount(measure: Measure, runs: Sequence[RunRecord]) -> Amount:
    """Return a measure over runs of one configuration; of a score, over the runs whose scores count."""
    known = {run.name: value for run in runs if (value := measure.of(run)) is not None}
    found = Amount(measure, known, mean(known.values()), len(runs))
    if measure.unit != "rate" or not known:
        return found
    # Total work divided by total time: each run did, up to a factor that is the same for all, as much as it has
    # measured steps of its global batch. Where that is unknown, the rate of equal amounts of work; the arithmetic
    # mean would be that of equal times.
    work = [samples for run in runs if run.name in known and (samples := measured_samples(run)) is not None]
    if min(known.values()) <= 0:
        return replace(found, center=None)
    if len(work) < len(known):
        return replace(found, center=statistics.harmonic_mean([*known.values()]))
    total_s = sum(samples / rate for samples, rate in zip(work, known.values(), strict=True))
    return replace(found, center=sum(work) / total_s if total_s else None)


def measured_samples(run: RunRecord) -> float | None:
    """Return the samples of the measured steps of a run, up to a factor that is equal for runs of a configuration."""
    steps, size = run.summary.throughput.num_steps_measured, run.run.batch.global_batch_size
    return None if steps is None or size is None else steps * size


_MOST_DIGITS = 1e15  # larger values have an exponent


@dataclass(frozen=True)
class Scale:
    """Format of values that stand beside each other."""

    unit: str  # in the label; empty if there is none
    size: float  # of the unit, in the unit of the values
    places: int | None  # decimals; None for values as they are, such as a seed
    end: str = ""  # after each value

    def text(self, value: Any) -> str:
        """Return one value; a text, such as the values of several sessions, unchanged."""
        if value is None:
            return NOT_AVAILABLE
        if isinstance(value, str) or self.places is None:
            return str(value)
        if self.unit == "mm:ss" and abs(value) < _MOST_DIGITS:
            return "{:02}:{:02}".format(*divmod(round(value), 60))
        shown = value / self.size
        if not math.isfinite(shown):
            return NOT_AVAILABLE
        return f"{shown:,.{self.places}f}{self.end}" if abs(shown) < _MOST_DIGITS else f"{shown:.3g}{self.end}"

    def label(self, name: str) -> str:
        return f"{name} ({self.unit})" if self.unit else name


_UNITS: Mapping[str, Sequence[tuple[float, str, float]]] = {
    "s": ((36_000.0, "h", 3600.0), (1_200.0, "min", 60.0), (0.0, "s", 1.0)),
    "ms": ((10_000.0, "s", 1000.0), (0.0, "ms", 1.0)),
    "bytes": ((GIB, "GiB", GIB), (MIB, "MiB", MIB), (0.0, "KiB", KIB)),
    "joules": ((10_000.0, "kJ", 1000.0), (0.0, "J", 1.0)),
    "flops": ((1e12, "TFLOP/s", 1e12), (0.0, "GFLOP/s", 1e9)),
    "hours": ((0.0, "h", 1.0),),
    "watts": ((0.0, "W", 1.0),),
}
"""For each kind of unit the smallest largest value, the name and the size of the unit."""


_FIXED: Mapping[str, Scale] = {
    "share": Scale("%", 0.01, 1),
    "percent": Scale("%", 1.0, 1),
    "score": Scale("", 1.0, 4),
    "count": Scale("", 1.0, 0),
    "text": Scale("", 1.0, None),
    "factor": Scale("", 1.0, 2, "×"),
}


def scale_of(unit: Unit, values: Iterable[Any]) -> Scale:
    """Return the format of values in a unit of measures."""
    if unit in _FIXED:
        return _FIXED[unit]
    known = [value for value in values if isinstance(value, int | float)]
    most = max(map(abs, known), default=0.0)
    units = _UNITS.get(unit, ((0.0, "", 1.0),))
    name, size = next((name, size) for least, name, size in units if most >= least)
    return Scale(name, size, decimals([value / size for value in known]))


def decimals(values: Iterable[float | None]) -> int:
    """Return the decimals that give the smallest value three significant digits and the largest at most five.

    At most 3; zeros and unknown values are ignored.
    """
    known = [abs(value) for value in values if value]
    if not known:
        return 3
    least, most = (math.floor(math.log10(value)) for value in (min(known), max(known)))
    return min(3, max(0, 2 - least), max(0, 4 - most))


def amount_text(amount: Amount, scale: Scale) -> str:
    """Return the value with its spread over runs."""
    if amount.center is None:
        return NOT_AVAILABLE
    spread = "" if amount.deviation is None else f" ± {scale.text(amount.deviation)}"
    if amount.interval is not None:
        spread = " [{}, {}]".format(*map(scale.text, amount.interval))
    few = f" ({len(amount.values)} of {amount.num_runs})" if len(amount.values) < amount.num_runs else ""
    return f"{scale.text(amount.center)}{spread}{few}"
