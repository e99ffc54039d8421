"""The tables of a report of runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from paratune.base.units import format_as, format_share
from paratune.records import predictions_file
from paratune.records.certificate import COLUMNS
from paratune.records.confusion import Confusion
from paratune.records.evaluations import ordered_scores
from paratune.records.finished import RunRecord
from paratune.reports.measures import metric_name
from paratune.reports.run.model import MAX_CLASSES, Report, class_names, confusion_matrix
from paratune.reports.runs.certificates import Certificate
from paratune.reports.runs.machine import setting_text
from paratune.reports.runs.sameness import Difference
from paratune.reports.tables.table import Column, Heading, Row, Table, TableCell, facts_table, make_table

MAX_RUNS = 24
"""Reports of more runs have figures and tables of the first runs only."""
_MAX_VALUES = 24
"""Errors by actual value: labels with more distinct values are grouped."""
_MAX_CONFUSIONS = 20
_MAX_SCORES = 3
_ERROR_FORMATS = (".3g", "+.3g", ".3g", ".3g")


def few_runs(report: Report) -> Report:
    """Return the report of the first `MAX_RUNS` runs; the report itself if it has no more."""
    return report if len(report.runs) <= MAX_RUNS else replace(report, runs=report.runs[:MAX_RUNS])


def table_key(report: Report, run: RunRecord, kind: str) -> str:
    """Return the key of a table of one run, such as "losses-2"."""
    return kind if len(report.runs) == 1 else f"{kind}-{report.runs.index(run) + 1}"


def comparison(report: Report) -> Table:
    """Return the table of all figures: a line for each figure, a column for each run."""
    several = len(report.runs) > 1
    rows = ((TableCell(row.label, row.key), *row.cells[: len(report.runs)]) for row in report.shown_rows)
    title, groups = "Comparison" if several else "Results", _groups(report.shown_rows)
    return make_table(
        "comparison",
        title,
        (("", "figure"), *(run.name for run in report.runs)),
        rows,
        1,
        report.footnotes,
        groups=groups,
    )


def certificate(report: Report, certificate: Certificate, number: int) -> Table:
    """Return the differences between strategies and one process that `paratune certify` found."""
    about = (
        "Compared with one process: same samples, order and initial weights. The numbers are the largest relative "
        "differences."
    )
    notes = (*certificate.reasons, f"{certificate.how}. {about} {certificate.path}")
    title = f"{certificate.run_names(len(report.runs))}: {certificate.verdict}"
    columns = map(str.capitalize, COLUMNS)
    return make_table(f"certificate-{number}", title, columns, certificate.rows, 1, notes)


def evaluations(report: Report, run: RunRecord) -> Table | None:
    """Return losses and scores of each evaluation, with the kept one marked; None if there was none."""
    steps = np.array(run.train.steps)
    values = np.array(run.train.losses, dtype=np.float64)
    kept_step = run.summary.kept_step
    metrics = _evaluated_metrics(run)
    lines, before = [], 0
    for step, epoch, loss in zip(run.validation.steps, run.validation.epochs, run.validation.losses, strict=True):
        since = values[(steps > before) & (steps <= step)]
        known = since[np.isfinite(since)]
        mean = float(known.mean()) if len(known) else None
        source = f"events: mean of step.loss over steps {before + 1} to {step}"
        scores = run.validation_scores.get(step, {})
        lines.append(
            (
                TableCell(f"{step:,}", step, (run.name,)),
                _number(run, epoch, ".2f", "events: evaluation.epoch"),
                _number(run, mean, ".4f", source),
                _number(run, loss, ".4f", "events: evaluation.scores.loss"),
                *(_number(run, scores.get(name), ".4f", f"events: evaluation.scores.{name}") for name in metrics),
                *([TableCell("kept" if step == kept_step else "", step == kept_step)] if kept_step is not None else []),
            )
        )
        before = step
    if not lines:
        return None
    columns: list[Heading] = [
        "Step", "Epoch", "Mean training loss since the last evaluation", "Validation loss",
        *((metric_name(name), name) for name in metrics),
        *([Column("Kept model", "is_kept", is_text=True)] if kept_step is not None else []),
    ]  # fmt: skip
    key = table_key(report, run, "evaluations")
    return make_table(key, f"Evaluations of {run.name}", columns, lines, 0, is_closed=True)


def _evaluated_metrics(run: RunRecord) -> list[str]:
    """Return the first metrics of the evaluations without the loss; the metric that selects the model comes first."""
    scores = {name: score for by_name in run.validation_scores.values() for name, score in by_name.items()}
    names = ordered_scores(scores, run.summary.best.metric)
    return [name for name in names if name != "loss"][:_MAX_SCORES]


def errors(report: Report, run: RunRecord, split: str, labels: Any, predictions: Any) -> Table:
    """Return the errors of a regression for each actual value, or for ten equal parts of the range of values.

    `labels` and `predictions` are (N,) and finite.
    """
    values = np.unique(labels)
    if len(values) <= _MAX_VALUES:
        groups = [(f"{value:g}", labels == value) for value in values]
    else:
        edges = np.linspace(labels.min(), labels.max(), 11)
        bins = np.clip(np.digitize(labels, edges) - 1, 0, 9)
        groups = [(f"{edges[at]:.3g} to {edges[at + 1]:.3g}", bins == at) for at in np.unique(bins)]
    lines: list[Row] = []
    source = predictions_file(split)
    for name, chosen in groups:
        error = predictions[chosen] - labels[chosen]
        figures = (predictions[chosen].mean(), error.mean(), np.abs(error).mean(), np.sqrt((error**2).mean()))
        texts = [f"{figure:{form}}".replace("-", "−") for figure, form in zip(figures, _ERROR_FORMATS, strict=True)]
        fields = zip([f"{len(error):,}", *texts], [len(error), *map(float, figures)], strict=True)
        lines.append([name, *(TableCell(text, value, (run.name,), source) for text, value in fields)])
    columns = ("Actual", "Rows", "Mean prediction", "Mean error", "MAE", "RMSE")
    title = f"Errors of {run.name} on {split} by actual value"
    return make_table(table_key(report, run, "errors"), title, columns, lines, 0, is_closed=True)


def confusion(report: Report, run: RunRecord) -> Table | None:
    """Return the confusion matrix, or the most frequent confusions of many classes; None if the record has none."""
    split, matrix = confusion_matrix(run)
    if matrix is None:
        return None
    names, key = class_names(run, matrix.num_classes), table_key(report, run, "confusion")
    if matrix.num_classes > MAX_CLASSES:
        return _most_frequent(run, split, matrix, names, key)

    def cell(true: int, predicted: int) -> TableCell:
        count, total = matrix.counts.get((true, predicted), 0), matrix.row_sums.get(true, 0)
        source = f"summary.confusion.{split}, {names[true]} predicted as {names[predicted]}"
        return TableCell(f"{count:,}", count, (run.name,), source, share=count / total if total else 0.0)

    classes = range(len(names))
    rows: list[Row] = [[names[true], *(cell(true, predicted) for predicted in classes)] for true in classes]
    note = f"Lines: true classes; columns: predicted classes. {sum(matrix.counts.values()):,} rows."
    return make_table(key, f"Confusion matrix of {run.name} on {split}", ("True class", *names), rows, 1, (note,))


def _most_frequent(run: RunRecord, split: str, matrix: Confusion, names: Sequence[str], key: str) -> Table:
    source, lines = f"summary.confusion.{split}", []
    for true, predicted, count in matrix.confused[:_MAX_CONFUSIONS]:
        share = count / matrix.row_sums[true]
        numbers = (TableCell(f"{count:,}", count, (run.name,), source),
                   TableCell(format_share(share), share, (run.name,), source))  # fmt: skip
        lines.append((names[true], names[predicted], *numbers))
    columns = ("True class", "Predicted class", "Rows", "Share of the true class")
    title = f"Most frequent confusions of {run.name} on {split}"
    note = f"The most frequent confusions of {len(names)} classes; report.json has the whole matrix."
    return make_table(key, title, columns, lines, 2, (note,))


def settings(report: Report) -> Table:
    """Return the configuration keys whose values differ, with the origin of each value."""

    def cell(setting: Difference, run: RunRecord) -> TableCell:
        origin = f"from {setting.origins[run.name] or 'unknown'}"
        return TableCell(setting_text(setting, run.name), None, (run.name,), origin)

    rows: list[Row] = [[setting.key, *(cell(setting, run) for run in report.runs)] for setting in report.differences]
    columns: list[Heading] = [("Setting", "setting"), *(run.name for run in report.runs)]
    note = "index.html shows the file line or the option that a value comes from: point at the value."
    if not rows:
        note = "The resolved configurations are equal but for the names of the runs."
    return make_table("settings", "Settings that differ", columns, rows, len(columns), (note,))


def facts(report: Report, key: str, title: str, read: Callable[[RunRecord], Mapping[str, str]]) -> Table:
    """Return a table of facts with a column for each run; with one column if they are the same in all runs."""
    by_run = {run.name: read(run) for run in report.runs}
    first = report.runs[0].name
    same = len(by_run) > 1 and all(values == by_run[first] for values in by_run.values())
    shown = {"All runs": by_run[first]} if same else by_run
    runs = {name: tuple(by_run) if same else (name,) for name in shown}
    table = facts_table(key, title, shown, runs)
    return table if table.lines else replace(table, notes=("Not recorded.",))


def _groups(rows: Sequence[Any]) -> tuple[tuple[int, str], ...]:
    """Return the headings of consecutive rows of a group: the position of the first row, and the heading."""
    groups = groupby(enumerate(rows), key=lambda pair: pair[1].group)
    return tuple((next(members)[0], heading) for heading, members in groups)


def _number(run: RunRecord, value: float | None, form: str, source: str) -> TableCell:
    return TableCell(format_as(value, form), value, (run.name,), source)
