"""The report of runs, `paratune report RUN...`: its data, its sections and its files."""

import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.text import listing, plain
from paratune.base.units import NOT_AVAILABLE, format_as, format_count
from paratune.config.metric_names import ScoreTarget
from paratune.errors import CheckpointError, option_error
from paratune.records import RUN_FILE
from paratune.records.constant import compare_with_constant, is_better_score
from paratune.records.finished import RunRecord
from paratune.records.scores import read_confusion
from paratune.records.trainer_folder import state_file
from paratune.reports.comparison import systems_of_runs
from paratune.reports.document import Notice, Part, Remarks, ReportDocument, ReportSection, StatementBox
from paratune.reports.figures.canvas import Drawing
from paratune.reports.measures import MEASURES, over_sessions
from paratune.reports.output import CSV, FILES, check_folder, document_files, write_files
from paratune.reports.page.document import made_by
from paratune.reports.rows import ReportRow, build_rows, results_csv
from paratune.reports.runs.machine import value_text
from paratune.reports.runs.read import Certificate, FoundRuns, Unfinished, certificates_table, read_runs
from paratune.reports.runs.reproduce import REPRODUCE, REPRODUCE_HEADING, reproduction, reproduction_texts
from paratune.reports.runs.sameness import (
    Difference,
    Sameness,
    all_differences,
    compare,
    setting_text,
)
from paratune.reports.statements import TRUST, run_statements, trust_statements
from paratune.reports.systems import figures, tables
from paratune.reports.systems.judging import judged, verdict_section
from paratune.reports.systems.model import Systems
from paratune.reports.tables.table import Heading, Row, Table, TableCell, make_table
from paratune.reports.text import GENERATOR
from paratune.verdicts import Margin, Verdict
from paratune.verdicts.speeds import reference_batch_of

REPORT_SCHEMA_VERSION = 1
_MAY_CHANGE = {
    "strategy": "strategy.kind", "world size": "world_size", "device": "device", "precision": "config.precision",
    "micro-batch": "batch.micro_batch_size",
}  # fmt: skip
"""Settings that may change when a run is resumed, and their fields in run.json."""
_EXPLAINED = {
    "noise_scale": False, "noise_scale_preconditioned": False, "communication_share": False,
    "straggler_slowdown": False, "utilisation": False, "energy_j": True, "mfu": True,
}  # fmt: skip
"""Measures whose absence a report of runs explains, and whether only runs on GPUs have them."""
_SPREAD_KEYS = ("train_s", "epoch_s", "samples_per_s", "tokens_per_s", "step_median_ms", "peak_memory_largest_bytes")
MAX_CLASSES = 24  # confusion matrices of more classes are shown as a list of the most frequent confusions
_MAX_CONFUSIONS = 20
MAX_RUNS = 24  # reports of more runs have figures and tables of the first runs only
_MAX_NOTES = 60
_MAX_NOTICES = 3  # warnings at the top of the page
_HOW_MEASURED = (
    "Warm-up steps are left out of rates, phases and medians. Rates are totals over totals and count real tokens, "
    "without padding. A phase is its total time, averaged over the ranks, divided by the number of measured steps; the "
    "five phases sum to the mean step."
)


