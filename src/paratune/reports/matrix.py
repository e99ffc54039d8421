"""The report of a matrix, or of several that are one in which the matrix is an axis: its sections and its files.

A section is added here: a `ReportSection` with a key, a heading and its tables, figures and texts. Empty ones are left
out.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from paratune.base.text import plain
from paratune.base.units import counted
from paratune.config.metric_names import ScoreTarget
from paratune.errors import CheckpointError, did_you_mean, option_error
from paratune.records.finished import RunRecord
from paratune.records.sweep import Axis, SweepRecord, read_sweep, with_finished_runs
from paratune.reports.document import (
    Listing,
    Notice,
    Part,
    ReportDocument,
    ReportSection,
    StatementBox,
)
from paratune.reports.outcomes import (
    SweepReport,
    candidate_groups,
    candidates_table,
    chosen_table,
)
from paratune.reports.output import CSV, FILES, check_folder, document_files, write_files
from paratune.reports.page.document import made_by
from paratune.reports.published import LAYOUTS, Planned, claims_table, figures_table, layout_tables, read_plan
from paratune.reports.rows import results, results_csv
from paratune.reports.runs.read import certificates_table, reasons_text
from paratune.reports.runs.reproduce import REPRODUCE, REPRODUCE_HEADING, reproduction, reproduction_texts
from paratune.reports.statements import TRUST, matrix_statements, trust_statements
from paratune.reports.systems import figures, tables
from paratune.reports.systems.building import scalings
from paratune.reports.systems.judging import axis_effects, judged, verdict_section
from paratune.reports.systems.model import MATRIX, read_cell_runs
from paratune.reports.tables.table import make_table
from paratune.verdicts import Margin
from paratune.verdicts.speeds import reference_batch_of


def matrix_document(report: SweepReport) -> ReportDocument:
    """Return the contents of a report of a matrix."""
    record = report.record
    num_unfinished = len(report.unfinished)
    are = "is" if num_unfinished == 1 else "are"
    warning = f"{num_unfinished} of {counted(len(report.cell_runs), 'run')} {are} unfinished: see Unfinished runs."
    version = f", paratune {record.version}" if record.version else ""
    started = f"Started {record.created} from {record.matrix}{version}. Commands and settings: see {REPRODUCE_HEADING}."
    source = f"sweep.json and the records of the runs in {report.folder}"
    search = record.search
    values = {axis.label: f" ({', '.join(axis.values.values())})" for axis in record.axes}
    found = ""
    if search:
        values |= {axis.label: "" for axis in record.axes if set(axis.values) == set(search.trials)}
        found = f" Search: {search.num_trials} {search.method} trials, seed {search.seed}; {'; '.join(search.space)}."
    num_past = len(record.past)
    past = f" Left out: {num_past} of earlier versions of the matrix." if num_past else ""
    num_skipped = sum(item.cell.state == "skipped" and item.cell.is_needed for item in report.cell_runs)
    skipped = f", {num_skipped} cannot run here" if num_skipped else ""
    are_probes = all(item.cell.kind == "probe" for item in report.cell_runs)
    probes = " All runs are probes: a few steps for timing, without scores." if are_probes else ""
    finished = f"{len(report.runs)} of {counted(len(report.cell_runs), 'run')} finished{skipped}."
    axes = ", ".join(f"{label}{text}" for label, text in values.items())
    return ReportDocument(
        title=f"{record.name}: {counted(len(report.cell_runs), 'run')}",
        lead=(f"{finished} Axes: {axes}.{found}{probes}{past}", started),
        sections=report.sections,
        footer=f"{made_by(source)} Nothing was measured again.",
        notices=(Notice(warning),) if num_unfinished else (),
    )


def matrix_sections(
    report: SweepReport, targets: Sequence[ScoreTarget] = (), layout: str | None = None, plan: Planned | None = None
) -> tuple[ReportSection, ...]:
    """Return the sections that are not empty; see `make_sweep` for the arguments."""
    boxes = (StatementBox("", matrix_statements(report)), StatementBox(TRUST, trust_statements(report)))
    summary = ReportSection("summary", "Summary", tuple(box for box in boxes if box.statements) if report.runs else ())
    sections = (summary, *_sections(report, targets, layout, plan or {}))
    return tuple(section for section in sections if section.parts)


def reproduced_runs(report: SweepReport) -> list[RunRecord]:
    """Return a run of each configuration under its name, that of the baseline first."""
    measured = sorted(report.measured, key=lambda configuration: configuration is not report.baseline)
    return [replace(configuration.runs[0], name=configuration.label) for configuration in measured]


def _sections(
    report: SweepReport, targets: Sequence[ScoreTarget], layout: str | None, plan: Planned
) -> Iterator[ReportSection]:
    """Yield the sections; a page shows at once what answers the question of the matrix, and the others on request."""
    words = report.record.notes or ""
    yield ReportSection("notes", "Notes", (Listing("As written", words),) if words.strip() else (), is_short=False)
    scores = chosen_table(report)
    # A matrix of probes has no scores to choose by.
    yield ReportSection("chosen", scores.title, (scores,) if scores.lines else ())
    if (published := report.record.published) is not None:
        published_tables = [figures_table(report, published, plan)] if published.figures else []
        published_tables += [claims_table(report, published)] if published.claims else []
        yield ReportSection("published", "Published and measured", tuple(published_tables))
    if report.measured:
        in_layout = () if layout is None else tuple(layout_tables(report, layout))
        yield ReportSection("layout", "Layout of the study", in_layout)
        yield verdict_section(report.verdicts, report.verdict_notes, report.effects)
        yield ReportSection("targets", "Time to quality", tuple(tables.target_tables(report, targets)))
        drawings = [figures.time_and_memory(report), *figures.scaling_drawings(report)]
        yield ReportSection("overview", "Overview", (*drawings, tables.configurations_table(report)))
        scaling = tuple(tables.scaling_tables(report))
        is_main = any(len(found.members) > 2 for found in scalings(report.measured))
        yield ReportSection("scaling", "Scaling over devices and batch", scaling, is_main)
    if lost := [(run.name, run.reason) for run in report.unfinished]:
        title = f"Unfinished: {len(lost)} of {counted(len(report.cell_runs), 'run')}"
        table = make_table("unfinished", title, ("run", "reason"), lost, 2)
        yield ReportSection("unfinished", "Unfinished runs", (table,))
    if report.measured:
        phases: tuple[Part, ...] = (figures.phase_drawing(report), tables.phases_table(report))
        yield ReportSection("phases", "Time by phase", phases)
        # These a page opens on request.
        found, left_out = report.certificates
        scored = [(member.label, member.scored) for member in report.measured]
        members, selection = report.drawn(figures.MAX_LINES)
        groups = [(member.label, member.runs) for member in members]
        base = report.baseline
        batch = None if base is None else reference_batch_of(base.runs[0])
        sections: dict[str, tuple[str, Iterable[Part]]] = {
            "over_steps": (figures.OVER_STEPS, figures.step_drawings(groups, batch, selection)),
            "resources": ("Resources", (tables.resources_table(report),)),
            tables.SLICES: (tables.SLICES_HEADING, tables.slice_tables(scored)),
            "certificates": ("Certificates", certificates_table(found, len(report.runs), left_out)),
            "machine": ("Systems, models and software", tables.machine_tables(report)),
        }
        for key, (heading, parts) in sections.items():
            yield ReportSection(key, heading, tuple(parts), is_short=False)
    candidates = tuple(candidates_table(report, group, number) for number, group in enumerate(report.groups))
    heading = "All candidates" if report.record.select_per else "Candidates"
    yield ReportSection(
        "candidates", heading, candidates, is_short=not scores.lines or report.seed_axis.repeats != "seed"
    )
    how = reproduction(reproduced_runs(report), report.runs, [*report.matrices.values()])
    yield ReportSection("reproduce", REPRODUCE_HEADING, how, is_short=False)


def matrix_csv(report: SweepReport) -> str:
    """Return a line for each run: values of the axes, state, all measures, and all scores; unknown values are empty."""
    chosen = {item.cell.name for group in report.groups if group.chosen is not None for item in group.chosen.cell_runs}
    columns = []
    for item in report.cell_runs:
        cell = item.cell
        axes = {axis.label: report.shown(axis.label, cell.values[axis.label]) for axis in report.record.axes}
        own = {name: getattr(cell, name) for name in ("num_processes", "task", "kind", "repeat", "state")}
        more = {"chosen": int(cell.name in chosen), "reason": item.reason}
        columns.append({"run": cell.name, "folder": str(item.folder), **axes, **own, **more})
    return results_csv(results({item.cell.name: item.record for item in report.cell_runs}, columns))


def make_sweep(
    folder: Path | Sequence[Path],
    out: Path | None,
    price: float | None = None,
    targets: Sequence[ScoreTarget] = (),
    plan: Path | None = None,
    margins: Mapping[str, Margin] | None = None,
    layout: str | None = None,
    wanted: Collection[str] = (),
) -> SweepReport:
    """Read matrices, and write their report if `out` is given; see `paratune.report` for the arguments.

    `wanted` files for a paper are "latex" or "figures".

    Raises:
        ConfigError: No run was evaluated by the metric of a target; or a plan is given and the matrix has no published
            figures; or there is no such layout.
        CheckpointError: A folder or a plan has no matrix or a damaged one; no record of a finished run can be read; or
            the files cannot be written.
    """
    if layout is not None and layout not in LAYOUTS:
        reason = f"the layouts are {', '.join(LAYOUTS)}{did_you_mean(layout, LAYOUTS)}"
        raise option_error("--layout", layout, reason, code="cli.invalid_value")
    if out is not None:
        check_folder(out, list(FILES))
    report = read_joined([folder] if isinstance(folder, Path) else folder, price)
    if not report.runs and any(item.cell.state == "finished" for item in report.cell_runs):
        reasons = reasons_text(report.unfinished)
        text = f"none of the {counted(len(report.cell_runs), 'run')} of {plain(report.folder)} can be read:{reasons}"
        raise CheckpointError(text, code="run.not_found", folder=report.folder)
    if plan is not None and report.record.published is None:
        reason = (
            f"a plan is shown next to published figures, and {report.record.name} has none; name a file of them in the "
            "matrix (published: FILE) and repeat paratune sweep, which trains no finished run again"
        )
        raise option_error("--plan", plan, reason, code="cli.no_effect")
    planned = {} if plan is None else read_plan(plan, report.record.name)
    verdicts, notes = judged(report, margins)
    effects = axis_effects(report, margins)
    report = replace(report, verdicts=verdicts, verdict_notes=notes, effects=effects)
    report = replace(report, sections=matrix_sections(report, targets, layout, planned))
    if out is None:
        return report
    files = {**document_files(matrix_document(report), wanted=wanted), CSV: matrix_csv(report)}
    files |= tables.slices_csv(report.runs)
    texts = {REPRODUCE: reproduction_texts(reproduced_runs(report), [*report.matrices.values()])}
    return replace(report, files=write_files(out, files, {**report.as_dict(), **texts}))


def read_joined(folders: Sequence[Path], price: float | None = None) -> SweepReport:
    """Read several matrices with the same axes as one; a single matrix unchanged except for the price.

    Each matrix has its own choices and its own baseline, because times of different matrices are not comparable. Each
    has its own price of a device-hour, unless `price` is that of all, and the name of its `system`, else of its folder.
    Published figures are in the report of each.

    Raises:
        CheckpointError: One is absent, damaged, of another schema version, or named twice; their axes, baselines or the
            axes of the choice differ; a name has different values in two matrices.
    """
    records = [with_finished_runs(folder, read_sweep(folder)) for folder in folders]
    records = records if price is None else [replace(own, price_per_device_hour=price) for own in records]
    runs_of = [read_cell_runs(folder, record) for folder, record in zip(folders, records, strict=True)]
    first = records[0]
    if len(records) == 1:
        groups = candidate_groups(first, runs_of[0])
        return SweepReport(first, runs_of[0], folder=folders[0], groups=groups, matrices={first.name: first})
    paths = [folder.resolve().parts for folder in folders]
    if twice := [folder for folder, path in zip(folders, paths, strict=True) if paths.count(path) > 1]:
        raise CheckpointError(f"{plain(twice[0])} is given twice; name each matrix once", code="cli.conflict")
    # As many parent folders as make the names unique.
    depth = next(depth for depth in count(1) if len({path[-depth:] for path in paths}) == len(paths))
    names = ["/".join(path[-depth:]) for path in paths]
    axes = _joined_axes(folders, records)
    label = "system" if any(own.system for own in records) else MATRIX
    label = label if all(axis.label != label for axis in axes) else f"{MATRIX} folder"
    systems = [own.system or name for own, name in zip(records, names, strict=True)]
    shown = [one if systems.count(one) == 1 else f"{one} ({name})" for one, name in zip(systems, names, strict=True)]
    cell_runs = []
    for name, items in zip(names, runs_of, strict=True):
        for item in items:
            cell = replace(item.cell, name=f"{name}/{item.cell.name}", values={label: name, **item.cell.values})
            cell_runs.append(replace(item, cell=cell, record=item.record and replace(item.record, name=cell.name)))
    record = replace(
        first,
        name=" + ".join(names),
        matrix=", ".join(own.matrix for own in records),
        matrix_text="\n".join(f"# {own.matrix}\n{own.matrix_text or '# n/a'}" for own in records),
        command=(),
        axes=(Axis(label, label, dict(zip(names, shown, strict=True)), keys=(MATRIX,)), *axes),
        select_per=(label, *first.select_per),
        cells=tuple(item.cell for item in cell_runs),
        published=None,
        looks=tuple(
            replace(look, finished=tuple(f"{name}/{cell}" for cell in look.finished))
            for name, own in zip(names, records, strict=True)
            for look in own.looks
        ),
        past=(),
        order=(),
        system=None,
    )
    return SweepReport(
        record, tuple(cell_runs), matrices=dict(zip(shown, records, strict=True)),
        folder=Path(os.path.commonpath([folder.resolve() for folder in folders])),
        groups=candidate_groups(record, cell_runs),
    )  # fmt: skip


def _joined_axes(folders: Sequence[Path], records: Sequence[SweepRecord]) -> list[Axis]:
    """Return the axes with the values and the keys of all matrices.

    Raises:
        CheckpointError: Matrices differ in axes, baseline or selection, of which a report can follow only one; or a
            name has different values.
    """
    first: dict[str, str] = {}  # what all matrices must have, by its key, from the first one that has it
    for folder, record in zip(folders, records, strict=True):
        own = {
            "axes": ", ".join(axis.label for axis in record.axes),
            "baseline": ", ".join(f"{label}: {name}" for label, name in record.baseline.items()),
            "select_per": ", ".join(record.select_per),
        }
        own |= {f"{axis.label}: {name}": shown for axis in record.axes for name, shown in axis.values.items()}
        for key, value in own.items():
            if value != (wanted := first.setdefault(key, value)):
                text = (
                    f"{plain(folder)} has {plain(key)} {plain(value or '(none)')}, and an earlier matrix has "
                    f"{plain(wanted or '(none)')}; matrices of one report have the same: report them one by one, or "
                    "change the matrix file and repeat paratune sweep, which trains no finished run again"
                )
                raise CheckpointError(text, code="report.matrices_differ", folder=folder, key=key)
    joined = []
    for axes in zip(*(record.axes for record in records), strict=True):
        values = {name: shown for axis in axes for name, shown in axis.values.items()}
        keys = tuple(dict.fromkeys(key for axis in axes for key in axis.keys))
        joined.append(replace(axes[0], values=values, keys=keys))
    return joined
