"""The contents of a report of a matrix, section by section.

A section is added here: a `ReportSection` with a key, a heading and its tables, figures and texts. Empty ones are left
out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from paratune.base.units import counted
from paratune.records.finished import RunRecord
from paratune.reports.document import (
    Notice,
    Part,
    ReportDocument,
    ReportSection,
    StatementBox,
    shown_sections,
)
from paratune.reports.figures import over_steps
from paratune.reports.matrix.outcomes import SweepReport
from paratune.reports.matrix.published import published_tables
from paratune.reports.matrix.statements import matrix_statements
from paratune.reports.matrix.tables import candidates, chosen, missing
from paratune.reports.matrix.trust import TITLE as TRUST_TITLE
from paratune.reports.matrix.trust import trust_statements
from paratune.reports.page.document import made_by
from paratune.reports.runs import reproduce, slice_tables
from paratune.reports.runs.certificates import certificates_table
from paratune.reports.runs.reproduce import reproduction
from paratune.reports.systems import figures
from paratune.reports.systems import tables as system_tables
from paratune.reports.systems.effect_figures import verdict_section
from paratune.reports.systems.labels import drawn_configurations
from paratune.reports.systems.layouts import layout_tables
from paratune.reports.systems.machines import machine_tables
from paratune.reports.systems.model import Systems
from paratune.reports.systems.scaling import scalings
from paratune.verdicts.rates import reference_batch_of


def matrix_document(report: SweepReport) -> ReportDocument:
    """Return the contents of a report of a matrix."""
    record = report.record
    num_missing = len(report.cell_runs) - report.num_finished
    have = "has" if num_missing == 1 else "have"
    warning = f"{num_missing} of {counted(len(report.cell_runs), 'run')} {have} no results: see Missing runs."
    version = f", paratune {record.version}" if record.version else ""
    started = f"Started {record.created} from {record.matrix}{version}. Commands and settings: see {reproduce.HEADING}."
    source = f"sweep.json and the records of the runs in {report.folder}"
    return ReportDocument(
        title=f"{record.name}: {counted(len(report.cell_runs), 'run')}",
        lead=(_subject(report), started),
        sections=matrix_sections(report),
        footer=f"{made_by(source)} Nothing was measured again.",
        notices=(Notice(warning),) if num_missing else (),
    )


def matrix_sections(report: SweepReport) -> tuple[ReportSection, ...]:
    """Return the sections that are not empty; those stored in the report, if it has any."""
    if report.sections:
        return report.sections
    return (*shown_sections([_summary(report)]), *shown_sections(list(_sections(report))))


def _summary(report: SweepReport) -> ReportSection:
    """Return the conclusions, and whether they can be trusted."""
    boxes = (StatementBox(matrix_statements(report)), StatementBox(trust_statements(report), TRUST_TITLE))
    return ReportSection("summary", "Summary", tuple(box for box in boxes if box.statements) if report.runs else ())


def reproduced_runs(report: SweepReport) -> list[RunRecord]:
    """Return a run of each configuration under its name, that of the baseline first."""
    measured = sorted(report.measured, key=lambda configuration: configuration is not report.baseline)
    return [replace(configuration.runs[0], name=configuration.label) for configuration in measured]


def _subject(report: SweepReport) -> str:
    """Return how many runs are finished, and the axes."""
    search = report.record.search
    axes = ", ".join(
        axis.label
        if search and set(axis.values) == set(search.trials)
        else f"{axis.label} ({', '.join(axis.values.values())})"
        for axis in report.record.axes
    )
    found = f" S{search.text()[1:]}." if search else ""
    num_past = len(report.record.past)
    past = f" Left out: {num_past} of earlier versions of the matrix." if num_past else ""
    skipped = f", {report.num_skipped} cannot run here" if report.num_skipped else ""
    probes = " All runs are probes: a few steps for timing, without scores." if report.are_probes else ""
    finished = f"{report.num_finished} of {counted(len(report.cell_runs), 'run')} finished{skipped}."
    return f"{finished} Axes: {axes}.{found}{probes}{past}"


def _sections(report: SweepReport) -> Iterator[ReportSection]:
    """Yield the sections; a page shows at once what answers the question of the matrix, and the others on request."""
    scores = chosen(report)
    # A matrix of probes has no scores to choose by.
    yield ReportSection("chosen", scores.title, (scores,) if scores.lines else ())
    yield ReportSection("published", "Published and measured", tuple(published_tables(report)))
    if report.measured:
        layout = () if report.layout is None else tuple(layout_tables(report, report.layout))
        yield ReportSection("layout", "Layout of the study", layout)
        yield verdict_section(report.verdicts, report.verdict_notes, report.effects)
        yield ReportSection("targets", "Time to quality", tuple(system_tables.target_tables(report, report.targets)))
        drawings = [figures.time_and_memory(report), *figures.pareto(report)]
        drawings += figures.scaling_drawings(report)
        yield ReportSection("overview", "Overview", (*drawings, system_tables.configurations_table(report)))
        scaling = tuple(system_tables.scaling_tables(report))
        is_main = any(len(found.members) > 2 for found in scalings(report.measured))
        yield ReportSection("scaling", "Scaling over devices and batch", scaling, is_main)
    yield ReportSection("missing", "Missing runs", tuple(missing(report)))
    if report.measured:
        yield from _closed_sections(report)
    groups = tuple(candidates(report, group, number) for number, group in enumerate(report.groups))
    heading = "All candidates" if report.record.select_per else "Candidates"
    yield ReportSection("candidates", heading, groups, is_short=not scores.lines)
    how = reproduction(reproduced_runs(report), report.runs, report.matrices)
    yield ReportSection("reproduce", reproduce.HEADING, how, is_short=False)


def _closed_sections(systems: Systems) -> Iterator[ReportSection]:
    """Yield the phases, and the sections that a page opens on request."""
    phases: tuple[Part, ...] = (figures.phase_drawing(systems), system_tables.phases_table(systems))
    yield ReportSection("phases", "Time by phase", phases)
    found, left_out = systems.certificates
    sections: dict[str, tuple[str, Iterable[Part]]] = {
        "over_steps": (over_steps.HEADING, _over_steps(systems)),
        "resources": ("Resources", (system_tables.resources_table(systems),)),
        "loss": ("Loss curves", figures.loss_drawings(systems)),
        "predictions": ("Predicted against actual", figures.prediction_drawings(systems)),
        slice_tables.KIND: (slice_tables.HEADING, system_tables.sliced_configurations(systems)),
        "certificates": (
            "Certificates",
            certificates_table(found, len(systems.runs), left_out),
        ),
        "machine": ("Systems, models and software", machine_tables(systems)),
    }
    for key, (heading, parts) in sections.items():
        yield ReportSection(key, heading, tuple(parts), is_short=False)


def _over_steps(systems: Systems) -> Iterator[Part]:
    """Yield speed and efficiency over the steps, for the baseline and the fastest configurations."""
    members, selection = drawn_configurations(systems, systems.measured, over_steps.MAX_LINES)
    base = systems.baseline
    batch = None if base is None or not base.runs else reference_batch_of(base.runs[0])
    groups = [(configuration.label, configuration.runs) for configuration in members]
    yield from over_steps.step_drawings(groups, batch, selection)
