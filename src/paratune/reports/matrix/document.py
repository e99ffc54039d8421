"""The contents of a report of a matrix, section by section, and as CSV and JSON.

A section is added here: a `ReportSection` with a key, a heading and its tables, figures and texts. Empty ones are left
out.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

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
from paratune.reports.matrix.outcomes import CandidateGroup, SweepReport
from paratune.reports.matrix.published import published_tables
from paratune.reports.matrix.statements import TRUST, matrix_statements, trust_statements
from paratune.reports.matrix.tables import candidates, chosen, missing
from paratune.reports.measures import named
from paratune.reports.notes import notes_parts
from paratune.reports.page.document import made_by
from paratune.reports.runs import reproduce, slice_tables
from paratune.reports.runs.certificates import certificates_table
from paratune.reports.runs.reproduce import reproduction
from paratune.reports.systems import figures
from paratune.reports.systems import tables as system_tables
from paratune.reports.systems.configurations import CellRun
from paratune.reports.systems.judging import verdict_section
from paratune.reports.systems.layouts import layout_tables
from paratune.reports.systems.machines import machine_tables
from paratune.reports.systems.model import Systems
from paratune.reports.systems.scaling import scalings
from paratune.reports.text import GENERATOR, csv_lines
from paratune.verdicts.speeds import reference_batch_of

SWEEP_REPORT_SCHEMA_VERSION = 1
CSV_MEASURES = named(
    *("train_s", "total_s", "mean_step_ms", "samples_per_s", "tokens_per_s", "peak_memory_largest_bytes"),
    *("peak_memory_sum_bytes", "utilisation", "mfu", "energy_j", "device_hours"),
)
"""Measures of each run in table.csv, in the units of the records."""


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
    boxes = (StatementBox(matrix_statements(report)), StatementBox(trust_statements(report), TRUST))
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
    yield ReportSection("notes", "Notes", tuple(notes_parts(report.record.notes or "")), is_short=False)
    scores = chosen(report)
    # A matrix of probes has no scores to choose by.
    yield ReportSection("chosen", scores.title, (scores,) if scores.lines else ())
    yield ReportSection("published", "Published and measured", tuple(published_tables(report)))
    if report.measured:
        layout = () if report.layout is None else tuple(layout_tables(report, report.layout))
        yield ReportSection("layout", "Layout of the study", layout)
        yield verdict_section(report.verdicts, report.verdict_notes, report.effects)
        yield ReportSection("targets", "Time to quality", tuple(system_tables.target_tables(report, report.targets)))
        drawings = [figures.time_and_memory(report), *figures.scaling_drawings(report)]
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
    scored = [(member.label, member.scored) for member in systems.measured]
    members, selection = systems.drawn(systems.measured, over_steps.MAX_LINES)
    groups = [(member.label, member.runs) for member in members]
    base = systems.baseline
    batch = None if base is None else reference_batch_of(base.runs[0])
    sections: dict[str, tuple[str, Iterable[Part]]] = {
        "over_steps": (over_steps.HEADING, over_steps.step_drawings(groups, batch, selection)),
        "resources": ("Resources", (system_tables.resources_table(systems),)),
        "loss": ("Loss curves", figures.loss_drawings(systems)),
        slice_tables.KIND: (slice_tables.HEADING, slice_tables.slice_tables(scored)),
        "certificates": ("Certificates", certificates_table(found, len(systems.runs), left_out)),
        "machine": ("Systems, models and software", machine_tables(systems)),
    }
    for key, (heading, parts) in sections.items():
        yield ReportSection(key, heading, tuple(parts), is_short=False)


def matrix_csv(report: SweepReport) -> str:
    """Return a line for each run: values of the axes, state, time, speed, memory, and all scores.

    Unknown values are empty.
    """
    columns = score_columns(report.cell_runs)
    labels = [axis.label for axis in report.record.axes]
    lines: list[list[Any]] = [
        ["run", "folder", *labels, "num_processes", "task", "kind", "repeat", "state", "chosen", "reason",
         *(measure.key for measure in CSV_MEASURES), *(f"{split}_{metric}" for split, metric in columns)]
    ]  # fmt: skip
    chosen = {item.cell.name for group in report.groups if group.chosen is not None for item in group.chosen.cell_runs}
    for item in report.cell_runs:
        cell, run = item.cell, item.record
        lines.append(
            [cell.name, str(item.folder), *(report.shown(label, cell.values[label]) for label in labels),
             cell.num_processes, cell.task, cell.kind, cell.repeat, cell.state, int(cell.name in chosen),
             item.reason, *(None if run is None else measure.of(run) for measure in CSV_MEASURES),
             *(item.score(*column) for column in columns)]
        )  # fmt: skip
    return csv_lines(lines)


def score_columns(cell_runs: Sequence[CellRun]) -> list[tuple[str, str]]:
    """Return the split and metric of each column of scores, validation first."""
    columns = dict.fromkeys(
        (split, metric) for item in cell_runs for split, scores in item.scores.items() for metric in scores
    )
    return sorted(columns, key=lambda column: column[0] != "validation")


def as_dict(report: SweepReport) -> dict[str, Any]:
    """Return the report as plain data, as in report.json; unknown values are None."""
    record, sections = report.record, matrix_sections(report)
    return {
        "generator": GENERATOR,
        "schema_version": SWEEP_REPORT_SCHEMA_VERSION,
        "sweep": record.name,
        "folder": str(report.folder),
        "matrix": record.matrix,
        "matrix_text": record.matrix_text,
        "command": list(record.command),
        "created": record.created,
        "version": record.version,
        "code": dict(record.code),
        "num_runs": len(report.cell_runs),
        "num_finished": report.num_finished,
        "axes": [asdict(axis) for axis in record.axes],
        "select_per": list(record.select_per),
        "groups": [_group(group) for group in report.groups],
        "runs": [
            asdict(item.cell)
            | {"folder": str(item.folder), "reason": item.reason, "scores": dict(item.scores)}
            | {"slices": {} if item.record is None else dict(item.record.summary.slices)}
            for item in report.cell_runs
        ],
        "verdicts": [verdict.as_dict() for verdict in report.verdicts],
        "effects": [
            {**vars(family), "effects": [effect.as_dict() for effect in family.effects]} for family in report.effects
        ],
        "summary": [asdict(part) for section in sections for part in section.boxes],
        "tables": [table.as_dict() for section in sections for table in section.tables],
        "past": list(record.past),
        "files": [str(path) for path in report.files],
    }


def _group(group: CandidateGroup) -> dict[str, Any]:
    candidates = []
    for candidate in group.candidates:
        scores: dict[str, dict[str, Any]] = {}
        for split, metric in score_columns(candidate.cell_runs):
            found = candidate.amount(split, metric)
            scores.setdefault(split, {})[metric] = {
                "mean": found.center,
                "standard_deviation": found.deviation,
                "num_runs": len(found.values),
                "num_planned": found.num_runs - candidate.num_left_out,
                "num_left_out": candidate.num_left_out,
                "values": [found.values.get(seed) for seed in candidate.by_seed],
            }
        names = [item.cell.name for item in candidate.cell_runs]
        candidates.append({"values": dict(candidate.values), "runs": names, "scores": scores})
    return {
        "values": dict(group.values),
        "task": group.task,
        "chosen_by": {"split": "validation", "metric": group.metric},
        "chosen": None if group.chosen is None else dict(group.chosen.values),
        "remarks": list(group.remarks),
        "tied": [dict(candidate.values) for candidate in group.tied],
        "not_chosen_among": list(group.not_chosen_among),
        "constant": None if group.constant is None else {"predicts": group.predicts, "score": group.constant},
        "is_below_constant": group.is_below_constant,
        "candidates": candidates,
    }
