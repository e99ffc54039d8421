"""`ReportRow`: one figure of all runs, with the record field that each cell comes from."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paratune.base.units import GIB, KIB, MIB, NOT_AVAILABLE, format_as, format_share
from paratune.reports.runs.read import RunRecord
from paratune.reports.tables.table import TableCell

Texts = Callable[[Sequence[Any]], list[str]]


@dataclass(frozen=True)
class ReportRow:
    """One figure of all runs."""

    key: str
    """Name in CSV and JSON, with the unit last."""
    group: str
    label: str
    cells: tuple[TableCell, ...]
    """One cell for each run; `runs` of a cell is the name of the run."""
    shown: bool
    """Whether the tables show it; CSV and JSON have all rows."""
    metric: str | None = None
    """Name of the metric, if the row has scores."""
    footnote: str = ""
    """Note for the mark in the label."""


def decimals(values: Sequence[float | None]) -> int:
    """Return the decimals that give the smallest value three significant digits and the largest at most five.

    At most 3; zeros and unknown values are ignored.
    """
    known = [abs(value) for value in values if value]
    if not known:
        return 3
    least, most = (math.floor(math.log10(value)) for value in (min(known), max(known)))
    return min(3, max(0, 2 - least), max(0, 4 - most))


def numbers(values: Sequence[float | None], size: float = 1.0) -> list[str]:
    """Return numbers, divided by the size of their unit, with the same number of decimals, so that they align."""
    scaled = [None if value is None else value / size for value in values]
    form = f",.{decimals(scaled)}f"
    return [format_as(value, form) for value in scaled]


def byte_unit(values: Sequence[float | None]) -> tuple[str, int]:
    """Return the binary unit for the largest value: its name and its size in bytes."""
    largest = max((value for value in values if value is not None), default=0.0)
    return next(((name, size) for name, size in (("GiB", GIB), ("MiB", MIB)) if largest >= size), ("KiB", KIB))


@dataclass(frozen=True)
class RowBuilder:
    """Creates the rows of a group of figures."""

    runs: Sequence[RunRecord]
    group: str

    def row(
        self, key: str, label: str, source: str | Sequence[str], values: Sequence[Any],
        texts: Sequence[str] | None = None, *, shown: bool = True,
    ) -> ReportRow:  # fmt: skip
        """Return a row; without texts, the cells show the values unformatted."""
        shown_texts = [NOT_AVAILABLE if value is None else str(value) for value in values] if texts is None else texts
        sources = [source] * len(self.runs) if isinstance(source, str) else source
        fields = zip(self.runs, values, shown_texts, sources, strict=True)
        cells = tuple(TableCell(text, value, (run.name,), field) for run, value, text, field in fields)
        return ReportRow(key, self.group, label, cells, shown)

    def number(self, key: str, label: str, source: str, texts: Texts, *, shown: bool = True) -> ReportRow:
        """Return the row of the number in the field `source` of the records."""
        values = [run.number(source) for run in self.runs]
        return self.row(key, label, source, values, texts(values), shown=shown)

    def pair(
        self, key: str, label: str, sources: Sequence[str], text: Callable[[float | None, float | None], str]
    ) -> ReportRow:
        """Return the row of the number in the first of two fields, whose texts contain the second one, too."""
        first, second = ([run.number(source) for run in self.runs] for source in sources)
        texts = [text(*values) for values in zip(first, second, strict=True)]
        return self.row(key, label, ", ".join(sources), first, texts)

    def text(self, key: str, label: str, source: str, *, shown: bool = False) -> ReportRow:
        """Return the row of the text in the field `source` of the records."""
        return self.row(key, label, source, [run.get(source) for run in self.runs], shown=shown)


def formatted(text: Callable[[float | None], str]) -> Texts:
    """Return a function that formats each number separately."""
    return lambda values: [text(value) for value in values]


def in_form(form: str) -> Texts:
    """Return a function that formats numbers as `format_as` does."""
    return formatted(lambda value: format_as(value, form))


def count_text(value: float | None) -> str:
    """Return a count with thousands separators."""
    return format_as(value, ",.0f")


counts, percentages = formatted(count_text), formatted(format_share)
