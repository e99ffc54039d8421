"""Runs by measures: the rows of a table of runs, and the table of results as a `pandas.DataFrame`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paratune.config.metric_names import ScoreTarget
from paratune.records.finished import RunRecord
from paratune.reports.amounts import scale_of
from paratune.reports.measures import MEASURES, Measure, constant_measures, cost, efficiency_measures, score_measures
from paratune.reports.runs.targets import target_measures
from paratune.reports.tables.table import TableCell

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class ReportRow:
    """A measure of all runs: its label with the unit, and one cell for each run, whose `runs` is the run's name."""

    measure: Measure
    label: str
    cells: tuple[TableCell, ...]

    @property
    def key(self) -> str:
        return self.measure.key

    @property
    def group(self) -> str:
        return self.measure.group

    @property
    def shown(self) -> bool:
        """Whether tables show it; CSV and JSON have all rows."""
        values = [cell.value for cell in self.cells]
        is_shown = {"data": False, "differs": len(set(values)) > 1, "nonzero": any(values)}
        return is_shown.get(self.measure.show, any(cell.is_known for cell in self.cells))


def row_of(measure: Measure, runs: Sequence[RunRecord]) -> ReportRow:
    """Return a measure of runs."""
    values = [measure.of(run) for run in runs]
    scale = scale_of(measure.unit, values)
    side = {1: " ↑", -1: " ↓"}.get(measure.better, "") if measure.is_quality else ""
    cells = []
    for run, value in zip(runs, values, strict=True):
        text = scale.text(value) if value is not None or measure.absent is None else measure.absent(run)
        cells.append(TableCell(text, value, (run.name,), measure.source))
    return ReportRow(measure, scale.label(measure.label) + side, tuple(cells))


def build_rows(
    runs: Sequence[RunRecord],
    *,
    reference: RunRecord | None = None,
    targets: Sequence[ScoreTarget] = (),
    price: float | None = None,
) -> tuple[ReportRow, ...]:
    """Return the rows of a table of runs, in their order; the runs are in the order of the columns.

    The statistical efficiency is against the reference batch of `reference`, of the first run when None. Rows show when
    runs reached the `targets`, and what they cost with a `price` of a device-hour.

    Raises:
        ConfigError: No run was evaluated by a target's metric.
    """
    measures = [*MEASURES.values(), *efficiency_measures(runs, reference or runs[0]), *target_measures(runs, targets)]
    measures += [cost(price)] if price is not None else []
    measures += [*score_measures(runs), *constant_measures(runs)]
    groups = list(dict.fromkeys(measure.group for measure in measures))
    return tuple(row_of(measure, runs) for measure in sorted(measures, key=lambda item: groups.index(item.group)))


def results_frame(
    runs: Mapping[str, RunRecord | None], columns: Sequence[Mapping[str, Any]] | None = None
) -> "pandas.DataFrame":
    """Return a line for each run with all measures, in the units of their names; unknown values are missing.

    `runs` has the records by name, None for a run without one. `columns` has those of each run that come first, such as
    the values of axes; they replace measures of their name.
    """
    import pandas as pd

    found = [run for run in runs.values() if run is not None]
    measures = [*MEASURES.values(), *score_measures(found), *constant_measures(found)]
    given = columns if columns is not None else [{} for _ in runs]
    rows = [
        {**own, **{measure.key: run and measure.of(run) for measure in measures if measure.key not in own}}
        for own, run in zip(given, runs.values(), strict=True)
    ]
    # Whole numbers stay whole beside missing values.
    return pd.DataFrame(rows, index=pd.Index(runs, name="run")).convert_dtypes()