@dataclass(frozen=True)
class Report:
    """Finished runs, compared."""

    runs: tuple[RunRecord, ...]
    unfinished: tuple[Unfinished, ...]
    certificates: tuple[Certificate, ...]
    rows: tuple[ReportRow, ...]
    sameness: Sameness
    differences: tuple[Difference, ...]  # of the settings, and of how the runs were executed
    notes: tuple[str, ...]  # how the figures were measured, and what was left out; the warnings first
    warnings: tuple[str, ...]  # the notes without which the figures mislead
    baseline: str | None  # name of the run with which the others are compared, if one was named
    systems: Systems  # the configurations of the runs, with the verdicts on them
    verdict_notes: tuple[str, ...]  # reasons for missing verdicts
    files: tuple[Path, ...] = ()  # written files; empty when no folder was given

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Verdicts on each configuration except the baseline."""
        return self.systems.verdicts

    @property
    def summary(self) -> tuple[StatementBox, ...]:
        """The conclusions, and whether they can be trusted; nothing for one run."""
        conclusions = run_statements(self.verdicts)
        trust = trust_statements(self.systems, self.certificates) if len(self.runs) > 1 else ()
        return tuple(box for box in (StatementBox("", conclusions), StatementBox(TRUST, trust)) if box.statements)

    def _repr_html_(self) -> str:
        from paratune.console.notebook import html_of
        from paratune.reports.terminal import terminal_runs

        return html_of(terminal_runs(self))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data, as in report.json; unknown values are None."""
        same, own = self.sameness, {"run_id", "task", "hardware", "versions", "code", "command"}
        of_session = {"began", "step", "world_size", "device", "batch", "loader", *own} - {"run_id", "task"}
        runs = []
        for at, run in enumerate(self.runs):
            sessions = [
                {**session.run.model_dump(include=of_session, exclude_unset=True),
                 "strategy": session.run.strategy.kind, "precision": session.setting("precision")}
                for session in run.sessions
            ]  # fmt: skip
            runs.append(
                {
                    "run": run.name,
                    "folder": str(run.folder),
                    **run.run.model_dump(include=own, exclude_unset=True),
                    "values": {row.measure.key: row.cells[at].value for row in self.rows},
                    "peak_memory_bytes_by_rank": [rank.peak_memory_bytes for rank in run.summary.ranks],
                    "confusion": run.summary.confusion or None,
                    "slices": dict(run.summary.slices),
                    "sessions": sessions if len(sessions) > 1 else [],
                }
            )
        members = (member.runs for member in self.systems.measured)
        groups = [[run.name for run in group] for group in members if len({run.run.seed for run in group}) > 1]
        return {
            "generator": GENERATOR,
            "schema_version": REPORT_SCHEMA_VERSION,
            "runs": runs,
            "unfinished": [
                {"run": run.name, "folder": str(run.folder), "reason": run.reason} for run in self.unfinished
            ],
            "same_experiment": {
                "verdict": same.verdict, "sentence": same.sentence, "not_recorded": list(same.unknown),
                "differ": {entry.key: dict(entry.values) for entry in same.differ},
            },
            "config_differences": {entry.key: dict(entry.values) for entry in self.differences},
            "seed_groups": [_spreads(names, self.rows) for names in groups],
            "certificates": [entry.as_dict() for entry in self.certificates],
            "baseline": self.baseline,
            "verdicts": [verdict.as_dict() for verdict in self.verdicts],
            "summary": [asdict(box) | {"statements": [*map(asdict, box.statements)]} for box in self.summary],
            "notes": list(self.notes),
            "files": [str(path) for path in self.files],
        }  # fmt: skip


def build_report(
    found: FoundRuns, baseline: Path | None = None, targets: Sequence[ScoreTarget] = (), price: float | None = None,
    margins: Mapping[str, Margin] | None = None,
) -> Report:  # fmt: skip
    """Return the report of runs that were read, with the arguments of `paratune.reports.make`; writes nothing.

    Raises:
        CheckpointError: The baseline or all other runs are not finished.
        ConfigError: No run was evaluated by the metric of a target.
    """
    runs = found.runs
    base = next((run for run in runs if baseline and run.folder.resolve() == baseline.resolve()), None)
    if baseline is not None and (base is None or len(runs) == 1):
        problem = "it is not a finished run, and there is nothing to compare with"
        if base is not None:
            problem = "no other finished run is given; add its folder, or leave out --baseline"
        text = f"--baseline {plain(baseline)}: {problem}"
        raise CheckpointError(text, code="report.nothing_to_compare", option="--baseline", value=baseline)
    name = None if base is None else base.name
    warnings, notes = _notes(runs)
    warnings = [*found.warnings, *warnings]
    systems = systems_of_runs(runs, name, price)
    verdicts, verdict_notes = judged(systems, margins)
    if name is not None and not verdicts and not verdict_notes:
        why = "all runs are of its configuration" if len(systems.measured) == 1 else "probes are not whole runs"
        verdict_notes = (f"Nothing is compared with {name}: {why}.",)
    rows = build_rows(runs, reference=base, targets=targets, price=price)
    differences = tuple(all_differences(runs))
    return Report(
        runs=runs, unfinished=found.unfinished, certificates=found.certificates, rows=rows, sameness=compare(runs),
        differences=differences, notes=(*warnings, *notes, *found.notes), warnings=tuple(warnings), baseline=name,
        systems=replace(systems, verdicts=verdicts), verdict_notes=verdict_notes,
    )  # fmt: skip


