"""`make`: run folders to a report, section by section, which is written if a folder is given."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paratune.base.grouping import grouped
from paratune.base.text import listing
from paratune.config.metric_names import ScoreTarget
from paratune.records.finished import RunRecord
from paratune.reports.document import Notice, Part, Remarks, ReportDocument, ReportSection, StatementBox, shown_sections
from paratune.reports.figures import over_steps
from paratune.reports.figures.canvas import Drawing
from paratune.reports.figures.runs import losses, names_of, phase_bars, prediction_figures, read_predictions
from paratune.reports.output import CSV, FILES, check_folder, document_files, write_files
from paratune.reports.page.document import made_by
from paratune.reports.run import tables
from paratune.reports.run.model import Report, build_report
from paratune.reports.runs import reproduce, slice_tables
from paratune.reports.runs.certificates import certificates_table
from paratune.reports.runs.machine import value_text
from paratune.reports.runs.read import read_runs
from paratune.reports.statements import run_statements
from paratune.reports.systems.judging import verdict_section
from paratune.reports.systems.machines import machine_tables
from paratune.reports.systems.tables import configurations_table, main_table
from paratune.reports.text import csv_lines
from paratune.verdicts import Margin
from paratune.verdicts.speeds import reference_batch_of

MAX_RUNS = 24  # reports of more runs have figures and tables of the first runs only
_MAX_NOTES = 60
_HOW_MEASURED = (
    "Warm-up steps are left out of rates, phases and medians. Rates are totals over totals and count real tokens, "
    "without padding. A phase is its total time, averaged over the ranks, divided by the number of measured steps; the "
    "five phases sum to the mean step."
)


def make(
    runs: Sequence[Path], out: Path | None, baseline: Path | None = None, targets: Sequence[ScoreTarget] = (),
    price: float | None = None, margins: Mapping[str, Margin] | None = None, wanted: Collection[str] = (),
) -> Report:  # fmt: skip
    """Compare finished runs, and write the report if a folder is given; see `paratune.report` for the arguments.

    A `baseline` that is not in `runs` is shown first; `margins` are those of `judge`, and `wanted` files for a paper
    are "latex" or "figures".
    """
    if out is not None:
        check_folder(out, list(FILES))
    folders = list(runs)
    if baseline is not None and baseline.resolve() not in [folder.resolve() for folder in folders]:
        folders.insert(0, baseline)
    report = build_report(read_runs(folders), baseline, targets, price, margins)
    if out is None:
        return report
    files = {**document_files(run_document(report), wanted=wanted), CSV: runs_csv(report)}
    texts = {reproduce.KEY: reproduce.reproduction_texts(report.runs)}
    return replace(report, files=write_files(out, files, {**report.as_dict(), **texts}))


def runs_csv(report: Report) -> str:
    """Return a line for each run and a column for each figure, its unit last in the name; unknown values are empty."""
    columns = [[run.name for run in report.runs], [str(run.folder) for run in report.runs]]
    columns += [[cell.value for cell in row.cells] for row in report.rows]
    return csv_lines([["run", "folder", *(row.key for row in report.rows)], *zip(*columns, strict=True)])


def run_document(report: Report) -> ReportDocument:
    """Return the contents of a report of runs; reads the predictions of regressions, draws nothing yet."""
    notices = []
    if len(report.runs) > 1:
        same = report.sameness
        machine = "; ".join(item.label for item in report.differences if item.key.startswith("machine."))
        others = f" These also differ and change times: {machine}." if machine else ""
        notices.append(Notice(same.sentence + others, is_warning=same.verdict in ("different", "unknown")))
    if report.unfinished:
        runs = "; ".join(f"{run.name} ({run.folder}): {run.reason}" for run in report.unfinished)
        notices.append(Notice(f"These runs are not finished and are not in the report: {runs}."))
    tasks, models, sources = (
        ", ".join(dict.fromkeys(value_text(run.get(source)) for run in report.runs))
        for source in ("run.task.kind", "run.model.name", "run.data.train.source")
    )
    source = f"the records of {listing([run.name for run in report.runs])}"
    about = "Nothing was measured again. In index.html, point at a cell to see its run and record."
    return ReportDocument(
        title=f"Run {report.runs[0].name}" if len(report.runs) == 1 else f"{len(report.runs)} runs compared",
        lead=(f"{tasks.capitalize()}: {models} trained on {sources}.",),
        sections=shown_sections(list(_sections(report))),
        footer=f"{made_by(source)} {about}",
        notices=tuple(notices),
    )


def _sections(report: Report) -> Iterator[ReportSection]:
    """Yield all sections, empty ones without parts; only the first runs have figures and tables of their own."""
    runs = report.runs[:MAX_RUNS]
    suffixed = [(run, f"-{number}" if len(runs) > 1 else "") for number, run in enumerate(runs, start=1)]
    statements = run_statements(report.verdicts)
    summary: list[Part] = [StatementBox(statements)] if statements else []
    summary += [main_table(report.systems)] if len(report.runs) > 1 else []
    yield ReportSection("summary", "Summary", tuple(summary))
    yield verdict_section(report.verdicts, report.verdict_notes)
    comparison = tables.comparison(report, runs)
    limit = f" The first {len(runs)} of {len(report.runs):,} runs." if len(runs) < len(report.runs) else ""
    yield ReportSection("comparison", comparison.title, (comparison, *_drawings(runs), _HOW_MEASURED + limit))
    if len(runs) > 1:
        yield ReportSection("settings", "Settings that differ", (tables.settings(report.differences, runs),))
    certificates = tuple(certificates_table(report.certificates, len(report.runs)))
    yield ReportSection("certificates", "Certificates", certificates)
    quality = tuple(_quality(suffixed))
    yield ReportSection("quality", "Predictions", quality, any(isinstance(part, Drawing) for part in quality))
    base = next((run for run in report.runs if run.name == report.baseline), runs[0])
    groups = [(member.label, member.runs) for member in report.systems.measured]
    notes = [*report.notes[:_MAX_NOTES]]
    notes += [f"report.json has {more} more notes."] if (more := len(report.notes) - _MAX_NOTES) > 0 else []
    sections: dict[str, tuple[str, Iterable[Part]]] = {
        "configurations": ("Configurations", [configurations_table(report.systems)] if report.verdicts else []),
        "loss": ("Evaluations", (table for run, end in suffixed for table in tables.evaluations(run, end))),
        "over_steps": (over_steps.HEADING, over_steps.step_drawings(groups, reference_batch_of(base))),
        "profile": ("Profiler", (table for run, end in suffixed for table in tables.profile(run, end))),
        slice_tables.KIND: (slice_tables.HEADING, slice_tables.slice_tables([(run.name, (run,)) for run in runs])),
        "machine": ("Systems, models and software", machine_tables(report.systems)),
        reproduce.KEY: (reproduce.HEADING, reproduce.reproduction(runs, report.runs)),
        "notes": ("Notes", [Remarks(tuple(notes))] if notes else []),
    }  # fmt: skip
    for key, (title, parts) in sections.items():
        yield ReportSection(key, title, tuple(parts), is_short=False)


def _drawings(runs: Sequence[RunRecord]) -> Iterator[Drawing]:
    """Yield the loss curves of each task and the phases of a step, if a run has steps."""
    with_steps = [run for run in runs if run.summary.num_steps]
    by_task = sorted(grouped((run.task, run) for run in with_steps).items())
    styles = {run.name: position for position, run in enumerate(runs)}
    for number, (_, of_task) in enumerate(by_task, start=1):
        key, positions = "loss" if len(by_task) == 1 else f"loss-{number}", [styles[run.name] for run in of_task]
        yield losses(key, f"Loss curves: {names_of(of_task)}", {run.name: [run] for run in of_task}, positions)
    if with_steps:
        yield phase_bars(with_steps)


def _quality(suffixed: Sequence[tuple[RunRecord, str]]) -> Iterator[Part]:
    """Yield confusion matrices and predicted against actual values; probes predict nothing."""
    scored = [(run, end) for run, end in suffixed if not run.is_probe]
    found = {run.name: read_predictions(run) for run, _ in scored if run.task == "regression"}
    known = {name: values for name, values in found.items() if not isinstance(values, str)}
    drawings = dict(zip(known, prediction_figures(known), strict=True))
    for run, end in scored:
        if run.name in known:
            yield drawings[run.name]
        else:
            reason = found.get(run.name)
            yield reason if isinstance(reason, str) else tables.confusion(run, end)
