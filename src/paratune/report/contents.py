"""What a report of runs shows, read once and written in every format: its tables and its figures."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from paratune.report.canvas import Drawing
from paratune.report.course import course_drawings
from paratune.report.model import Report
from paratune.report.pictures import (
    loss_pictures,
    memory_pictures,
    prediction_pictures,
    read_all_predictions,
    speed_pictures,
)
from paratune.report.read import RunRecord
from paratune.report.reproduce import ReproducedRun, reproduction
from paratune.report.run_tables import few_runs, run_tables, table_key
from paratune.report.run_verdicts import tables_of_verdicts
from paratune.report.section import Part
from paratune.report.tabular import Table
from paratune.report.versus.arrange import by_configuration
from paratune.verdicts.rates import reference_batch_of


@dataclass(frozen=True)
class Contents:
    """Tables and figures of a report of runs."""

    report: Report
    """Of the runs that have figures and tables of their own: all, or the first of many."""
    tables: Mapping[str, Table]
    """By key, in the order of the page."""
    loss: tuple[Drawing, ...]
    phases: tuple[Drawing, ...]
    memory: tuple[Drawing, ...]
    predictions: Mapping[str, Drawing]
    """Of each regression whose predictions can be read, by the run's name."""
    missing: Mapping[str, str]
    """Why there is no figure of a run's predictions."""
    course: tuple[Drawing, ...] = ()
    """Speed and efficiency over the steps."""
    reproduce: tuple[Part, ...] = ()
    """How the runs were made."""

    @property
    def drawings(self) -> tuple[Drawing, ...]:
        """All figures, in the order of the page."""
        return (*self.loss, *self.phases, *self.course, *self.memory, *self.predictions.values())

    def tables_of(self, kind: str) -> Iterator[Table]:
        """Yield the tables of a kind of which there may be several, such as seeds-1, seeds-2."""
        for key, table in self.tables.items():
            if key == kind or key.rpartition("-")[0] == kind:
                yield table

    def table_of(self, kind: str, run: RunRecord) -> Table | None:
        """Return the table of one run, such as losses-2."""
        return self.tables.get(table_key(self.report, run, kind))


def contents(report: Report) -> Contents:
    """Return tables and figures of a report; reads the predictions of regressions, draws nothing yet."""
    few = few_runs(report)
    read = read_all_predictions(few)
    found = {run: one for run, one in read.items() if not isinstance(one, str)}
    return Contents(
        report=few,
        tables={table.key: table for table in (*tables_of_verdicts(report), *run_tables(report, found))},
        loss=tuple(_said(one, report, few) for one in loss_pictures(few)),
        phases=tuple(_said(one, report, few) for one in speed_pictures(few)),
        memory=tuple(_said(one, report, few) for one in memory_pictures(few)),
        predictions=dict(zip(found, prediction_pictures(found), strict=True)),
        missing={run: one for run, one in read.items() if isinstance(one, str)},
        course=tuple(course_drawings(_configurations(report), _reference_batch(report))),
        reproduce=reproduction(reproduced(few), report.runs),
    )


def reproduced(report: Report) -> list[ReproducedRun]:
    """Return the runs whose configurations are listed."""
    return [ReproducedRun(run.name, run) for run in report.runs]


def _configurations(report: Report) -> list[tuple[str, list[RunRecord]]]:
    """Return the runs of each configuration under the name that verdicts give it."""
    by_name = {run.name: run for run in report.runs}
    return [(group.label, [by_name[run.name] for run in group.runs]) for group in by_configuration(report.runs)]


def _reference_batch(report: Report) -> float | None:
    """Return the samples at which statistical efficiency is 1, by the baseline or the first run."""
    named = [run for run in report.runs if report.against is not None and run.name == report.against.baseline]
    return reference_batch_of((named or report.runs)[0])


def _said(drawing: Drawing, report: Report, few: Report) -> Drawing:
    """Return a figure that says of how many runs it is the first."""
    if few is report:
        return drawing
    text = f"{drawing.caption} The first {len(few.runs)} of {len(report.runs):,} runs."
    return replace(drawing, caption=text)
