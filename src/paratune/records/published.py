"""Figures and claims that a study published, as `sweep.json` of its matrix holds them.

A figure is keyed by values of the axes and a measure; a claim compares configurations of the matrix. Floor 1: no torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from paratune.base.units import GIB, KIB, MIB
from paratune.config.metric_names import METRICS

ClaimKind = Literal["less", "not_less", "equal", "worse"]
"""What a claim says of the measure of `of` beside that of `than`.

less: smaller by at least a share. not_less: not smaller by more than a share. equal: a score within a margin. worse: a
score that is worse by more than a margin."""
CLAIM_KINDS: tuple[ClaimKind, ...] = get_args(ClaimKind)
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
"""What is measured of a run besides scores: the words for it, and the units with their size in s, bytes or 1."""
METRIC_NAMES = tuple(dict.fromkeys(name for names in METRICS.values() for name in names))


def units_of(measure: str) -> Mapping[str, float]:
    """Return the units in which a figure of a measure may be written, with their sizes; a score has "" or "%"."""
    return SYSTEM_MEASURES[measure][1] if measure in SYSTEM_MEASURES else _SHARE


@dataclass(frozen=True)
class PublishedFigure:
    """One published figure."""

    values: Mapping[str, str]
    """The name of the value on each axis that it is of, by the axis' label."""
    measure: str
    """Of `SYSTEM_MEASURES`, or a metric."""
    value: float
    """In its unit."""
    unit: str
    """As it was written; empty for a score between 0 and 1, and for a rate."""
    source: str
    """The publication."""
    where: str
    """The table, figure or page in it; empty where the file does not say."""


@dataclass(frozen=True)
class ComparedPair:
    """Two configurations that a claim compares, each by the names of its values on some axes."""

    of: Mapping[str, str]
    than: Mapping[str, str]


@dataclass(frozen=True)
class PublishedClaim:
    """One claim."""

    text: str
    """In words."""
    kind: ClaimKind
    measure: str
    """Of `SYSTEM_MEASURES` for less and not_less, else a metric."""
    by: float
    """The share of less and not_less; the margin of the others, in the unit of the metric."""
    pairs: tuple[ComparedPair, ...]
    """All of them have to hold."""
    source: str
    where: str


@dataclass(frozen=True)
class Published:
    """What a study published of a matrix."""

    figures: tuple[PublishedFigure, ...] = ()
    claims: tuple[PublishedClaim, ...] = ()

    def with_values(self, change: Callable[[Mapping[str, str]], Mapping[str, str] | None]) -> "Published":
        """Return the same with other names of values, without what `change` returns None for."""
        figures = [replace(each, values=new) for each in self.figures if (new := change(each.values)) is not None]
        claims = []
        for claim in self.claims:
            pairs = [(change(pair.of), change(pair.than)) for pair in claim.pairs]
            known = tuple(ComparedPair(of, than) for of, than in pairs if of is not None and than is not None)
            claims += [replace(claim, pairs=known)] * (len(known) == len(pairs))
        return Published(tuple(figures), tuple(claims))


def published_of(found: Mapping[str, Any] | None) -> Published | None:
    """Return what sweep.json holds of it; None where the matrix names nothing published.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It holds something else.
    """
    if found is None:
        return None
    claims = [
        PublishedClaim(**{**claim, "pairs": tuple(ComparedPair(**pair) for pair in claim["pairs"])})
        for claim in found["claims"]
    ]
    figures = [PublishedFigure(**figure) for figure in found["figures"]]
    for measure in [*(figure.measure for figure in figures), *(claim.measure for claim in claims)]:
        if measure not in SYSTEM_MEASURES and measure not in METRIC_NAMES:
            raise ValueError(f"measure {measure!r}")
    if any(figure.unit not in units_of(figure.measure) for figure in figures):
        raise ValueError("a published figure has a unit that does not belong to its measure")
    if any(claim.kind not in CLAIM_KINDS for claim in claims):
        raise ValueError("a published claim has an unknown kind")
    return Published(tuple(figures), tuple(claims))
