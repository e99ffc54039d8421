"""The tables of a report of runs."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from paratune.base.units import NOT_AVAILABLE, format_as, format_number, format_share
from paratune.records.finished import RunRecord, number_in
from paratune.records.scores import ordered_scores, read_confusion
from paratune.reports.measures import metric_name
from paratune.reports.run.model import Report
from paratune.reports.runs.sameness import Difference, setting_text
from paratune.reports.tables.table import Heading, Row, Table, TableCell, make_table

MAX_CLASSES = 24  # confusion matrices of more classes are shown as a list of the most frequent confusions
_MAX_CONFUSIONS, _MAX_SCORES = 20, 3
_OF_OPERATORS = {
    "calls": "Calls a step",
    "self_host_ms": "Host, itself (ms a step)",
    "host_ms": "Host, with what it calls (ms a step)",
}


def comparison(report: Report, runs: Sequence[RunRecord]) -> Table:
    """Return the table of the known figures: a line for each figure, a column for each of the first runs."""
    rows = [row for row in report.rows if row.shown]
    lines = ((TableCell(row.label, row.key), *row.cells[: len(runs)]) for row in rows)
    groups = [(next(members)[0], heading) for heading, members in groupby(enumerate(rows), lambda at: at[1].group)]
    notes = dict.fromkeys(row.measure.note for row in rows if row.measure.note)
    title = "Comparison" if len(runs) > 1 else "Results"
    return make_table(
        "comparison", title, [("", "figure"), *(run.name for run in runs)], lines, 1, notes, groups=groups
    )


def _cell(run: RunRecord, value: float | None, form: str, source: str) -> TableCell:
    return TableCell(format_as(value, form).replace("-", "−"), value, (run.name,), source)


def evaluations(run: RunRecord, suffix: str) -> Iterator[Table]:
    """Yield losses and scores of each evaluation, the kept one in bold."""
    steps, losses = np.array(run.train.steps), np.array(run.train.losses, dtype=np.float64)
    curve = run.validation
    known = {name: score for scores in run.validation_scores.values() for name, score in scores.items()}
    ordered = ordered_scores(known, run.summary.best.metric)  # the metric that selects the model comes first
    metrics = [name for name in ordered if name != "loss"][:_MAX_SCORES]
    lines, before = [], 0
    for step, epoch, loss in zip(curve.steps, curve.epochs, curve.losses, strict=True):
        since = losses[(steps > before) & (steps <= step) & np.isfinite(losses)]
        scores, mean = run.validation_scores.get(step, {}), float(since.mean()) if len(since) else None
        numbers = [(epoch, ".2f"), *((value, ".4f") for value in (mean, loss, *map(scores.get, metrics)))]
        lines.append((TableCell(f"{step:,}", step), *(_cell(run, *number, "events: evaluation") for number in numbers)))
        before = step
    columns: list[Heading] = [
        "Step", "Epoch", "Mean training loss since the last evaluation", "Validation loss",
        *((metric_name(name), name) for name in metrics),
    ]  # fmt: skip
    marked = [at for at, step in enumerate(curve.steps) if step == run.summary.kept_step]
    note = ["In bold: the kept model."] * bool(marked)
    if lines:
        title = f"Evaluations of {run.name}"
        yield make_table(f"evaluations{suffix}", title, columns, lines, 0, note, marked, is_closed=True)


def confusion(run: RunRecord, suffix: str) -> Table | str:
    """Return the confusion matrix of test, else of validation; of many classes the most frequent confusions."""
    by_split = {split: read_confusion(run.summary.confusion.get(split)) for split in ("test", "validation")}
    split, matrix = next(((split, matrix) for split, matrix in by_split.items() if matrix is not None), ("", None))
    if matrix is None:
        return f"No confusion matrix: the record of {run.name} has none."
    classes, key = range(matrix.num_classes), f"confusion{suffix}"
    names = run.labels if len(run.labels) == len(classes) else [str(number) for number in classes]
    if len(classes) <= MAX_CLASSES:

        def cell(true: int, predicted: int) -> TableCell:
            count, total = matrix.counts.get((true, predicted), 0), matrix.row_sums.get(true, 0)
            source = f"summary.confusion.{split}, {names[true]} predicted as {names[predicted]}"
            return TableCell(f"{count:,}", count, (run.name,), source, share=count / total if total else 0.0)

        rows: list[Row] = [[names[true], *(cell(true, predicted) for predicted in classes)] for true in classes]
        note = f"Lines: true classes; columns: predicted classes. {sum(matrix.counts.values()):,} rows."
        return make_table(key, f"Confusion matrix of {run.name} on {split}", ("True class", *names), rows, 1, (note,))
    lines: list[Row] = []
    for true, predicted, count in matrix.confused[:_MAX_CONFUSIONS]:
        figures = ((count, ","), (count / matrix.row_sums[true], ".1%"))
        cells = (_cell(run, value, form, f"summary.confusion.{split}") for value, form in figures)
        lines.append((names[true], names[predicted], *cells))
    columns = ("True class", "Predicted class", "Rows", "Share of the true class")
    note = f"The most frequent confusions of {len(names)} classes; report.json has the whole matrix."
    return make_table(key, f"Most frequent confusions of {run.name} on {split}", columns, lines, 2, (note,))


def profile(run: RunRecord, suffix: str) -> Iterator[Table]:
    """Yield the operators that take most time in the steps under the profiler."""
    found = run.summary.profile
    if not found.num_steps or not found.operators:
        return
    wall, host, device = (
        format_number(value, 3) for value in (found.wall_ms_per_step, found.host_ms_per_step, found.device_ms_per_step)
    )
    note = f"{found.num_steps:g} steps under the profiler, {wall} ms each (more than without it); host {host} ms"
    if device != NOT_AVAILABLE:
        note += f"; device {device} ms, idle {format_share(found.idle_share)}"
    note += f". Trace of the first rank: {run.folder / found.trace}." if found.trace else "."
    columns = _OF_OPERATORS | ({"self_device_ms": "Device (ms a step)"} if found.kernels else {})
    lines: list[Row] = []
    for row in found.operators:
        totals = [number_in(row.get(field)) for field in columns]
        means = [None if total is None else total / found.num_steps for total in totals]
        source = "summary.profile.operators over the profiled steps"
        lines.append([str(row.get("name")), *(_cell(run, mean, ",.3f", source) for mean in means)])
    heads = (("Operator", "name"), *((label, f"{field}_per_step") for field, label in columns.items()))
    title = f"Operators of {run.name} that take most time"
    yield make_table(f"operators{suffix}", title, heads, lines, 1, (note,))


def settings(differences: Sequence[Difference], runs: Sequence[RunRecord]) -> Table:
    """Return the configuration keys whose values differ."""
    rows: list[Row] = [
        [
            item.key,
            *(TableCell(setting_text(item, run.name), None, (run.name,), f"run.config.{item.key}") for run in runs),
        ]
        for item in differences
    ]
    notes = () if rows else ("The resolved configurations are equal but for the names of the runs.",)
    columns: list[Heading] = [("Setting", "setting"), *(run.name for run in runs)]
    return make_table("settings", "Settings that differ", columns, rows, len(columns), notes)
