"""Changes of runs against a baseline run, in per cent, and whether each change is an improvement."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paratune.base.units import format_percent, percent_change
from paratune.config.metric_names import direction
from paratune.reports.rows.row import ReportRow
from paratune.reports.tables.table import TableCell

LOWER_IS_BETTER = frozenset(
    {
        *("train_s", "epoch_s", "total_s", "step_median_ms", "peak_memory_largest_bytes", "peak_memory_sum_bytes"),
        *("energy_j", "device_hours", "cost"),
    }
)
HIGHER_IS_BETTER = frozenset({"samples_per_s", "tokens_per_s", "goodput", "mfu"})


@dataclass(frozen=True)
class Change:
    """A figure of a run compared with that of the baseline."""

    run: str
    figure: str
    """The figure of the run, as the comparison table shows it."""
    percent: float | None
    """Change in per cent of the baseline; None when a figure is unknown or that of the baseline is not above 0."""
    rose: bool
    """Whether the figure is above that of the baseline."""
    same: bool
    """Whether the figures are equal, or differ by less than the shown per cent can express."""
    better: bool | None
    """Whether the change is an improvement; None when the figures are the same or one is unknown."""

    @property
    def text(self) -> str:
        """Such as "−21.4% ↓ better" and "0.0% the same"; without per cent where the figure of the baseline is 0."""
        if self.same:
            return "the same" if self.percent is None else f"{format_percent(self.percent)} the same"
        side = "" if self.better is None else f" {'↑' if self.rose else '↓'} {'better' if self.better else 'worse'}"
        return f"{format_percent(self.percent)}{side}"


@dataclass(frozen=True)
class ChangeRow:
    """A figure of the baseline and its changes in all other runs."""

    key: str
    group: str
    label: str
    figure: str
    """The figure of the baseline."""
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Against:
    """All figures with a better side, compared with those of one run."""

    baseline: str
    """Name of the run."""
    rows: tuple[ChangeRow, ...]

    def as_dict(self) -> dict[str, Any]:
        changes = {
            row.key: {change.run: {"percent": change.percent, "better": change.better} for change in row.changes}
            for row in self.rows
        }
        return {"run": self.baseline, "changes": changes}


def against(baseline: str, rows: Sequence[ReportRow]) -> Against:
    """Return the changes of all runs but the baseline, in the rows that have a better side."""
    return Against(baseline, tuple(_change_rows(baseline, rows)))


def _change_rows(baseline: str, rows: Sequence[ReportRow]) -> Iterator[ChangeRow]:
    for row in rows:
        sign = _better_side(row)
        base = next(cell for cell in row.cells if cell.runs == (baseline,))
        if sign != 0 and row.shown and base.value is not None:
            changes = tuple(_change(cell, base.value, sign) for cell in row.cells if cell is not base)
            yield ChangeRow(row.key, row.group, row.label, base.text, changes)


def _change(cell: TableCell, base: float, sign: int) -> Change:
    """Return the change of a figure; `sign` is 1 if more is better, -1 if less is better."""
    (run,) = cell.runs
    if cell.value is None:
        return Change(run, cell.text, None, rose=False, same=False, better=None)
    gain, percent = cell.value - base, percent_change(cell.value, base)
    same = gain == 0 or format_percent(percent) == format_percent(0.0)
    return Change(run, cell.text, percent, rose=gain > 0, same=same, better=None if same else gain * sign > 0)


def _better_side(row: ReportRow) -> int:
    """Return 1 if more is better, -1 if less is better, 0 if neither is known."""
    if row.key in LOWER_IS_BETTER or row.key in HIGHER_IS_BETTER:
        return -1 if row.key in LOWER_IS_BETTER else 1
    if row.metric is None:
        return 0
    try:
        return 1 if direction(row.metric) == "max" else -1
    except KeyError:  # a metric of a later version
        return 0
