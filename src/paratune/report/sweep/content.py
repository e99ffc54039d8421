"""What a report of a matrix shows, in its order: every format takes its tables and figures from here."""

from collections.abc import Iterator

from paratune.report.section import Part, ReportSection
from paratune.report.sweep.outcomes import SweepReport
from paratune.report.sweep.tables import candidates, chosen, missing, runs
from paratune.report.systems import tables as of_systems
from paratune.report.systems.judging import verdict_table
from paratune.report.systems.loss_figures import loss_drawings
from paratune.report.systems.machines import machine_tables
from paratune.report.systems.model import Systems
from paratune.report.systems.overview_figures import pareto, time_and_memory
from paratune.report.systems.phase_figures import phase_drawings
from paratune.report.systems.prediction_figures import prediction_drawings
from paratune.report.systems.scaling_figures import scaling_drawings
from paratune.report.systems.time_to_quality import target_tables
from paratune.report.systems.trust import certificate_table, unreadable


def sections_of(report: SweepReport) -> tuple[ReportSection, ...]:
    """Return the sections that have something to say; those that the report was made with, where it was."""
    return report.sections or tuple(each for each in _sections(report) if each.parts)


def _sections(report: SweepReport) -> Iterator[ReportSection]:
    main = chosen(report)
    # Probes alone, finished or not, have no scores to choose by.
    yield ReportSection("chosen", main.title, (main,) if main.lines else ())
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
        yield ReportSection("certificates", "Certificates", tuple(certificate_table(report.systems)))
        yield ReportSection(
            "machine", "Systems, models and software", tuple(machine_tables(report.systems)), is_short=False
        )
    left_out: list[Part] = [*missing(report), *(unreadable(report.systems) if report.systems is not None else ())]
    yield ReportSection("missing", "Runs that are missing", tuple(left_out))
    yield ReportSection("runs", "Every run", (runs(report),), is_short=False)


def _of_systems(systems: Systems) -> Iterator[ReportSection]:
    overview: list[Part] = [of_systems.all_configurations(systems), time_and_memory(systems), *pareto(systems)]
    yield ReportSection("overview", "Time and memory", tuple(overview))
    scaling: tuple[Part, ...] = (*of_systems.scaling_tables(systems), *scaling_drawings(systems))
    yield ReportSection("scaling", "Number of devices and batch", scaling)
    yield ReportSection("subjects", "What was varied", tuple(of_systems.subject_tables(systems)))
    yield ReportSection("efficiency", "Chasing efficiency", tuple(of_systems.efficiency_tables(systems)))
    phases: tuple[Part, ...] = (of_systems.phases_table(systems), *phase_drawings(systems))
    yield ReportSection("phases", "Where the time goes", phases, is_short=False)
    yield ReportSection("resources", "What it took", (of_systems.resources_table(systems),), is_short=False)