def _notes(runs: Sequence[RunRecord]) -> tuple[list[str], list[str]]:
    """Return the warnings and the other notes; a note that applies to several runs appears once."""
    pairs: list[tuple[str, str]] = []
    for run in runs:
        own: list[str] = []
        if run.summary.num_steps and not (run.summary.throughput.num_steps_measured or run.is_foreign):
            steps = format_count(run.summary.num_steps)
            own.append(f"no step was measured: all {steps} were warm-up, so rates and phases are n/a.")
        found = compare_with_constant(run.summary.scores, run.summary.baseline.model_dump(), run.run.task.metrics)
        if found is not None and not is_better_score(found.metric, found.model, found.constant):
            own.append(found.sentence)
        by_session = {name: run.session_values(f"run.{field}") for name, field in _MAY_CHANGE.items()}
        if changes := [f"{name} {over_sessions(values)}" for name, values in by_session.items() if len(values) > 1]:
            steps = ", ".join(format_count(session.run.step) for session in run.sessions[1:])
            own.append(
                f"resumed with other settings (after step {steps}): {', '.join(changes)}. Times, rates and phases are "
                "those of all its sessions together, memory is that of the last."
            )
        pairs += [(text, run.name) for text in own]
    warnings = _shared(runs, pairs)
    if len({run.summary.memory.kind for run in runs if not run.is_foreign}) > 1:
        warnings.append("Peak memory was measured in different ways and is not comparable: see the row Kind of memory.")
    texts = [(text, run.name) for run in runs for text in _notes_of(run, runs)]
    costs = {run.name: [run.summary.recorder.get(key) for key in ("cost_ms_per_step", "cost_share")] for run in runs}
    if known := {name: cost for name, cost in costs.items() if None not in cost}:
        most_ms, most = map(max, zip(*known.values(), strict=True))
        text = f"measuring itself cost at most {most_ms:.3f} ms a step ({100 * most:.2f}%)."
        texts += [(text, name) for name in known]
    return warnings, _shared(runs, texts)


def _shared(runs: Sequence[RunRecord], texts: Iterable[tuple[str, str]]) -> list[str]:
    notes = []
    for text, names in grouped(texts).items():
        who = "All runs" if len(names) == len(runs) else ", ".join(names)
        notes.append(f"{text[0].upper()}{text[1:]}" if len(runs) == 1 else f"{who}: {text}")
    return notes


def _notes_of(run: RunRecord, runs: Sequence[RunRecord]) -> Iterator[str]:
    summary, fitted = run.summary, run.summary.fitted
    measured, steps = summary.throughput.num_steps_measured, format_count(summary.num_steps)
    if run.is_fitted:
        c, tried = NOT_AVAILABLE if fitted.c is None else fitted.c, len(fitted.candidates)
        among = f", the best {fitted.chosen_by.get('metric')} on validation of {tried} values" if tried > 1 else ""
        features = format_count(fitted.num_features)
        yield f"no model was trained: {fitted.estimator} of {features} features, with C = {c}{among}."
    elif measured:
        warm_up, profiled = run.setting("measure.warmup_steps"), summary.profile.num_steps
        first = "" if warm_up is None else f" (the first {format_count(warm_up)}, and as many after each resume)"
        profiled = profiled or summary.communication.num_steps
        too = f"; so are {format_count(profiled)} steps under the profiler" if profiled else ""
        yield f"{format_count(measured)} of {steps} steps measured; warm-up is left out{first}{too}."
    events = {
        "interrupted {}; steps trained again after a resume count once.": summary.num_interruptions,
        "its job was queued again {} by Slurm.": summary.num_requeued,
        "its processes were started again {} by torchrun.": summary.num_restarts,
    }
    for text, number in events.items():
        if number:
            yield text.format("once" if number == 1 else f"{format_count(number)} times")
    if summary.stop_reason == "early_stopping":
        yield f"stopped early, after {steps} steps, because validation did not improve."
    for key, is_on_gpus in _EXPLAINED.items():  # unknown, and known for another run or for runs on GPUs
        measure, on_gpu = MEASURES[key], run.run.device == "cuda"
        are_known = any(measure.of(other) is not None for other in runs) or key == "utilisation"
        if measure.of(run) is None and (on_gpu or not is_on_gpus) and (are_known or is_on_gpus):
            yield from [f"{measure.label} n/a: {reason}." for reason in [measure.reason(run)] if reason is not None]


