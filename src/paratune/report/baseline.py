"""How far runs are from a baseline run: the change of each figure in per cent, and whether that is the better side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paratune.base.units import format_percent, percent_change
from paratune.config.metric_names import direction
from paratune.report.rows import FigureCell, ReportRow

LOWER_IS_BETTER = frozenset(
    {
        "train_s",
        "epoch_s",
        "total_s",
        "step_median_ms",
        "peak_memory_largest_bytes",
        "peak_memory_sum_bytes",
        "energy_j",
        "device_hours",
        "cost",
    }
)
HIGHER_IS_BETTER = frozenset({"samples_per_s", "tokens_per_s", "goodput", "mfu"})


@dataclass(frozen=True)
class Change:
    """A figure of one run against that of the baseline."""

    run: str
    figure: str
    """The run's own, as the comparison table has it."""
    percent: float | None
    """Of the baseline's figure; None where either is unknown, or the baseline's is not above 0."""
    rose: bool
    """Whether it is above the baseline's."""
    same: bool
    """Whether both are equal, or their difference is none in the per cent that are shown."""
    better: bool | None
    """Whether it is the better side; None where both are the same or one is unknown."""

    @property
    def text(self) -> str:
        """Such as "−21.4% ↓ better" and "0.0% the same"; without per cent where the baseline's figure is 0."""
        if self.same:
            return "the same" if self.percent is None else f"{format_percent(self.percent)} the same"
        side = "" if self.better is None else f" {'↑' if self.rose else '↓'} {'better' if self.better else 'worse'}"
        return f"{format_percent(self.percent)}{side}"


@dataclass(frozen=True)
class ChangeRow:
    """One figure of the baseline and of all other runs."""

    key: str
    group: str
    label: str
    figure: str
    """The baseline's."""
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Against:
    """All figures that have a better side, against those of one run."""

    baseline: str
    """Name of the run."""
    rows: tuple[ChangeRow, ...]

    def as_dict(self) -> dict[str, Any]:
        changes = {
            row.key: {one.run: {"percent": one.percent, "better": one.better} for one in row.changes}
            for row in self.rows
        }
        return {"run": self.baseline, "changes": changes}


def against(baseline: str, rows: Sequence[ReportRow]) -> Against:
    """Return the changes of all runs but the baseline, of the rows that have a better side.

    Args:
        baseline: Name of the run.
        rows: Of the comparison table.
    """
    return Against(baseline, tuple(_change_rows(baseline, rows)))


def _change_rows(baseline: str, rows: Sequence[ReportRow]) -> Iterator[ChangeRow]:
    for row in rows:
        sign = _better_side(row)
        if sign == 0 or not row.shown:
            continue
        base = next(cell for cell in row.cells if cell.run == baseline)
        if base.value is None:
            continue
        changes = []
        for cell in row.cells:
            if cell.run != baseline:
                changes.append(_change(cell, base.value, sign))
        yield ChangeRow(row.key, row.group, row.label, base.text, tuple(changes))


def _change(cell: FigureCell, base: float, sign: int) -> Change:
    """Return the change of a figure; `sign` is 1 where more is better, -1 where less is."""
    if cell.value is None:
        return Change(cell.run, cell.text, None, rose=False, same=False, better=None)
    gain, percent = cell.value - base, percent_change(cell.value, base)
    same = gain == 0 or format_percent(percent) == format_percent(0.0)
    return Change(cell.run, cell.text, percent, rose=gain > 0, same=same, better=None if same else gain * sign > 0)


def _better_side(row: ReportRow) -> int:
    """Return 1 where more is better, -1 where less is, 0 where neither is known."""
    if row.key in LOWER_IS_BETTER or row.key in HIGHER_IS_BETTER:
        return -1 if row.key in LOWER_IS_BETTER else 1
    if row.metric is None:
        return 0
    try:
        return 1 if direction(row.metric) == "max" else -1
    except KeyError:  # a metric of a later version
        return 0
