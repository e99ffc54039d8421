"""Published figures and claims of a study in the `sweep.json` of its matrix.

A figure belongs to values of axes and a measure; a claim compares configurations of the matrix.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from paratune.base.units import GIB, KIB, MIB
from paratune.config.metric_names import METRICS

ClaimKind = Literal["less", "not_less", "equal", "worse"]
"""How the measure of `of` compares with that of `than`.

less: smaller by at least a share. not_less: not smaller by more than a share. equal: a score within a margin. worse: a
score that is worse by more than a margin."""
RATIO_CLAIMS = frozenset({"less", "not_less"})

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES = {
    "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": float(KIB), "MiB": float(MIB), "GiB": float(GIB), "TiB": float(2**40),
}  # fmt: skip
_SHARE = {"%": 0.01, "": 1.0}
SYSTEM_MEASURES: dict[str, tuple[str, Mapping[str, float]]] = {
    "time": ("training time", _SECONDS),
    "total_time": ("time of the whole run", _SECONDS),
    "memory": ("peak memory per device", _BYTES),
    "total_memory": ("total memory", _BYTES),
    "state_memory": ("model states per device", _BYTES),
    "samples_per_s": ("samples/s", {"": 1.0}),
    "utilisation": ("utilisation", _SHARE),
}
"""Measures of a run other than scores: title, and units with their size in s, bytes or 1."""
NOT_ALLOCATED = ("context", "fragmentation", "nccl")
"""Terms of a planned peak that `torch.cuda.max_memory_allocated` does not count."""
METRIC_NAMES = tuple(dict.fromkeys(name for names in METRICS.values() for name in names))


def measure_units(measure: str) -> Mapping[str, float]:
    """Return the allowed units of a measure with their sizes; a score has "" or "%".

    Raises:
        ValueError: It is neither in `SYSTEM_MEASURES` nor a metric.
    """
    if measure not in SYSTEM_MEASURES and measure not in METRIC_NAMES:
        raise ValueError(f"{measure!r} is no measure")
    return SYSTEM_MEASURES[measure][1] if measure in SYSTEM_MEASURES else _SHARE


@dataclass(frozen=True)
class PublishedFigure:
    values: Mapping[str, str]
    """Name of its value on each of its axes, by the label of the axis."""
    measure: str
    value: float
    unit: str
    """As in the file; empty for a score between 0 and 1, and for a rate."""
    where: str
    """The table, figure or page of the publication; empty if unknown."""

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown measure, or a unit that does not belong to it."""
        if self.unit not in measure_units(self.measure):
            raise ValueError(f"{self.measure} has no unit {self.unit!r}")


@dataclass(frozen=True)
class ComparedPair:
    """Two configurations that a claim compares, by the names of their values on some axes."""

    of: Mapping[str, str]
    than: Mapping[str, str]


@dataclass(frozen=True)
class PublishedClaim:
    text: str
    kind: ClaimKind
    measure: str
    """Of `SYSTEM_MEASURES` for less and not_less, otherwise a metric."""
    by: float
    """The share for less and not_less; the margin for the others, in the unit of the metric."""
    pairs: tuple[ComparedPair, ...]
    """The claim is true if it is true for all pairs."""
    where: str

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown measure."""
        measure_units(self.measure)


@dataclass(frozen=True)
class Published:
    source: str = ""
    figures: tuple[PublishedFigure, ...] = ()
    claims: tuple[PublishedClaim, ...] = ()
