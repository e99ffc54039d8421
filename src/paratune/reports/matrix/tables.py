"""The tables of a matrix: chosen candidates, all candidates, and missing runs."""

from collections.abc import Iterator

from paratune.base.units import NOT_AVAILABLE, counted, format_as
from paratune.reports.amounts import amount_text, scale_of
from paratune.reports.matrix.outcomes import Candidate, CandidateGroup, SweepReport
from paratune.reports.measures import metric_name
from paratune.reports.tables.table import Row, Table, TableCell, make_table

_OTHERS = "Others"
"""Heading of the values that are in no group of the matrix."""


def missing(report: SweepReport) -> Iterator[Table]:
    """Yield the table of runs without results, with the reasons, if there are any."""
    rows = [(item.cell.name, item.reason or "") for item in report.cell_runs if item.record is None]
    if rows:
        title = f"Without results: {len(rows)} of {counted(len(report.cell_runs), 'run')}"
        yield make_table("missing", title, ("run", "reason"), rows, 2)


def chosen(report: SweepReport) -> Table:
    """Return the chosen candidate of each group: a line for each model, a column for each metric of each task."""
    per = report.record.select_per
    across = next((axis.label for axis in report.record.axes if axis.is_column and axis.label in per), None)
    down = [label for label in per if label != across]
    labels: dict[str, None] = {}
    columns: dict[str, None] = {}
    rows: dict[tuple[str, ...], dict[str, TableCell]] = {}
    for group in report.groups:
        row = rows.setdefault(tuple(report.shown(label, group.values[label]) for label in down), {})
        name = report.shown(across, group.values[across]) if across else ""
        split, one = group.split_shown(), group.chosen
        if report.is_choice:
            tie = f" (tied with {counted(len(group.tied), 'other')})" if group.tied else ""
            text = f"{one.label or 'the only one'}{tie}" if one else "none"
            names = tuple(item.cell.name for item in one.cell_runs) if one else ()
            row[head := f"{name} chosen".strip()] = TableCell(text, runs=names, source="sweep.json" if one else "")
            labels[head] = None
        for metric in group.metrics:
            row[head := " ".join(filter(None, [name, split, metric_name(metric)]))] = _mean(one, split, metric)
            columns[head] = None
    # The first axis whose values are in groups decides the headings of the lines.
    headings = dict.fromkeys(rows, "")
    label = next((label for label in down if label in report.record.groups), "")
    groups = report.record.groups.get(label, {})
    if groups:
        by_value = {report.shown(label, name): text for text, members in groups.items() for name in members}
        headings = {names: by_value.get(names[down.index(label)], _OTHERS) for names in rows}
    order = [*groups, _OTHERS, ""]
    lines = sorted(rows, key=lambda names: order.index(headings[names]))
    cells: list[Row] = [
        [*(names or (report.record.name,)), *(rows[names].get(head, TableCell("")) for head in (*labels, *columns))]
        for names in lines
    ]
    listed = [headings[names] for names in lines]
    starts = tuple((at, text) for at, text in enumerate(listed) if text and (at == 0 or listed[at - 1] != text))
    title, header = (
        "Chosen by validation" if report.is_choice else "Results",
        (*(down or ["matrix"]), *labels, *columns),
    )
    return make_table(
        "chosen", title, header, cells, max(1, len(down)) + len(labels), _table_notes(report), groups=starts
    )


def _table_notes(report: SweepReport) -> Iterator[str]:
    seeds, noun = report.seeds, report.repeats
    several = (
        f"Mean ± sample standard deviation over {len(seeds)} {noun}s ({', '.join(seeds)}), or over those in brackets."
    )
    yield several if len(seeds) > 1 else f"One {noun}: no spread over {noun}s."
    if not report.is_choice:
        return
    metrics = sorted({group.metric for group in report.groups})
    yield f"Chosen: the best mean of {' or '.join(metrics)} on validation, without test scores."
    columns, constants = [axis.label for axis in report.record.axes if axis.is_column], dict[str, None]()
    for group in report.groups:
        task = ", ".join(report.shown(label, group.values[label]) for label in columns if label in group.values)
        if group.constant is not None:
            score = f"{metric_name(group.metric)} {group.constant:.4f} on validation"
            constants[f"{f'{task}: ' if task else ''}A constant prediction ({group.predicts}) has {score}."] = None
    yield from constants
    if any(group.split_shown() == "validation" for group in report.groups):
        yield "Without a test set, scores are those of the validation set that decided the choice: they are optimistic."


def candidates(report: SweepReport, group: CandidateGroup, number: int) -> Table:
    """Return all candidates of a group, with the score of every run."""
    tried = list(group.candidates[0].values)
    tests = group.metrics if group.split_shown() == "test" else ()
    axis = next((axis for axis in report.record.axes if axis.is_seed and len(report.seeds) > 1), None)
    header = [*(tried or ["runs"]), f"validation {metric_name(group.metric)}"]
    header += [f"{report.repeats} {seed}" for seed in report.seeds] if axis else []
    header += [f"test {metric_name(metric)}" for metric in tests]
    rows, marked = [], []
    for position, candidate in enumerate(group.candidates):
        is_chosen = candidate is group.chosen and len(group.candidates) > 1
        marked += [position] if is_chosen else []
        names = [report.shown(label, candidate.values[label]) for label in tried] or ["all"]
        names[0] = f"{'* ' if is_chosen else ''}{names[0]}"
        row: list[str | TableCell] = [*names, found := _mean(candidate, "validation", group.metric)]
        values = candidate.amount("validation", group.metric).values
        for seed in axis.values if axis else ():
            cell_runs = candidate.by_seed.get(seed, [])
            runs = tuple(item.cell.name for item in cell_runs if item.record is not None)
            source = found.source if len(runs) > 1 else found.source.removeprefix("mean of ")
            # Without a run its state, and nothing where a seed is excluded.
            state = cell_runs[0].cell.state if cell_runs else ""
            value = values.get(seed)
            row.append(TableCell(format_as(value, ".4f"), value, runs, source) if runs else state)
        rows.append((*row, *(_mean(candidate, "test", metric) for metric in tests)))
    title = ", ".join(f"{label}: {report.shown(label, name)}" for label, name in group.values.items()) or "All runs"
    notes = ["* chosen"] if group.chosen is not None and len(group.candidates) > 1 else []
    notes += [f"{text[0].upper()}{text[1:]}." for text in group.remarks]
    return make_table(f"candidates-{number}", title, header, rows, len(tried) or 1, notes, marked)


def _mean(candidate: Candidate | None, split: str, metric: str) -> TableCell:
    """Return the cell of a mean over the runs of a candidate."""
    if candidate is None:
        return TableCell(NOT_AVAILABLE)
    found = candidate.amount(split, metric)
    runs_ = tuple(item.cell.name for item in candidate.cell_runs if item.score(split, metric) is not None)
    text, source = amount_text(found, scale_of("score", ())), f"mean of summary.scores.{split}.{metric}"
    return TableCell(text, found.center, runs_, source, deviation=found.deviation)
