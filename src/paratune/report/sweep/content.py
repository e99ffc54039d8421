"""What a report of a matrix shows, in its order: every format takes its tables and figures from here."""

from collections.abc import Iterator

from paratune.report.course import HEADING as COURSE
from paratune.report.course import MAX_LINES, course_drawings
from paratune.report.reproduce import HEADING, ReproducedRun, reproduction
from paratune.report.section import Part, ReportSection
from paratune.report.slice_tables import HEADING as BY_SLICE
from paratune.report.slice_tables import KIND as SLICES
from paratune.report.sweep.outcomes import SweepReport
from paratune.report.sweep.published import published_tables
from paratune.report.sweep.tables import candidates, chosen, missing, runs
from paratune.report.systems import tables as of_systems
from paratune.report.systems.judging import verdict_table
from paratune.report.systems.labels import drawn
from paratune.report.systems.loss_figures import loss_drawings
from paratune.report.systems.machines import machine_tables
from paratune.report.systems.model import Systems
from paratune.report.systems.overview_figures import pareto, time_and_memory
from paratune.report.systems.phase_figures import phase_drawings
from paratune.report.systems.prediction_figures import prediction_drawings
from paratune.report.systems.scaling_figures import scaling_drawings
from paratune.report.systems.slices import sliced_configurations
from paratune.report.systems.time_to_quality import target_tables
from paratune.report.systems.trust import certificate_table, unreadable
from paratune.verdicts.rates import reference_batch_of


def sections_of(report: SweepReport) -> tuple[ReportSection, ...]:
    """Return the sections that have something to say; those that the report was made with, where it was."""
    return report.sections or tuple(each for each in _sections(report) if each.parts)


def _sections(report: SweepReport) -> Iterator[ReportSection]:
    main = chosen(report)
    # Probes alone, finished or not, have no scores to choose by.
    yield ReportSection("chosen", main.title, (main,) if main.lines else ())
    yield ReportSection("published", "Published and measured", tuple(published_tables(report)))
    if report.systems is not None and report.systems.measured:
        yield ReportSection("verdicts", "Verdicts", tuple(verdict_table(report.verdicts, report.verdict_notes)))
        yield ReportSection("targets", "Time to quality", tuple(target_tables(report.systems, report.targets)))
        yield from _of_systems(report.systems)
    groups = tuple(candidates(report, group, number) for number, group in enumerate(report.groups))
    yield ReportSection("candidates", "All candidates" if report.record.select_per else "Candidates", groups)
    if report.systems is not None and report.systems.measured:
        yield ReportSection("loss", "Course of the loss", tuple(loss_drawings(report.systems)), is_short=False)
        pictures = tuple(prediction_drawings(report.systems))
        yield ReportSection("predictions", "Predicted against actual", pictures, is_short=False)
        sliced = tuple(sliced_configurations(report.systems))
        yield ReportSection(SLICES, BY_SLICE, sliced, is_short=False)
        yield ReportSection("certificates", "Certificates", tuple(certificate_table(report.systems)))
        yield ReportSection(
            "machine", "Systems, models and software", tuple(machine_tables(report.systems)), is_short=False
        )
    left_out: list[Part] = [*missing(report), *(unreadable(report.systems) if report.systems is not None else ())]
    yield ReportSection("missing", "Runs that are missing", tuple(left_out))
    yield ReportSection("runs", "Every run", (runs(report),), is_short=False)
    yield ReportSection("reproduce", HEADING, _reproduce(report), is_short=False)


def reproduced(report: SweepReport) -> list[ReproducedRun]:
    """Return a run of each configuration, that of the baseline first."""
    systems = report.systems
    if systems is None:
        return []
    measured = sorted(systems.measured, key=lambda one: one is not systems.baseline)
    return [ReproducedRun(one.label, one.runs[0]) for one in measured]


def _reproduce(report: SweepReport) -> tuple[Part, ...]:
    measured = report.systems.measured if report.systems is not None else ()
    members = [run for one in measured for run in one.runs]
    # Of several matrices each run lies two folders below its own one.
    folders = list(dict.fromkeys(outcome.folder.parent.parent for outcome in report.outcomes))
    return reproduction(reproduced(report), members, report.matrices, folders)


def _of_systems(systems: Systems) -> Iterator[ReportSection]:
    overview: list[Part] = [of_systems.all_configurations(systems), time_and_memory(systems), *pareto(systems)]
    yield ReportSection("overview", "Time and memory", tuple(overview))
    scaling: tuple[Part, ...] = (*of_systems.scaling_tables(systems), *scaling_drawings(systems))
    yield ReportSection("scaling", "Number of devices and batch", scaling)
    yield ReportSection("subjects", "What was varied", tuple(of_systems.subject_tables(systems)))
    yield ReportSection("efficiency", "Chasing efficiency", tuple(of_systems.efficiency_tables(systems)))
    phases: tuple[Part, ...] = (of_systems.phases_table(systems), *phase_drawings(systems))
    yield ReportSection("phases", "Where the time goes", phases, is_short=False)
    yield ReportSection("course", COURSE, tuple(_course(systems)), is_short=False)
    yield ReportSection("resources", "What it took", (of_systems.resources_table(systems),), is_short=False)


def _course(systems: Systems) -> Iterator[Part]:
    """Yield speed and efficiency over the steps of the baseline and the fastest configurations."""
    members, some = drawn(systems, systems.measured, MAX_LINES)
    base = systems.baseline
    batch = None if base is None or not base.runs else reference_batch_of(base.runs[0])
    yield from course_drawings([(one.label, one.runs) for one in members], batch, some)
