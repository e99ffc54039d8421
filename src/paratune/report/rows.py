"""Rows of the comparison table: one figure of all runs, each cell with the record that it came from."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paratune.base.units import GIB, KIB, MIB, NOT_AVAILABLE
from paratune.report.read import RunRecord

Texts = Callable[[Sequence[Any]], list[str]]


@dataclass(frozen=True)
class FigureCell:
    """A figure of one run."""

    run: str
    value: Any
    """The figure in the unit of the row; None where it is unknown."""
    text: str
    source: str
    """Where in the record it stands, or from what it was computed."""

    @property
    def says_something(self) -> bool:
        """Whether it is known, or says what else is."""
        return self.value is not None or self.text != NOT_AVAILABLE


@dataclass(frozen=True)
class ReportRow:
    """One figure of all runs."""

    key: str
    """Its name in CSV and JSON, with the unit last."""
    group: str
    label: str
    cells: tuple[FigureCell, ...]
    shown: bool
    """False for what only CSV and JSON hold."""
    metric: str | None = None
    """Of the scores of a set, which of its metrics this is."""
    footnote: str = ""
    """What a mark in the label refers to."""


def decimals(values: Sequence[float | None]) -> int:
    """Return how many decimals give the smallest of the values three significant digits, and the largest at most five.

    At most 3; zeros and unknown values do not count.
    """
    known = [abs(value) for value in values if value]
    if not known:
        return 3
    least, most = (math.floor(math.log10(value)) for value in (min(known), max(known)))
    return min(3, max(0, 2 - least), max(0, 4 - most))


def numbers(values: Sequence[float | None]) -> list[str]:
    """Return numbers with the same count of decimals, so that they align."""
    places = decimals(values)
    return [NOT_AVAILABLE if value is None else f"{value:,.{places}f}" for value in values]


def byte_unit(values: Sequence[float | None]) -> tuple[str, int]:
    """Return the binary unit that suits the largest of the values, by name and in bytes."""
    largest = max((value for value in values if value is not None), default=0.0)
    return next(((name, size) for name, size in (("GiB", GIB), ("MiB", MIB)) if largest >= size), ("KiB", KIB))


def make_row(
    runs: Sequence[RunRecord], key: str, group: str, label: str, source: str | Sequence[str],
    values: Sequence[Any], texts: Sequence[str] | None = None, *, shown: bool = True,
) -> ReportRow:  # fmt: skip
    """Return a row; without texts a value is written as it is."""
    written = [NOT_AVAILABLE if value is None else str(value) for value in values] if texts is None else texts
    sources = [source] * len(runs) if isinstance(source, str) else source
    cells = zip(runs, values, written, sources, strict=True)
    return ReportRow(
        key, group, label, tuple(FigureCell(run.name, value, text, of) for run, value, text, of in cells), shown
    )


def number_row(
    runs: Sequence[RunRecord], key: str, group: str, label: str, source: str, texts: Texts, *, shown: bool = True
) -> ReportRow:
    """Return the row of a number that stands in the record at `source`."""
    values = [run.number(source) for run in runs]
    return make_row(runs, key, group, label, source, values, texts(values), shown=shown)


def texts_of(text: Callable[[float | None], str]) -> Texts:
    """Return what writes each number by itself."""
    return lambda values: [text(value) for value in values]


def count_text(value: float | None) -> str:
    """Return a count with thousands set off."""
    return NOT_AVAILABLE if value is None else f"{value:,.0f}"
