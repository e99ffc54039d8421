"""The contents of a report of runs, section by section."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from paratune.reports.comparison.tables import changes_table, main_table
from paratune.reports.document import (
    Notice,
    Part,
    Remarks,
    ReportDocument,
    ReportSection,
    StatementBox,
    shown_sections,
)
from paratune.reports.figures import over_steps
from paratune.reports.figures.canvas import Drawing
from paratune.reports.page.document import made_by
from paratune.reports.run import figures, tables
from paratune.reports.run.figures import Predictions
from paratune.reports.run.model import Report, confusion_matrix
from paratune.reports.runs import reproduce, slice_tables
from paratune.reports.runs.machine import hardware_facts, software_facts, value_text
from paratune.reports.runs.profile_tables import profile_tables
from paratune.reports.runs.reproduce import reproduction
from paratune.reports.statements import run_statements
from paratune.reports.systems.effect_figures import verdict_section
from paratune.reports.text import some_names
from paratune.verdicts.rates import reference_batch_of

_MAX_NOTES = 60
_HOW_MEASURED = (
    "Warm-up steps are left out of rates, phases and medians. Rates are totals over totals and count real tokens, "
    "without padding. A phase is its total time, averaged over the ranks, divided by the number of measured steps; the "
    "five phases sum to the mean step."
)


def run_document(report: Report) -> ReportDocument:
    """Return the contents of a report of runs; reads the predictions of regressions, draws nothing yet."""
    few = tables.few_runs(report)
    names = some_names([run.name for run in report.runs])
    about = "In index.html, point at a cell, tap it, or move to it with the arrow keys to see its run and record."
    return ReportDocument(
        title=report.title,
        lead=(_subject(report),),
        sections=shown_sections(list(_sections(report, few, figures.read_all_predictions(few)))),
        footer=f"{made_by(f'the records of {names}')} Nothing was measured again. {about}",
        notices=tuple(_notices(report)),
    )


def shown_notes(report: Report) -> list[str]:
    """Return the first notes, and how many more report.json has."""
    more = len(report.notes) - _MAX_NOTES
    return [*report.notes[:_MAX_NOTES], *([f"report.json has {more} more notes."] if more > 0 else [])]


def _sections(report: Report, few: Report, predictions: Mapping[str, Predictions | str]) -> Iterator[ReportSection]:
    """Yield all sections, empty ones without parts; `few` are the runs with figures and tables of their own."""
    yield ReportSection("summary", "Summary", tuple(_summary(report)))
    yield verdict_section(report.verdicts, report.verdict_notes)
    comparison = tables.comparison(few)
    drawings = [*figures.loss_figures(few), *figures.phase_figures(few), *figures.memory_figures(few)]
    shown = [_first_runs(drawing, report, few) for drawing in drawings]
    yield ReportSection("comparison", comparison.title, (comparison, *shown, _HOW_MEASURED))
    if len(few.runs) > 1:
        yield ReportSection("settings", "Settings that differ", (tables.settings(few),))
    certificates = (tables.certificate(report, item, at) for at, item in enumerate(report.certificates, start=1))
    yield ReportSection("certificates", "Certificates", tuple(certificates))
    quality = tuple(_quality(few, predictions))
    yield ReportSection("quality", "Predictions", quality, any(isinstance(part, Drawing) for part in quality))
    profiles = (table for run in few.runs for table in profile_tables(run, tables.table_key(few, run, "operators")))
    members = [slice_tables.SlicedRuns(run.name, (run,)) for run in few.runs]
    facts = (("hardware", hardware_facts), ("software", software_facts))
    sections: dict[str, tuple[str, Iterable[Part]]] = {
        "changes": ("Changes against the baseline", (changes_table(report.compared),) if report.compared else ()),
        "loss": ("Evaluations", filter(None, (tables.evaluations(few, run) for run in few.runs))),
        "over_steps": (
            over_steps.HEADING, over_steps.step_drawings(report.configurations, _reference_batch(report))
        ),
        "profile": ("Profiler", profiles),
        slice_tables.KIND: (slice_tables.HEADING, slice_tables.slice_tables(members)),
        "machine": (
            "Hardware and software", (tables.facts(few, key, key.capitalize(), read) for key, read in facts)
        ),
        "reproduce": (reproduce.HEADING, reproduction(few.runs, report.runs)),
        "notes": ("Notes", (Remarks(tuple(shown_notes(report))),)),
    }  # fmt: skip
    for key, (title, parts) in sections.items():
        yield ReportSection(key, title, tuple(parts), is_short=False)


def _summary(report: Report) -> Iterator[Part]:
    """Yield the conclusions, and the main figures of each configuration."""
    if statements := run_statements(report.verdicts):
        yield StatementBox(statements)
    if len(report.runs) > 1:
        yield main_table(report.members, report.price, report.compared)


def _quality(few: Report, predictions: Mapping[str, Predictions | str]) -> Iterator[Part]:
    """Yield confusion matrices and predicted against actual values; probes predict nothing."""
    known = {name: values for name, values in predictions.items() if not isinstance(values, str)}
    drawings = dict(zip(known, figures.prediction_figures(known), strict=True))
    for run in (run for run in few.runs if not run.is_probe):
        if run.name in drawings:
            yield from (drawings[run.name], tables.errors(few, run, *known[run.name]))
        elif isinstance(reason := predictions.get(run.name), str):
            yield reason
        elif confusion_matrix(run)[1] is None:
            yield f"No confusion matrix: the record of {run.name} has none."
        elif (table := tables.confusion(few, run)) is not None:
            yield table


def _first_runs(drawing: Drawing, report: Report, few: Report) -> Drawing:
    """Return a figure whose caption says how many of the runs it shows."""
    if few is report:
        return drawing
    return replace(drawing, caption=f"{drawing.caption} The first {len(few.runs)} of {len(report.runs):,} runs.")


def _reference_batch(report: Report) -> float | None:
    """Return the samples of a step at which the statistical efficiency is 1, from the baseline or the first run."""
    baselines = [run for run in report.runs if run.name == report.baseline]
    return reference_batch_of((baselines or report.runs)[0])


def _subject(report: Report) -> str:
    """Return in one sentence which model was trained on which data."""
    first = report.runs[0]
    data = _distinct(report, "run.data.train.source")
    rows = first.data("train").num_rows
    pseudo = first.data("train").num_pseudo or 0
    count = f"{(rows or 0) - pseudo:,.0f} labelled + {pseudo:,.0f} pseudo-labelled" if pseudo else f"{rows or 0:,.0f}"
    size = f" ({count} rows)" if rows is not None and len(data) == 1 else ""
    tasks, models = _distinct(report, "run.task.kind"), _distinct(report, "run.model.name")
    return f"{', '.join(tasks).capitalize()}: {', '.join(models)} trained on {', '.join(data)}{size}."


def _distinct(report: Report, source: str) -> list[str]:
    return list(dict.fromkeys(value_text(run.get(source)) for run in report.runs))


def _notices(report: Report) -> Iterator[Notice]:
    """Yield whether the runs are the same experiment, and which runs are not finished."""
    same = report.sameness
    if len(report.runs) > 1:
        yield Notice(same.sentence, is_warning=same.verdict in ("different", "unknown"))
    if report.unfinished:
        runs = (f"{run.name} ({run.folder}): {run.reason}" for run in report.unfinished)
        yield Notice("These runs are not finished and are not in the report:", tuple(runs))
