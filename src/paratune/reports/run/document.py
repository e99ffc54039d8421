"""The contents of a report of runs, section by section."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paratune.base.grouping import grouped
from paratune.reports.comparison.arrange import by_configuration
from paratune.reports.document import (
    Notice,
    Part,
    Remarks,
    ReportDocument,
    ReportSection,
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
from paratune.reports.runs.read import RunRecord
from paratune.reports.runs.reproduce import reproduction
from paratune.reports.systems.effect_figures import verdict_section
from paratune.reports.text import some_names
from paratune.verdicts.rates import reference_batch_of

_MAX_NOTES = 60
_FINGERPRINT = re.compile(r"(sha256:?)?[0-9a-f]{32,}")
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
    several, is_whole = len(report.runs) > 1, few is report
    yield verdict_section(report.verdicts, report.verdict_notes)
    comparison = (tables.comparison(report),) if is_whole else ()
    drawings = [*figures.loss_figures(few), *figures.phase_figures(few), *figures.memory_figures(few)]
    shown = [_first_runs(drawing, report, few) for drawing in drawings]
    heading = comparison[0].title if comparison else "Figures"
    yield ReportSection("comparison", heading, (*comparison, *shown, *([_HOW_MEASURED] if comparison else [])))
    if several:
        settings = tables.settings(report) if is_whole else tables.settings_by_run(report)
        yield ReportSection("settings", "Settings that differ", (settings,))
    changes = (tables.changes(report.against),) if report.against is not None else ()
    yield ReportSection("baseline", "Changes against the baseline", changes)
    certificates = (tables.certificate(report, item, at) for at, item in enumerate(report.certificates, start=1))
    yield ReportSection("certificates", "Certificates", tuple(certificates))
    quality = tuple(_quality(few, predictions))
    yield ReportSection("quality", "Predictions", quality, any(isinstance(part, Drawing) for part in quality))
    groups = (tables.seeds(report, group, number) for number, group in enumerate(report.seed_groups, start=1))
    evaluations = (table for run in few.runs if (table := tables.evaluations(few, run)) is not None)
    progress = over_steps.step_drawings(_configurations(report), _reference_batch(report))
    profiles = (table for run in few.runs for table in profile_tables(run, tables.table_key(few, run, "operators")))
    members = [slice_tables.SlicedRuns(run.name, (run,)) for run in few.runs]
    sections: dict[str, tuple[str, Iterable[Part]]] = {
        "runs": ("All runs", (tables.every_run(report),) if len(report.runs) > 2 else ()),
        "seeds": ("Spread over seeds", groups),
        "loss": ("Evaluations", evaluations),
        "phases": ("Contents of the phases", (tables.phase_contents(report),) if _has_key(drawings, "phases") else ()),
        "over_steps": (over_steps.HEADING, progress),
        "profile": ("Profiler", profiles),
        "memory": ("Memory", (tables.memory(few),) if _has_key(drawings, "memory") else ()),
        slice_tables.KIND: (slice_tables.HEADING, slice_tables.slice_tables(members)),
        "machine": (
            "Hardware and software",
            (tables.facts(few, "hardware", "Hardware", hardware_facts),
             tables.facts(few, "software", "Software", software_facts)),
        ),
        "reproduce": (reproduce.HEADING, reproduction(few.runs, report.runs)),
        "notes": ("Notes", (Remarks(tuple(shown_notes(report))),)),
    }  # fmt: skip
    for key, (title, parts) in sections.items():
        yield ReportSection(key, title, tuple(parts), is_short=False)


def _has_key(drawings: Sequence[Drawing], key: str) -> bool:
    return any(drawing.key == key for drawing in drawings)


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


def _configurations(report: Report) -> list[tuple[str, list[RunRecord]]]:
    """Return the runs of each configuration, under the name that verdicts use."""
    by_name = {run.name: run for run in report.runs}
    return [(group.label, [by_name[run.name] for run in group.runs]) for group in by_configuration(report.runs)]


def _reference_batch(report: Report) -> float | None:
    """Return the samples of a step at which the statistical efficiency is 1, from the baseline or the first run."""
    baselines = [run for run in report.runs if report.against is not None and run.name == report.against.baseline]
    return reference_batch_of((baselines or report.runs)[0])


def _subject(report: Report) -> str:
    """Return in one sentence which model was trained on which data."""
    first = report.runs[0]
    data = _distinct(report, "run.data.train.source")
    rows = first.number("run.data.train.num_rows")
    pseudo = first.number("run.data.train.num_pseudo") or 0
    count = f"{(rows or 0) - pseudo:,.0f} labelled + {pseudo:,.0f} pseudo-labelled" if pseudo else f"{rows or 0:,.0f}"
    size = f" ({count} rows)" if rows is not None and len(data) == 1 else ""
    tasks, models = _distinct(report, "run.task.kind"), _distinct(report, "run.model.name")
    return f"{', '.join(tasks).capitalize()}: {', '.join(models)} trained on {', '.join(data)}{size}."


def _distinct(report: Report, source: str) -> list[str]:
    return list(dict.fromkeys(value_text(run.get(source)) for run in report.runs))


def _notices(report: Report) -> Iterator[Notice]:
    """Yield whether the runs are the same experiment, and which runs are not finished."""
    same = report.sameness
    if len(report.runs) > 1 and same.verdict == "different":
        items = (f"{difference.label[:1].upper()}{difference.label[1:]}: {_by_value(difference.values)}"
                 for difference in same.differ)  # fmt: skip
        text = "⚠ These runs are different experiments: do not compare their scores and times. Differences:"
        yield Notice(text, tuple(items))
    elif len(report.runs) > 1:
        yield Notice(same.sentence, is_warning=same.verdict == "unknown")
    if report.unfinished:
        runs = (f"{run.name} ({run.folder}): {run.reason}" for run in report.unfinished)
        yield Notice("These runs are not finished and are not in the report:", tuple(runs))


def _by_value(values: Mapping[str, Any]) -> str:
    """Return "16 (a, b) against 32 (c)"; of many values or runs only the first."""
    runs = grouped((_brief(value), run) for run, value in values.items())
    groups = [f"{text} ({some_names(names, 8)})" for text, names in runs.items()]
    more = [f"{len(groups) - 8} more values"] if len(groups) > 8 else []
    return " against ".join([*groups[:8], *more])


def _brief(value: Any) -> str:
    """Return a value for a sentence: fingerprints shortened, mappings as "key value"."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_brief(item)}" for key, item in value.items())
    text = value_text(value)
    if _FINGERPRINT.fullmatch(text):
        return f"{text[:18]}…"
    return text if len(text) <= 90 else f"{text[:88]}…"
