"""The tables of a matrix: chosen candidates, all candidates, all runs and missing runs."""

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
            row[name, "", "chosen"] = _chosen_name(group)
        for metric in group.metrics:
            column = (name, group.split_shown(), metric)
            columns.setdefault(column, " ".join(filter(None, [name, group.split_shown(), metric_name(metric)])))
            row[column] = _mean(group.chosen, group.split_shown(), metric)
    headings = [_heading(report, down, name) for name in rows]
    order = _order_of_groups(report, down, headings)
    cells: list[list[str | TableCell]] = [
        [*(name or (report.record.name,)), *(row.get(column, TableCell("")) for column in (*labels, *columns))]
        for name, row in (list(rows.items())[at] for at in order)
    ]
    listed = [headings[at] for at in order]
    starts = tuple((at, text) for at, text in enumerate(listed) if text and (at == 0 or listed[at - 1] != text))
    title = "Chosen by validation" if _is_choice(report) else "Results"
    header = (*(down or ["matrix"]), *labels.values(), *columns.values())
    table = make_table("chosen", title, header, cells, max(1, len(down)) + len(labels), tuple(_table_notes(report)))
    return replace(table, groups=starts)


def _heading(report: SweepReport, down: Sequence[str], shown: Sequence[str]) -> str:
    """Return the heading of a line, from the first of its axes that has groups; empty when none has."""
    label = next((label for label in down if label in report.record.groups), None)
    if label is None:
        return ""
    headings = report.record.groups[label].items()
    value = shown[down.index(label)]
    return next((text for text, names in headings if value in {report.shown(label, name) for name in names}), _OTHERS)


def _order_of_groups(report: SweepReport, down: Sequence[str], headings: Sequence[str]) -> list[int]:
    """Return the positions of the lines, sorted by heading."""
    order = [text for label in down for text in report.record.groups.get(label, ())]
    places = {text: at for at, text in enumerate(dict.fromkeys(order))}
    return sorted(range(len(headings)), key=lambda at: places.get(headings[at], len(places)))


def _chosen_name(group: CandidateGroup) -> TableCell:
    """Return the values of the chosen candidate on the axes of the choice."""
    if group.chosen is None:
        return TableCell("none")
    runs_ = tuple(cell_run.cell.name for cell_run in group.chosen.cell_runs)
    tie = f" (tied with {counted(len(group.tied), 'other')})" if group.tied else ""
    return TableCell(f"{group.chosen.label or 'the only one'}{tie}", runs=runs_, source="sweep.json")


def _is_choice(report: SweepReport) -> bool:
    return any(len(group.candidates) > 1 for group in report.groups)


def _table_notes(report: SweepReport) -> Iterator[str]:
    yield _over_seeds(report)
    if not _is_choice(report):
        return
    metrics = sorted({group.metric for group in report.groups})
    yield f"Chosen: the best mean of {' or '.join(metrics)} on validation, without test scores."
    yield from dict.fromkeys(filter(None, (_constant_note(report, group) for group in report.groups)))
    if any(group.split_shown() == "validation" for group in report.groups):
        yield "Without a test set, scores are those of the validation set that decided the choice: they are optimistic."


def _constant_note(report: SweepReport, group: CandidateGroup) -> str:
    """Return the score of a constant prediction, and whether the choice is not better; empty when it is unknown."""
    if group.constant is None:
        return ""
    where = ", ".join(report.shown(label, name) for label, name in group.values.items())
    where = f" of {where}" if where else ""
    below = f"; the chosen candidate{where} is not better" if group.is_below_constant else ""
    columns = (axis.label for axis in report.record.axes if axis.is_column and axis.label in group.values)
    task = next((f"{report.shown(label, group.values[label])}: " for label in columns), "")
    score = f"{metric_name(group.metric)} {group.constant:.4f} on validation"
    return f"{task}A constant prediction ({group.predicts}) has {score}{below}."


def _over_seeds(report: SweepReport) -> str:
    """Return the note on the number of seeds."""
    seeds, noun = report.seeds, report.repeats
    if len(seeds) < 2:
        return f"One {noun}: no spread over {noun}s."
    chosen_groups = [(group, group.chosen) for group in report.groups if group.chosen]
    counts = {
        len(candidate.amount(group.split_shown(), metric).values)
        for group, candidate in chosen_groups
        for metric in group.metrics
    } or {len(seeds)}
    if counts == {len(seeds)}:
        return f"Mean ± sample standard deviation over {len(seeds)} {noun}s: {', '.join(seeds)}."
    counts_text = " to ".join(map(str, dict.fromkeys([min(counts), max(counts)])))
    of_all = f"{counts_text} of {len(seeds)} {noun}s ({', '.join(seeds)})"
    return f"Mean ± sample standard deviation over {of_all}: see n below."


def candidates(report: SweepReport, group: CandidateGroup, number: int) -> Table:
    """Return all candidates of a group, with the score of every run."""
    tried = list(group.candidates[0].values)
    test = group.split_shown() == "test"
    seeds = next((tuple(axis.values) for axis in report.record.axes if axis.is_seed), ())
    metric = metric_name(group.metric)
    header = [*(tried or ["runs"]), f"validation {metric}", *(["n"] if len(report.seeds) > 1 else [])]
    header += [f"{report.repeats} {seed}" for seed in report.seeds] if len(report.seeds) > 1 else []
    header += [f"test {metric_name(metric_key)}" for metric_key in group.metrics] if test else []
    rows, marked = [], []
    for position, candidate in enumerate(group.candidates):
        is_chosen = candidate is group.chosen and len(group.candidates) > 1
        marked += [position] if is_chosen else []
        found = candidate.amount("validation", group.metric)
        names = [report.shown(label, candidate.values[label]) for label in tried] or ["all"]
        names[0] = f"{'* ' if is_chosen else ''}{names[0]}"
        row: list[str | TableCell] = [*names, _mean(candidate, "validation", group.metric)]
        if len(report.seeds) > 1:
            row.append(f"{len(found.values)}/{found.num_runs}")
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


def _score(item: CellRun, split: str, metric: str) -> TableCell:
    """Return the cell of a score of a run."""
    value = item.score(split, metric)
    runs_ = () if item.record is None else (item.cell.name,)
    return TableCell(format_as(value, ".4f"), value, runs_, f"summary.scores.{split}.{metric}")


def runs(report: SweepReport) -> Table:
    """Return every run with its scores."""
    labels = [axis.label for axis in report.record.axes]
    columns = score_columns(report.cell_runs)
    header = ("run", *labels, "state", *(f"{split} {metric_name(metric)}" for split, metric in columns))
    rows: list[list[str | TableCell]] = [
        [
            item.cell.name,
            *(report.shown(label, item.cell.values[label]) for label in labels),
            item.cell.state,
            *(_score(item, *column) for column in columns),
        ]
        for item in report.cell_runs
    ]
    return make_table("runs", "All runs", header, rows, len(labels) + 2)


def score_columns(cell_runs: Sequence[CellRun], *, all_metrics: bool = False) -> list[tuple[str, str]]:
    """Return the split and metric of each column of scores, validation first."""
    columns = {
        (split, metric): None
        for item in cell_runs
        for split, scores in item.scores.items()
        for metric in scores
        if all_metrics or metric in item.cell.metrics
    }
    return sorted(columns, key=lambda column: column[0] != "validation")
