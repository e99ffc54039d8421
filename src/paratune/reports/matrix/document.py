"""The contents of a report of a matrix, section by section.

A section is added here: a `ReportSection` with a key, a heading and its tables, figures and texts. Empty ones are left
out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from paratune.base.units import counted
from paratune.reports.document import (
    Notice,
    Part,
    ReportDocument,
    ReportSection,
    Selectable,
    Selection,
    Statement,
    StatementBox,
    shown_sections,
)
from paratune.reports.figures import over_steps
from paratune.reports.matrix.outcomes import SweepReport
from paratune.reports.matrix.published import published_tables
from paratune.reports.matrix.statements import matrix_statements
from paratune.reports.matrix.tables import candidates, chosen, missing, runs
from paratune.reports.matrix.trust import TITLE as TRUST_TITLE
from paratune.reports.matrix.trust import certificate_table, trust_statements
from paratune.reports.page.document import made_by
from paratune.reports.runs import reproduce, slice_tables
from paratune.reports.runs.read import RunRecord
from paratune.reports.runs.reproduce import reproduction
from paratune.reports.systems import ladder_parts
from paratune.reports.systems import tables as system_tables
from paratune.reports.systems.effect_figures import verdict_section
from paratune.reports.systems.labels import drawn_configurations
from paratune.reports.systems.layouts import layout_table
from paratune.reports.systems.learning_rate_figures import learning_rate_drawings
from paratune.reports.systems.loss_figures import loss_drawings
from paratune.reports.systems.machines import machine_tables
from paratune.reports.systems.model import Systems
from paratune.reports.systems.overview_figures import pareto, time_and_memory
from paratune.reports.systems.phase_figures import phase_drawings
from paratune.reports.systems.prediction_figures import prediction_drawings
from paratune.reports.systems.scaling_figures import scaling_drawings
from paratune.reports.systems.time_to_quality import target_tables
from paratune.verdicts.rates import reference_batch_of


def matrix_document(report: SweepReport) -> ReportDocument:
    """Return the contents of a report of a matrix."""
    record = report.record
    num_missing = len(report.outcomes) - report.num_finished
    have = "has" if num_missing == 1 else "have"
    warning = f"{num_missing} of {counted(len(report.outcomes), 'run')} {have} no results: see Missing runs."
    version = f", paratune {record.version}" if record.version else ""
    started = f"Started {record.created} from {record.matrix}{version}. Commands and settings: see {reproduce.HEADING}."
    source = f"sweep.json and the records of the runs in {report.folder}"
    return ReportDocument(
        title=f"{record.name}: {counted(len(report.outcomes), 'run')}",
        lead=(_subject(report), started),
        sections=matrix_sections(report),
        footer=f"{made_by(source)} Nothing was measured again.",
        notices=(Notice(warning),) if num_missing else (),
        selection=_selection(report),
    )


def _selection(report: SweepReport) -> Selection | None:
    """Return the configurations that readers of the page can select; None for fewer than three."""
    configurations = report.systems.configurations if report.systems is not None else ()
    if len(configurations) < 3:
        return None
    entries = (
        Selectable(member.label, tuple(cell_run.cell.name for cell_run in member.cell_runs))
        for member in configurations
    )
    note = "The summary, the effects of axes, the choice of the best and all notes are those of all configurations."
    return Selection("configurations", tuple(entries), note)


def matrix_sections(report: SweepReport) -> tuple[ReportSection, ...]:
    """Return the sections that are not empty; those stored in the report, if it has any."""
    if report.sections:
        return report.sections
    sections = shown_sections(list(_sections(report)))
    return (*shown_sections([_summary(report, sections)]), *sections)


def _summary(report: SweepReport, sections: Sequence[ReportSection]) -> ReportSection:
    """Return the conclusions, whether they can be trusted, and how the runs are reproduced."""
    runs = report.systems.runs if report.systems is not None else []
    boxes = (
        StatementBox(matrix_statements(report)),
        StatementBox(trust_statements(report), TRUST_TITLE),
        StatementBox(reproduce.reproduction_statements(runs, report.matrices), reproduce.HEADING, has_signs=False),
    )
    headings = {section.key: section.heading for section in sections}
    linked = (
        replace(box, statements=tuple(_linked(statement, headings) for statement in box.statements)) for box in boxes
    )
    return ReportSection("summary", "Summary", tuple(box for box in linked if box.statements) if runs else ())


def _linked(statement: Statement, headings: Mapping[str, str]) -> Statement:
    """Return a statement with the heading of its evidence; without evidence if the report has no such section."""
    heading = headings.get(statement.evidence)
    return replace(statement, evidence=statement.evidence if heading else "", evidence_name=heading or "")


def reproduced_runs(report: SweepReport) -> list[RunRecord]:
    """Return a run of each configuration under its name, that of the baseline first."""
    systems = report.systems
    if systems is None:
        return []
    measured = sorted(systems.measured, key=lambda configuration: configuration is not systems.baseline)
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
    finished = f"{report.num_finished} of {counted(len(report.outcomes), 'run')} finished{skipped}."
    return f"{finished} Axes: {axes}.{found}{probes}{past}"


def _sections(report: SweepReport) -> Iterator[ReportSection]:
    scores = chosen(report)
    # A matrix of probes has no scores to choose by.
    yield ReportSection("chosen", scores.title, (scores,) if scores.lines else ())
    yield ReportSection("published", "Published and measured", tuple(published_tables(report)))
    systems = report.systems if report.systems is not None and report.systems.measured else None
    if systems is not None:
        layout = () if report.layout is None else (layout_table(systems, report.layout),)
        yield ReportSection("layout", "Layout of the study", layout)
        yield verdict_section(report.verdicts, report.verdict_notes, report.effects)
        yield ReportSection(ladder_parts.KEY, ladder_parts.HEADING, tuple(ladder_parts.ladder_parts(report.ladders)))
        yield ReportSection("targets", "Time to quality", tuple(target_tables(systems, report.targets)))
        yield from _system_sections(systems)
    groups = tuple(candidates(report, group, number) for number, group in enumerate(report.groups))
    yield ReportSection("candidates", "All candidates" if report.record.select_per else "Candidates", groups)
    if systems is not None:
        rates = tuple(learning_rate_drawings(systems))
        yield ReportSection("learning_rate", "Learning rate", rates, is_short=False)
        yield ReportSection("loss", "Loss curves", tuple(loss_drawings(systems)), is_short=False)
        predictions = tuple(prediction_drawings(systems))
        yield ReportSection("predictions", "Predicted against actual", predictions, is_short=False)
        slices = tuple(system_tables.sliced_configurations(systems))
        yield ReportSection(slice_tables.KIND, slice_tables.HEADING, slices, is_short=False)
        yield ReportSection("certificates", "Certificates", tuple(certificate_table(systems)))
        machines = tuple(machine_tables(systems))
        yield ReportSection("machine", "Systems, models and software", machines, is_short=False)
    yield ReportSection("missing", "Missing runs", tuple(missing(report)))
    yield ReportSection("runs", "All runs", (runs(report),), is_short=False)
    yield ReportSection("reproduce", reproduce.HEADING, _reproduction(report), is_short=False)


def _reproduction(report: SweepReport) -> tuple[Part, ...]:
    runs = report.systems.runs if report.systems is not None else []
    # The folder of a run is two levels below the folder of its matrix.
    folders = list(dict.fromkeys(outcome.folder.parent.parent for outcome in report.outcomes))
    return reproduction(reproduced_runs(report), runs, report.matrices, folders)


def _system_sections(systems: Systems) -> Iterator[ReportSection]:
    overview: list[Part] = [system_tables.all_configurations(systems), time_and_memory(systems), *pareto(systems)]
    yield ReportSection("overview", "Time and memory", tuple(overview))
    scaling: list[Part] = [*system_tables.scaling_tables(systems), *scaling_drawings(systems)]
    yield ReportSection("scaling", "Scaling over devices and batch", tuple(scaling))
    yield ReportSection("subjects", "Effect of each axis", tuple(system_tables.subject_tables(systems)))
    changes = (system_tables.efficiency_table(systems),) if len(systems.measured) > 1 else ()
    yield ReportSection("efficiency", "Efficiency and goodput", changes)
    phases: list[Part] = [system_tables.phases_table(systems), *phase_drawings(systems)]
    yield ReportSection("phases", "Time by phase", tuple(phases), is_short=False)
    yield ReportSection("over_steps", over_steps.HEADING, tuple(_over_steps(systems)), is_short=False)
    yield ReportSection("resources", "Resources", (system_tables.resources_table(systems),), is_short=False)


def _over_steps(systems: Systems) -> Iterator[Part]:
    """Yield speed and efficiency over the steps, for the baseline and the fastest configurations."""
    members, selection = drawn_configurations(systems, systems.measured, over_steps.MAX_LINES)
    base = systems.baseline
    batch = None if base is None or not base.runs else reference_batch_of(base.runs[0])
    groups = [(configuration.label, configuration.runs) for configuration in members]
    yield from over_steps.step_drawings(groups, batch, selection)
