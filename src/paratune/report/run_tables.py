"""The tables of a report of runs; page, Markdown, LaTeX, CSV and PDF write the same ones."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from paratune.base.units import NOT_AVAILABLE, format_share
from paratune.records import ALL_PHASES, predictions_file
from paratune.records.certificate import COLUMNS
from paratune.report.baseline import Against
from paratune.report.certificates import Certificate
from paratune.report.machine import hardware_facts, setting_text, software_facts
from paratune.report.model import MAX_CLASSES, Report, SeedGroup, class_names, confusion_of, rank_memory
from paratune.report.pictures import Predictions
from paratune.report.profile_tables import profile_tables
from paratune.report.read import RunRecord
from paratune.report.rows import ReportRow, byte_unit, decimals, numbers
from paratune.report.slice_tables import SlicedRuns, slice_tables
from paratune.report.speed_rows import PHASE_NAMES
from paratune.report.tabular import Column, Table, TableCell
from paratune.report.text import some_names

MAX_RUNS = 24
"""More runs than this stand below each other, and only the first have figures and tables of their own."""
_MAX_RANKS = 64
_MAX_VALUES = 24
"""Errors by actual value: of each of so many different values; more are put together."""
_MAX_CONFUSIONS = 20
_OF_EACH_RUN = (
    "strategy", "world_size", "precision", "global_batch_size", "seed", "train_s", "epoch_s", "samples_per_s",
    "tokens_per_s", "step_median_ms", "peak_memory_largest_bytes",
)  # fmt: skip
_MAX_SCORES = 3


def run_tables(report: Report, predictions: Mapping[str, Predictions]) -> Iterator[Table]:
    """Yield all tables, in the order of the page.

    Args:
        report: The report.
        predictions: Of each regression that has any, by the run's name.
    """
    few = few_runs(report)
    is_whole = few is report
    if is_whole:
        yield comparison(report)
    if len(report.runs) > 2:
        yield every_run(report)
    for number, one in enumerate(report.certificates, start=1):
        yield certificate(report, one, number)
    if report.against is not None:
        yield changes(report.against)
    yield from (seeds(report, group, number) for number, group in enumerate(report.seed_groups, start=1))
    yield from (table for run in few.runs if (table := losses(few, run)) is not None)
    yield from slice_tables([SlicedRuns(run.name, (run,)) for run in few.runs])
    yield phase_contents(report)
    for run in few.runs:
        yield from profile_tables(run, table_key(few, run, "operators"))
    yield memory(few)
    for run in few.runs:
        if run.name in predictions:
            yield errors(few, run, *predictions[run.name])
        yield from (table for table in (confusion(few, run),) if table is not None)
    if len(report.runs) > 1:
        yield settings(report) if is_whole else settings_by_run(report)
    yield facts(few, "hardware", "Hardware", hardware_facts)
    yield facts(few, "software", "Software", software_facts)
    if report.unfinished:
        yield unfinished(report)


def few_runs(report: Report) -> Report:
    """Return the report of the first runs, where there are more than can be shown beside each other."""
    return report if len(report.runs) <= MAX_RUNS else replace(report, runs=report.runs[:MAX_RUNS])


def comparison(report: Report) -> Table:
    """Return the table of all figures: a line a figure, a column a run."""
    columns = [Column("", "figure", is_text=True), *(Column(run.name) for run in report.runs)]
    lines = [(TableCell(row.label, row.key), *_cells(row)) for row in report.shown_rows]
    title = "Comparison" if len(report.runs) > 1 else "Results"
    groups = _groups(report.shown_rows)
    return Table("comparison", title, tuple(columns), tuple(lines), report.footnotes, groups=groups)


def every_run(report: Report) -> Table:
    """Return the main figures with a line a run, to be sorted by."""
    rows = {row.key: row for row in report.shown_rows}
    chosen = [rows[key] for key in _OF_EACH_RUN if key in rows]
    scores = [row for row in report.shown_rows if row.metric not in (None, "loss")]
    last = scores[-1].group if scores else None
    chosen += [row for row in scores if row.group == last][:_MAX_SCORES]
    columns = [Column("Run", "run", is_text=True), *(_run_column(row) for row in chosen)]
    figures = zip(*map(_cells, chosen), strict=True)
    lines = [
        (TableCell(run.name, runs=(run.name,), source=str(run.folder)), *cells)
        for run, cells in zip(report.runs, figures, strict=True)
    ]
    is_all = len(report.runs) <= MAX_RUNS
    notes = ("All figures stand in the table before this one." if is_all else "report.csv has all figures.",)
    return Table("runs", "Every run", tuple(columns), tuple(lines), notes)


def _run_column(row: ReportRow) -> Column:
    is_text = any(isinstance(cell.value, str) for cell in row.cells)
    label = row.label
    if row.group.endswith("scores"):
        label = f"{row.group.removesuffix(' scores')}: {row.label}"
    elif row.key.startswith("peak_memory"):
        label = f"{row.group}, {row.label[0].lower()}{row.label[1:]}"
    return Column(label, row.key, is_text=is_text)


def certificate(report: Report, one: Certificate, number: int) -> Table:
    """Return what `paratune certify` found of strategies beside one process."""
    columns = tuple(Column(name.capitalize(), is_text=at == 0) for at, name in enumerate(COLUMNS))
    lines = tuple(tuple(TableCell(text) for text in row) for row in one.rows)
    beside = "Beside one process: same samples, order and initial weights, and the largest relative differences."
    notes = (*one.reasons, f"{one.how}. {beside} {one.path}")
    return Table(f"certificate-{number}", f"{one.whose(len(report.runs))}: {one.verdict}", columns, lines, notes)


def changes(found: Against) -> Table:
    """Return the changes against the baseline run."""
    every = [one.run for one in found.rows[0].changes] if found.rows else []
    runs = every[:MAX_RUNS]
    columns = [Column("", "figure", is_text=True), Column(f"{found.baseline} (baseline)", found.baseline)]
    for run in runs:
        columns += [Column(run), Column("Change", f"{run}_change_percent")]
    lines = []
    for row in found.rows:
        cells = [TableCell(row.label, row.key), TableCell(row.figure, runs=(found.baseline,))]
        for one in row.changes[:MAX_RUNS]:
            source = f"against {found.baseline}"
            cells.append(TableCell(one.figure, runs=(one.run,)))
            cells.append(TableCell(one.text, one.percent, (one.run,), source, better=one.better))
        lines.append(tuple(cells))
    note = (
        "A change is in per cent of the baseline's figure; none is given where that is 0 or below. Better and worse "
        "are by the metric's own direction; times and memory are better when less, rates when more; what rounds to "
        "0.0% is the same."
    )
    groups = _groups(found.rows)
    rest = (f"The first {len(runs)} of {len(every)} runs; report.csv has all.",) if runs != every else ()
    return Table("baseline", "Against the baseline", tuple(columns), tuple(lines), (note, *rest), groups=groups)


def seeds(report: Report, group: SeedGroup, number: int) -> Table:
    """Return mean and spread of runs that are equal but for their seed."""
    rows = [row for row in report.rows if row.key in group.spreads]
    lines = []
    for row in rows:
        one = group.spreads[row.key]
        figures: list[float | None] = [one.mean, one.deviation, one.low, one.high]
        places = 4 if row.group.endswith("scores") else decimals(figures)
        texts = [f"{value:,.{places}f}" for value in figures]
        label = row.label
        if row.key.endswith("_bytes"):
            unit, size = byte_unit(figures)
            label = f"Largest rank ({unit})"
            texts = numbers([None if value is None else value / size for value in figures])
        elif row.key in ("train_s", "epoch_s"):
            label = f"{row.label} (s)"
        source = f"computed from {row.key}"
        cells = (TableCell(text, value, one.runs, source) for text, value in zip(texts, figures, strict=True))
        lines.append(
            (TableCell(label, row.key), *cells, TableCell(str(len(one.runs)), len(one.runs), one.runs, source))
        )
    names = ("Mean", "Standard deviation", "Lowest", "Highest", "Runs")
    columns = (Column("", "figure", is_text=True), *(Column(name) for name in names))
    title, notes = f"Equal but for the seed: {some_names(group.runs)}", ("Sample standard deviation (n - 1).",)
    return Table(f"seeds-{number}", title, columns, tuple(lines), notes, groups=_groups(rows))


def losses(report: Report, run: RunRecord) -> Table | None:
    """Return the losses at each evaluation; None where there was none."""
    steps = np.array(run.train.steps)
    values = np.array(run.train.losses, dtype=np.float64)
    lines, before = [], 0
    for step, epoch, loss in zip(run.validation.steps, run.validation.epochs, run.validation.losses, strict=True):
        since = values[(steps > before) & (steps <= step)]
        known = since[np.isfinite(since)]
        mean = float(known.mean()) if len(known) else None
        source = f"events: mean of step.loss over steps {before + 1} to {step}"
        lines.append(
            (
                TableCell(f"{step:,}", step, (run.name,)),
                _number(run, epoch, ".2f", "events: evaluation.epoch"),
                _number(run, mean, ".4f", source),
                _number(run, loss, ".4f", "events: evaluation.scores.loss"),
            )
        )
        before = step
    if not lines:
        return None
    names = ("Epoch", "Training loss since the last one", "Validation loss")
    columns = (Column("Step"), *(Column(name) for name in names))
    return Table(table_key(report, run, "losses"), f"Losses of {run.name} at each evaluation", columns, tuple(lines))


def phase_contents(report: Report) -> Table:
    """Return what each phase contains under each strategy, as its traits say."""
    contents: dict[str, dict[str, str]] = {}
    for session in (session for run in report.runs for session in run.sessions):
        phases = session.get("run.strategy.traits.phases")
        texts = phases if isinstance(phases, dict) else {}
        kind = str(session.get("run.strategy.kind") or NOT_AVAILABLE)
        contents.setdefault(kind, {str(phase): str(text) for phase, text in texts.items()})
    other = "what is left of the step's wall time: logging, bookkeeping, waiting outside the phases"
    lines = [
        (
            TableCell(PHASE_NAMES[phase]),
            *(TableCell(other if phase == "other" else of.get(phase, NOT_AVAILABLE)) for of in contents.values()),
        )
        for phase in ALL_PHASES
    ]
    columns = [Column("Phase", is_text=True)]
    columns += [Column(f"Under {kind} it contains", kind, is_text=True) for kind in contents]
    return Table("phases", "What each phase contains", tuple(columns), tuple(lines))


def memory(report: Report) -> Table:
    """Return the peak memory of each rank."""
    ranks = [(run.name, *each) for run in report.runs for each in list(enumerate(rank_memory(run)))[:_MAX_RANKS]]
    unit, size = byte_unit([value for _, _, value in ranks])
    texts = numbers([None if value is None else value / size for _, _, value in ranks])
    lines = tuple(
        (
            TableCell(run),
            TableCell(f"{rank}", rank),
            TableCell(text, value, (run,), f"summary.ranks[{rank}].peak_memory_bytes"),
        )
        for (run, rank, value), text in zip(ranks, texts, strict=True)
    )
    columns = (
        Column("Run", "run", is_text=True),
        Column("Rank", "rank"),
        Column(f"Peak memory ({unit})", "peak_memory_bytes"),
    )
    more = any(len(rank_memory(run)) > _MAX_RANKS for run in report.runs)
    notes = (f"The first {_MAX_RANKS} ranks of each run; report.json has all.",) if more else ()
    return Table("memory", "Peak memory of each rank", columns, lines, notes)


def errors(report: Report, run: RunRecord, split: str, labels: Any, predictions: Any) -> Table:
    """Return the errors of a regression by actual value: of each value, or of at most ten equal parts of their range.

    Args:
        report: The report.
        run: The run.
        split: Of the predictions.
        labels: (N,), finite.
        predictions: (N,), finite.
    """
    values = np.unique(labels)
    if len(values) <= _MAX_VALUES:
        groups = [(f"{value:g}", labels == value) for value in values]
    else:
        edges = np.linspace(labels.min(), labels.max(), 11)
        number = np.clip(np.digitize(labels, edges) - 1, 0, 9)
        groups = [(f"{edges[each]:.3g} to {edges[each + 1]:.3g}", number == each) for each in np.unique(number)]
    lines = []
    for name, chosen in groups:
        off = predictions[chosen] - labels[chosen]
        figures = (predictions[chosen].mean(), off.mean(), np.abs(off).mean(), np.sqrt((off**2).mean()))
        texts = [f"{figure:{form}}".replace("-", "−") for figure, form in zip(figures, _ERROR_FORMS, strict=True)]
        cells = (
            TableCell(text, float(figure), (run.name,), predictions_file(split))
            for text, figure in zip(texts, figures, strict=True)
        )
        lines.append(
            (TableCell(name), TableCell(f"{len(off):,}", len(off), (run.name,), predictions_file(split)), *cells)
        )
    names = ("Rows", "Mean prediction", "Mean error", "MAE", "RMSE")
    columns = (Column("Actual"), *(Column(name) for name in names))
    title = f"Errors of {run.name} on {split} by actual value"
    return Table(table_key(report, run, "errors"), title, columns, tuple(lines))


_ERROR_FORMS = (".3g", "+.3g", ".3g", ".3g")


def confusion(report: Report, run: RunRecord) -> Table | None:
    """Return the confusion matrix; of many classes the commonest confusions; None where the record has none."""
    split, counts = confusion_of(run)
    if counts is None:
        return None
    names, key = class_names(run, len(counts)), table_key(report, run, "confusion")
    source = f"summary.confusion.{split}"
    if len(counts) > MAX_CLASSES:
        return _commonest(run, split, counts, names, key)
    columns = (Column("True class", is_text=True), *(Column(name) for name in names))
    lines = tuple(
        (TableCell(name), *(TableCell(f"{count:,}", count, (run.name,), source) for count in row))
        for name, row in zip(names, counts, strict=True)
    )
    title = f"Confusion of {run.name} on {split}: true classes down, predicted across (rows)"
    return Table(key, title, columns, lines)


def _commonest(run: RunRecord, split: str, counts: list[list[int]], names: Sequence[str], key: str) -> Table:
    pairs = [
        (count, true, predicted)
        for true, row in enumerate(counts)
        for predicted, count in enumerate(row)
        if count and true != predicted
    ]
    lines = []
    for count, true, predicted in sorted(pairs, key=lambda pair: (-pair[0], pair[1:]))[:_MAX_CONFUSIONS]:
        share = count / sum(counts[true])
        known = [
            TableCell(text, value, (run.name,), f"summary.confusion.{split}")
            for text, value in ((f"{count:,}", count), (format_share(share), share))
        ]
        lines.append((TableCell(names[true]), TableCell(names[predicted]), *known))
    columns = (
        Column("True", is_text=True),
        Column("Predicted as", is_text=True),
        Column("Rows"),
        Column("Share of the true class"),
    )
    title = f"The commonest confusions of {run.name} on {split}"
    note = f"The commonest confusions of {len(names)} classes; report.json holds the whole matrix."
    return Table(key, title, columns, tuple(lines), (note,))


def settings(report: Report) -> Table:
    """Return the configuration keys whose values differ, with where each value came from."""
    columns = (
        Column("Setting", "setting", is_text=True),
        *(Column(run.name, is_text=True) for run in report.runs),
    )
    lines = tuple(
        (
            TableCell(one.key),
            *(
                TableCell(setting_text(one, run.name), None, (run.name,), f"from {one.origins[run.name] or 'unknown'}")
                for run in report.runs
            ),
        )
        for one in report.differences
    )
    note = "The resolved configurations are the same but for the names of the runs."
    return Table("settings", "Settings that differ", columns, lines, () if lines else (note,))


def settings_by_run(report: Report) -> Table:
    """Return the configuration keys whose values differ, with a line a run."""
    columns = (Column("Run", "run", is_text=True), *(Column(one.key, is_text=True) for one in report.differences))
    lines = tuple(
        (
            TableCell(run.name),
            *(
                TableCell(setting_text(one, run.name), None, (run.name,), f"from {one.origins[run.name] or 'unknown'}")
                for one in report.differences
            ),
        )
        for run in report.runs
    )
    return Table("settings", "Settings that differ", columns, lines)


def facts(report: Report, key: str, title: str, read: Callable[[RunRecord], Mapping[str, str]]) -> Table:
    """Return a table of facts: one column when they are the same in all runs, else one a run."""
    found = {run.name: read(run) for run in report.runs}
    first = report.runs[0].name
    same = len(found) > 1 and all(values == found[first] for values in found.values())
    shown = {"All runs": found[first]} if same else found
    keys = list(dict.fromkeys(fact for values in shown.values() for fact in values))
    columns = (Column("", "fact", is_text=True), *(Column(name, is_text=True) for name in shown))
    lines = tuple(
        (
            TableCell(fact),
            *(
                TableCell(values.get(fact, NOT_AVAILABLE), None, tuple(found) if same else (name,), "run.json")
                for name, values in shown.items()
            ),
        )
        for fact in keys
    )
    return Table(key, title, columns, lines, () if lines else ("Not recorded.",))


def unfinished(report: Report) -> Table:
    """Return the runs that were given but are not finished."""
    columns = tuple(Column(name, is_text=True) for name in ("Run", "Folder", "Why"))
    lines = tuple((TableCell(run.name), TableCell(str(run.folder)), TableCell(run.reason)) for run in report.unfinished)
    return Table("unfinished", "Not finished, and so in no other table or figure", columns, lines)


def _cells(row: ReportRow) -> list[TableCell]:
    return [TableCell(cell.text, cell.value, (cell.run,), cell.source) for cell in row.cells]


def _groups(rows: Sequence[Any]) -> tuple[tuple[int, str], ...]:
    """Return the headings of rows that stand together: the position of the first, and the text."""
    found = groupby(enumerate(rows), key=lambda one: one[1].group)
    return tuple((next(ones)[0], group) for group, ones in found)


def _number(run: RunRecord, value: float | None, form: str, source: str) -> TableCell:
    return TableCell(NOT_AVAILABLE if value is None else f"{value:{form}}", value, (run.name,), source)


def table_key(report: Report, run: RunRecord, what: str) -> str:
    """Return the key of a table of one run."""
    return what if len(report.runs) == 1 else f"{what}-{report.runs.index(run) + 1}"
