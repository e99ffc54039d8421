"""Tables of scores by slice: a line for each slice, a column for each run or configuration."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paratune.base.grouping import grouped
from paratune.records.finished import RunRecord
from paratune.records.scores import notes, score_text, shown_metrics, slice_score
from paratune.reports.amounts import amount, amount_text, scale_of
from paratune.reports.measures import Measure, metric_name, score
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
        if len(by_task) > 1:
            title += f" ({shorten(': '.join(filter(None, [task[0], ', '.join(task[1])])), _WIDTH)})"
        yield _table(by_task[task], split, column, f"{KIND}-{number}", title)


def _table(members: Members, split: str, column: str, key: str, title: str) -> Table:
    by_run: dict[str, dict[str, Entry]] = {
        run.name: {entry["value"]: entry for entry in run.summary.slices.get(split, {}).get(column, [])}
        for _, runs in members for run in runs
    }  # fmt: skip
    all_entries = [entry for entries in by_run.values() for entry in entries.values()]
    values = list(dict.fromkeys(entry["value"] for entry in all_entries))
    kind = members[0][1][0].task
    lines: list[Row] = []
    groups: list[tuple[int, str]] = []
    for metric in shown_metrics(kind, all_entries):
        groups.append((len(lines), metric_name(metric)))
        for value, name in zip(values, shorten_all(values, _WIDTH), strict=True):
            known = {run: entries[value] for run, entries in by_run.items() if value in entries}
            details = {entry["detail"] for entry in known.values()}  # shown if all runs agree
            head = f"{name}: {details.pop()}" if len(details) == 1 and None not in details else name
            counts = list(dict.fromkeys(entry["num_rows"] for entry in known.values()))
            num_rows = TableCell(", ".join(f"{count:,}" for count in counts), counts[0] if len(counts) == 1 else None)
            measure = replace(score(split, metric), source=f"summary.slices.{split}.{column}: {metric}")
            lines.append((head, num_rows, *(_cell(measure, metric, runs, known) for _, runs in members)))
    columns: list[Heading] = [(column, "slice"), ("Rows", "num_rows"), *(label for label, _ in members)]
    are_means = {len(runs) > 1 for _, runs in members}
    about = notes(kind, {column: all_entries}, are_single=False in are_means, are_means=True in are_means)
    return make_table(key, title, columns, lines, 1, about, groups=groups)


def _cell(measure: Measure, metric: str, runs: Sequence[RunRecord], known: Mapping[str, Entry]) -> TableCell:
    """Return the score of one run with its interval, or the mean of several runs with its spread."""

    def read(run: RunRecord) -> float | None:
        return slice_score(known[run.name], metric)[0] if run.name in known else None

    found, (first, *others) = amount(replace(measure, read=read), runs), runs
    text, interval = amount_text(found, scale_of(measure.unit, ())), None
    if not others and first.name in known:
        text, interval = score_text(known[first.name], metric), slice_score(known[first.name], metric)[1]
    names = tuple(found.values) or tuple(run.name for run in runs)
    return TableCell(text, found.center, names, measure.source, deviation=found.deviation, interval=interval)