def _spreads(names: Sequence[str], rows: Sequence[ReportRow]) -> dict[str, Any]:
    """Return mean and sample standard deviation (n - 1) of the figures of runs that differ only in their seed."""
    spreads = {}
    for row in rows:
        values = [cell.value for cell in row.cells if cell.runs[0] in names and cell.value is not None]
        if len(values) > 1 and (row.measure.key in _SPREAD_KEYS or row.measure.group.endswith(" scores")):
            ends = {"min": min(values), "max": max(values), "num_runs": len(values)}
            mean, deviation = statistics.fmean(values), statistics.stdev(values)
            spreads[row.measure.key] = {"mean": mean, "standard_deviation": deviation, **ends}
    return {"runs": names, "spread": spreads}


def comparison_table(report: Report, runs: Sequence[RunRecord]) -> Table:
    """Return the table of the known figures, scores first: a line for each, a column for each of the first runs."""
    rows = sorted((row for row in report.rows if row.shown), key=lambda row: not row.measure.group.endswith(" scores"))
    lines = ((TableCell(row.label, row.measure.key), *row.cells[: len(runs)]) for row in rows)
    by_group = groupby(enumerate(rows), lambda at: at[1].measure.group)
    groups = [(next(members)[0], heading) for heading, members in by_group]
    notes = dict.fromkeys(row.measure.note for row in rows if row.measure.note)
    title = "Comparison" if len(runs) > 1 else "Results"
    columns: list[Heading] = [("", "figure"), *(run.name for run in runs)]
    return make_table("comparison", title, columns, lines, 1, notes, groups=groups)


def confusion_table(run: RunRecord, suffix: str) -> Table | str:
    """Return the confusion matrix of test, else of validation; of many classes the most frequent confusions."""
    by_split = {split: read_confusion(run.summary.confusion.get(split)) for split in ("test", "validation")}
    split, matrix = next(((split, matrix) for split, matrix in by_split.items() if matrix is not None), ("", None))
    if matrix is None:
        return f"No confusion matrix: the record of {run.name} has none."
    classes, key = range(matrix.num_classes), f"confusion{suffix}"
    names = run.labels if len(run.labels) == len(classes) else [str(number) for number in classes]
    if len(classes) <= MAX_CLASSES:
        rows: list[Row] = []
        for true in classes:
            line = [TableCell(names[true])]
            for predicted in classes:
                count, total = matrix.counts.get((true, predicted), 0), matrix.row_sums.get(true, 0)
                source = f"summary.confusion.{split}, {names[true]} predicted as {names[predicted]}"
                share = count / total if total else 0.0
                line.append(TableCell(f"{count:,}", count, (run.name,), source, share=share))
            rows.append(line)
        note = f"Lines: true classes; columns: predicted classes. {sum(matrix.counts.values()):,} rows."
        return make_table(key, f"Confusion matrix of {run.name} on {split}", ("True class", *names), rows, 1, (note,))
    lines: list[Row] = []
    for true, predicted, count in matrix.confused[:_MAX_CONFUSIONS]:
        figures = ((count, ","), (count / matrix.row_sums[true], ".1%"))
        source = f"summary.confusion.{split}"
        cells = (TableCell(format_as(value, form), value, (run.name,), source) for value, form in figures)
        lines.append((names[true], names[predicted], *cells))
    columns = ("True class", "Predicted class", "Rows", "Share of the true class")
    note = f"The most frequent confusions of {len(names)} classes; report.json has the whole matrix."
    return make_table(key, f"Most frequent confusions of {run.name} on {split}", columns, lines, 2, (note,))


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
        if not (baseline / RUN_FILE).is_file() and state_file(baseline) is None:
            reason = f"it is not a run folder; give another one, or one of {listing(map(plain, folders), 8)}"
            raise option_error("--baseline", plain(baseline), reason, code="run.not_found")
        folders.insert(0, baseline)
    report = build_report(read_runs(folders), baseline, targets, price, margins)
    if out is None:
        return report
    lines = [
        {"run": run.name, "folder": str(run.folder), **{row.measure.key: row.cells[at].value for row in report.rows}}
        for at, run in enumerate(report.runs)
    ]
    files = {**document_files(run_document(report), wanted=wanted), CSV: results_csv(lines)}
    files |= tables.slices_csv(report.runs)
    texts = {REPRODUCE: reproduction_texts(report.runs)}
    return replace(report, files=write_files(out, files, {**report.as_dict(), **texts}))


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
    notices += map(Notice, report.warnings[:_MAX_NOTICES])
    tasks, models, sources = (
        ", ".join(dict.fromkeys(value_text(run.get(source)) for run in report.runs))
        for source in ("run.task.kind", "run.model.name", "run.data.train.source")
    )
    source = f"the records of {listing([run.name for run in report.runs])}"
    about = "Nothing was measured again. In index.html, point at a cell to see its run and record."
    return ReportDocument(
        title=f"Run {report.runs[0].name}" if len(report.runs) == 1 else f"{len(report.runs)} runs compared",
        lead=(f"{tasks.capitalize()}: {models} trained on {sources}.",),
        sections=tuple(section for section in _sections(report) if section.parts),
        footer=f"{made_by(source)} {about}",
        notices=tuple(notices),
    )


