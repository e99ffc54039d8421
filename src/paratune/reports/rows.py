"""The rows of a table of runs: one measure, with a cell for each run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paratune.config.targets import ScoreTarget
from paratune.records.finished import RunRecord
from paratune.reports.amounts import scale_of
from paratune.reports.measures import (
    MEASURES,
    Measure,
    constant_measures,
    cost,
    efficiency_measures,
    score_measures,
    to_first,
)
from paratune.reports.runs.certificates import Certificate, certified
from paratune.reports.runs.targets import target_measures
from paratune.reports.tables.table import TableCell


@dataclass(frozen=True)
class ReportRow:
    """A measure of all runs."""

    measure: Measure
    label: str
    """With the unit."""
    cells: tuple[TableCell, ...]
    """One cell for each run; `runs` of a cell is the name of the run."""

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
        match self.measure.show:
            case "data":
                return False
            case "differs":
                return len(set(values)) > 1
            case "nonzero":
                return any(values)
        return any(cell.is_known for cell in self.cells)


def row_of(measure: Measure, runs: Sequence[RunRecord]) -> ReportRow:
    """Return a measure of runs."""
    values = [measure.of(run) for run in runs]
    scale = scale_of(measure.unit, values)
    side = {1: " ↑", -1: " ↓"}.get(measure.better, "") if measure.is_quality else ""
    texts = [
        measure.absent(run) if value is None and measure.absent is not None else scale.text(value)
        for run, value in zip(runs, values, strict=True)
    ]
    cells = (
        TableCell(text, value, (run.name,), measure.source)
        for run, value, text in zip(runs, values, texts, strict=True)
    )
    return ReportRow(measure, scale.label(measure.label) + side, tuple(cells))


def build_rows(
    runs: Sequence[RunRecord],
    certificates: Sequence[Certificate] = (),
    *,
    reference: RunRecord | None = None,
    targets: Sequence[ScoreTarget] = (),
    price: float | None = None,
) -> tuple[ReportRow, ...]:
    """Return the rows of a table of runs, in their order.

    Args:
        runs: Runs in the order of the columns.
        certificates: Those of the runs.
        reference: Run whose reference batch is that of the statistical efficiency; the first run when None.
        targets: Scores; rows show when runs reached them.
        price: Price of a device-hour.

    Raises:
        ConfigError: No run was evaluated by a target's metric.
    """
    measures = list(MEASURES.values())
    more = [*efficiency_measures(runs, reference or runs[0]), *target_measures(runs, targets), to_first(runs)]
    more += [cost(price)] if price is not None else []
    more += [*score_measures(runs), *constant_measures(runs), *_certified(certificates)]
    groups = {measure.group: at for at, measure in reversed([*enumerate([*measures, *more])])}
    return tuple(row_of(measure, runs) for measure in sorted([*measures, *more], key=lambda item: groups[item.group]))


def _certified(certificates: Sequence[Certificate]) -> Iterator[Measure]:
    if certificates:
        yield Measure(
            "certified",
            "Certified",
            "Setup",
            "text",
            0,
            "certificate.json",
            lambda run: certified(run, certificates),
        )
