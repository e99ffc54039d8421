"""The tables of a matrix: chosen candidates, all candidates, and missing runs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from paratune.base.units import NOT_AVAILABLE, counted, format_as
from paratune.reports.amounts import amount_text, scale_of
from paratune.reports.matrix.outcomes import Candidate, CandidateGroup, SweepReport
from paratune.reports.measures import metric_name
from paratune.reports.systems.configurations import CellRun
from paratune.reports.tables.table import Table, TableCell, make_table

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
    columns: dict[tuple[str, str, str], str] = {}
    labels: dict[tuple[str, str, str], str] = {}
    rows: dict[tuple[str, ...], dict[tuple[str, str, str], TableCell]] = {}
    for group in report.groups:
        row = rows.setdefault(tuple(report.shown(label, group.values[label]) for label in down), {})
        name = report.shown(across, group.values[across]) if across else ""
        if _is_choice(report):
            labels.setdefault((name, "", "chosen"), f"{name} chosen".strip())
            one, runs_ = group.chosen, [run.cell.name for run in group.chosen.cell_runs] if group.chosen else []
            tie = f" (tied with {counted(len(group.tied), 'other')})" if group.tied else ""
            text = f"{one.label or 'the only one'}{tie}" if one else "none"
            row[name, "", "chosen"] = TableCell(text, runs=tuple(runs_), source="sweep.json" if one else "")
        for metric in group.metrics:
            column = (name, group.split_shown(), metric)
            columns.setdefault(column, " ".join(filter(None, [name, group.split_shown(), metric_name(metric)])))
            row[column] = _mean(group.chosen, group.split_shown(), metric)
    headings = _headings(report, down, list(rows))
    order = list(
        dict.fromkeys([*(text for label in down for text in report.record.groups.get(label, ())), _OTHERS, ""])
    )
    names = sorted(rows, key=lambda name: order.index(headings[name]))
    cells: list[list[str | TableCell]] = [
        [*(name or (report.record.name,)), *(rows[name].get(column, TableCell("")) for column in (*labels, *columns))]
        for name in names
    ]
    listed = [headings[name] for name in names]
    starts = tuple((at, text) for at, text in enumerate(listed) if text and (at == 0 or listed[at - 1] != text))
    title = "Chosen by validation" if _is_choice(report) else "Results"
    header = (*(down or ["matrix"]), *labels.values(), *columns.values())
    table = make_table("chosen", title, header, cells, max(1, len(down)) + len(labels), tuple(_table_notes(report)))
    return replace(table, groups=starts)


def _headings(report: SweepReport, down: Sequence[str], names: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Return the heading of each line, from the first of its axes that has groups; empty when none has."""
    label = next((label for label in down if label in report.record.groups), None)
    if label is None:
        return dict.fromkeys(names, "")
    groups = report.record.groups[label].items()
    by_value = {report.shown(label, name): text for text, members in groups for name in members}
    return {name: by_value.get(name[down.index(label)], _OTHERS) for name in names}


def _is_choice(report: SweepReport) -> bool:
    return any(len(group.candidates) > 1 for group in report.groups)


def _table_notes(report: SweepReport) -> Iterator[str]:
    seeds, noun = report.seeds, report.repeats
    several = (
        f"Mean ± sample standard deviation over {len(seeds)} {noun}s ({', '.join(seeds)}), or over those in brackets."
    )
    yield several if len(seeds) > 1 else f"One {noun}: no spread over {noun}s."
    if not _is_choice(report):
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
    test = group.split_shown() == "test"
    seeds = next((tuple(axis.values) for axis in report.record.axes if axis.is_seed), ())
    metric = metric_name(group.metric)
    header = [*(tried or ["runs"]), f"validation {metric}"]
    header += [f"{report.repeats} {seed}" for seed in report.seeds] if len(report.seeds) > 1 else []
    header += [f"test {metric_name(metric_key)}" for metric_key in group.metrics] if test else []
    rows, marked = [], []
    for position, candidate in enumerate(group.candidates):
        is_chosen = candidate is group.chosen and len(group.candidates) > 1
        marked += [position] if is_chosen else []
        names = [report.shown(label, candidate.values[label]) for label in tried] or ["all"]
        names[0] = f"{'* ' if is_chosen else ''}{names[0]}"
        row: list[str | TableCell] = [*names, _mean(candidate, "validation", group.metric)]
        if len(report.seeds) > 1:
            row += [_seed_cell(candidate, seed, group.metric) for seed in seeds]
        if test:
            row += [_mean(candidate, "test", metric_key) for metric_key in group.metrics]
        rows.append(tuple(row))
    title = ", ".join(f"{label}: {report.shown(label, name)}" for label, name in group.values.items()) or "All runs"
    notes = ["* chosen"] if group.chosen is not None and len(group.candidates) > 1 else []
    notes += [f"{text[0].upper()}{text[1:]}." for text in group.remarks]
    return make_table(f"candidates-{number}", title, header, rows, len(tried) or 1, notes, marked)


def _seed_cell(candidate: Candidate, seed: str, metric: str) -> str | TableCell:
    """Return the score with a seed; the state of the run when it has none, nothing when it is excluded."""
    cell_runs = candidate.by_seed.get(seed, [])
    runs_ = tuple(item.cell.name for item in cell_runs if item.record is not None)
    if not runs_:
        return cell_runs[0].cell.state if cell_runs else ""
    value = candidate.amount("validation", metric).values.get(seed)
    mean = "mean of " if len(runs_) > 1 else ""
    return TableCell(format_as(value, ".4f"), value, runs_, f"{mean}summary.scores.validation.{metric}")


def _mean(candidate: Candidate | None, split: str, metric: str) -> TableCell:
    """Return the cell of a mean over the runs of a candidate."""
    if candidate is None:
        return TableCell(NOT_AVAILABLE)
    found = candidate.amount(split, metric)
    runs_ = tuple(item.cell.name for item in candidate.cell_runs if item.score(split, metric) is not None)
    text, source = amount_text(found, scale_of("score", ())), f"mean of summary.scores.{split}.{metric}"
    return TableCell(text, found.center, runs_, source, deviation=found.deviation)


def score_columns(cell_runs: Sequence[CellRun]) -> list[tuple[str, str]]:
    """Return the split and metric of each column of scores, validation first."""
    columns = dict.fromkeys(
        (split, metric) for item in cell_runs for split, scores in item.scores.items() for metric in scores
    )
    return sorted(columns, key=lambda column: column[0] != "validation")