def _sections(report: Report) -> Iterator[ReportSection]:
    """Yield all sections, empty ones without parts; only the first runs have figures and tables of their own."""
    runs = report.runs[:MAX_RUNS]
    suffixed = [(run, f"-{number}" if len(runs) > 1 else "") for number, run in enumerate(runs, start=1)]
    main = [tables.main_table(report.systems)] if len(report.runs) > 1 else []
    yield ReportSection("summary", "Summary", (*report.summary, *main))
    yield verdict_section(report.verdicts, report.verdict_notes)
    comparison = comparison_table(report, runs)
    base = next((run for run in report.runs if run.name == report.baseline), runs[0])
    groups = [(member.label, member.runs) for member in report.systems.measured]
    drawings = [*figures.step_drawings(groups, reference_batch_of(base))]
    if any(run.summary.num_steps for run in runs):
        drawings.append(figures.phase_drawing(report.systems, per_step=True))
    limit = f" The first {len(runs)} of {len(report.runs):,} runs." if len(runs) < len(report.runs) else ""
    yield ReportSection("comparison", comparison.title, (comparison, *drawings, _HOW_MEASURED + limit))
    if len(runs) > 1:
        rows: list[Row] = [
            [item.key, *(TableCell(setting_text(item, run.name), None, (run.name,), f"run.config.{item.key}")
                         for run in runs)] for item in report.differences
        ]  # fmt: skip
        none = () if rows else ("The resolved configurations are equal but for the names of the runs.",)
        columns: list[Heading] = [("Setting", "setting"), *(run.name for run in runs)]
        table = make_table("settings", "Settings that differ", columns, rows, len(columns), none)
        yield ReportSection("settings", table.title, (table,))
    certificates = tuple(certificates_table(report.certificates, len(report.runs)))
    yield ReportSection("certificates", "Certificates", certificates)
    scored = [(run, end) for run, end in suffixed if not run.is_probe]
    predictions = {run.name: figures.read_predictions(run) for run, _ in scored if run.task == "regression"}
    known = {name: values for name, values in predictions.items() if not isinstance(values, str)}
    drawn = dict(zip(known, figures.prediction_figures(known), strict=True))
    quality: list[Part] = []
    for run, end in scored:
        shown = predictions.get(run.name)
        if shown is None:
            quality.append(confusion_table(run, end))
        else:
            quality.append(shown if isinstance(shown, str) else drawn[run.name])
            quality += [*tables.length_table(run, end), *tables.raters_table(run, end)]
    yield ReportSection("quality", "Predictions", tuple(quality), any(isinstance(part, Drawing) for part in quality))
    first = len(report.warnings[:_MAX_NOTICES])  # those above are notices
    notes = [*report.notes[first : first + _MAX_NOTES]]
    notes += [f"report.json has {more} more notes."] if (more := len(report.notes) - first - _MAX_NOTES) > 0 else []
    sections: dict[str, tuple[str, Iterable[Part]]] = {
        "configurations": ("Configurations", [tables.configurations_table(report.systems)] if report.verdicts else []),
        tables.SLICES: (tables.SLICES_HEADING, tables.slice_tables([(run.name, (run,)) for run in runs])),
        "machine": ("Systems, models and software", tables.machine_tables(report.systems)),
        REPRODUCE: (REPRODUCE_HEADING, reproduction(runs, report.runs)),
        "notes": ("Notes", [Remarks(tuple(notes))] if notes else []),
    }  # fmt: skip
    for key, (title, parts) in sections.items():
        yield ReportSection(key, title, tuple(parts), is_short=False)
