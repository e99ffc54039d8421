"""Tables of scores by slice: a line for each slice, a column for each run or configuration."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.units import NOT_AVAILABLE
from paratune.records.finished import RunRecord
from paratune.records.slices import notes, score_text, shown_metrics, slice_score
from paratune.reports.amounts import Amount, amount_text, scale_of
from paratune.reports.measures import metric_name
from paratune.reports.measures import score as score_measure
from paratune.reports.systems.sameness import Notes
from paratune.reports.tables.table import Heading, Row, Table, TableCell, make_table
from paratune.reports.text import shorten, shorten_all

KIND, HEADING = "slices", "Scores by slice"
_WIDTH = 60
Entry = Mapping[str, Any]  # an entry of `summary.slices.SPLIT.COLUMN`
Members = Sequence[tuple[str, Sequence[RunRecord]]]
"""The columns of a table: heading, and one run or the runs of all seeds of a configuration."""


def slice_tables(members: Members) -> Iterator[Table]:
    """Yield a table for each task, set and column with scores by slice; members of one task are the columns."""
    by_task = grouped(((runs[0].task, tuple(runs[0].labels)), (label, runs)) for label, runs in members if runs)
    names = dict.fromkeys(
        (split, column, task)
        for task, of_task in by_task.items() for _, runs in of_task for run in runs
        for split, columns in run.summary.slices.items() for column in columns
    )  # fmt: skip
    for number, (split, column, task) in enumerate(names, start=1):
        title = f"{split.capitalize().replace('_', ' ')} scores by {column}"
        if sum(name[:2] == (split, column) for name in names) > 1:
            title += f" ({shorten(': '.join(filter(None, [task[0], ', '.join(task[1])])), _WIDTH)})"
        yield _table(by_task[task], split, column, f"{KIND}-{number}", title)


def _table(members: Members, split: str, column: str, key: str, title: str) -> Table:
    by_run = {
        run.name: {entry["value"]: entry for entry in run.summary.slices.get(split, {}).get(column, [])}
        for _, runs in members for run in runs
    }  # fmt: skip
    all_entries = [entry for entries in by_run.values() for entry in entries.values()]
    values = list(dict.fromkeys(entry["value"] for entry in all_entries))
    kind, footnotes = members[0][1][0].task, Notes()
    lines: list[Row] = []
    groups: list[tuple[int, str]] = []
    for metric in shown_metrics(kind, all_entries):
        groups.append((len(lines), metric_name(metric)))
        for value, name in zip(values, shorten_all(values, _WIDTH), strict=True):
            known = [entries[value] for entries in by_run.values() if value in entries]
            details = {entry["detail"] for entry in known}  # shown if all runs agree
            head = f"{name}: {details.pop()}" if len(details) == 1 and None not in details else name
            counts = list(dict.fromkeys(entry["num_rows"] for entry in known))
            num_rows = TableCell(", ".join(f"{count:,}" for count in counts), counts[0] if len(counts) == 1 else None)
            cells = []
            for _, runs in members:
                found = {run.name: by_run[run.name].get(value) for run in runs}
                marks = () if any(found.values()) else footnotes.marks([_why_none(runs, split, column)])
                cells.append(_cell(found, split, metric, f"summary.slices.{split}.{column}: {metric}", marks))
            lines.append((head, num_rows, *cells))
    columns: list[Heading] = [(column, "slice"), ("Rows", "num_rows"), *(label for label, _ in members)]
    are_means = {len(runs) > 1 for _, runs in members}
    about = notes(kind, {column: all_entries}, are_single=False in are_means, are_means=True in are_means)
    return make_table(key, title, columns, lines, 1, (*about, *footnotes.lines), groups=groups)


def _cell(
    entries: Mapping[str, Entry | None], split: str, metric: str, source: str, marks: tuple[str, ...]
) -> TableCell:
    """Return the score of one run with its interval, or the mean of several runs with its spread."""
    names, known = tuple(entries), {name: entry for name, entry in entries.items() if entry is not None}
    if not known:
        return TableCell(NOT_AVAILABLE, None, names, source, marks)
    if len(names) == 1:
        (entry,) = known.values()
        score, interval = slice_score(entry, metric)
        return TableCell(score_text(entry, metric), score, names, source, interval=interval)
    scores = {name: score for name, entry in known.items() if (score := slice_score(entry, metric)[0]) is not None}
    center = statistics.fmean(scores.values()) if scores else None
    mean = Amount(score_measure(split, metric), scores, center, len(names))
    text = amount_text(mean, scale_of(mean.measure.unit, [center]))
    return TableCell(text, center, tuple(scores) or names, f"mean of {source}", deviation=mean.deviation)


def _why_none(runs: Sequence[RunRecord], split: str, column: str) -> str:
    """Return why no run has a slice."""
    if any(column in run.summary.slices.get(split, {}) for run in runs):
        return f"no row of {split} has this value"
    if not any(column in (run.setting("evaluate.slices") or ()) for run in runs):
        return f"evaluate.slices of this configuration does not name {column}"
    return f"no scores of {split} by {column}; the log of the run gives the reason if there was an error"
