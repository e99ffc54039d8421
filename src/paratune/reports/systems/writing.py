"""Formats the measures of configurations: one unit and one number of decimals for a column."""

from collections.abc import Sequence
from dataclasses import dataclass

from paratune.base.units import NOT_AVAILABLE
from paratune.reports.rows.row import byte_unit, decimals
from paratune.reports.systems.measures import Amount, ReportMeasure

_SECONDS = ((36_000.0, "h", 3600.0), (1_200.0, "min", 60.0), (0.0, "s", 1.0))
"""Smallest largest value, unit and its seconds, for each unit of time."""


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
        return NOT_AVAILABLE if value is None else f"{value / self.size:,.{self.places}f}"

    def label(self, name: str) -> str:
        return f"{name} ({self.unit})" if self.unit else name


def column_scale(measure: ReportMeasure, values: Sequence[float | None]) -> ColumnScale:
    """Return how the values of a column are written.

    Args:
        measure: What they are.
        values: In the measure's own unit.
    """
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
    few = f" ({len(amount.values)} of {amount.num_runs})" if len(amount.values) < amount.num_runs else ""
    return f"{scale.text(amount.center)}{spread}{few}"
