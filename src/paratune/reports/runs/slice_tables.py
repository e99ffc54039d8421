"""Tables of scores by slice: a line for each slice, a column for each run or configuration."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.units import NOT_AVAILABLE
from paratune.config.metric_names import LABELS
from paratune.records.finished import RunRecord
from paratune.records.slices import notes, score_text, shown_metrics, slice_score
from paratune.reports.amounts import amount, amount_text, scale_of
from paratune.reports.measures import Measure, metric_name
from paratune.reports.systems.sameness import Notes
from paratune.reports.tables.table import Heading, Row, Table, TableCell, make_table
from paratune.reports.text import shorten, shorten_all

KIND, HEADING = "slices", "Scores by slice"
_WIDTH = 60
Entry = Mapping[str, Any]
"""An entry of `summary.slices.SPLIT.COLUMN`."""


@dataclass(frozen=True)
class SlicedRuns:
    """A column of the tables."""

    label: str
    runs: tuple[RunRecord, ...]
    """One run, or the runs of all seeds of a configuration."""


def slice_tables(members: Sequence[SlicedRuns]) -> Iterator[Table]:
    """Yield a table for each task, set and column with scores by slice; members of one task are the columns."""
    by_task = grouped(
        ((member.runs[0].task, tuple(member.runs[0].labels)), member) for member in members if member.runs
    )
    names = []
    for task, task_members in by_task.items():
        runs = [run for member in task_members for run in member.runs]
        for split in dict.fromkeys(split for run in runs for split in run.slices):
            columns = dict.fromkeys(column for run in runs for column in run.slices.get(split, {}))
            names += [(split, column, task) for column in columns]
    for number, (split, column, task) in enumerate(names, start=1):
        title = f"{split.capitalize().replace('_', ' ')} scores by {column}"
        if sum(name[:2] == (split, column) for name in names) > 1:
            title += f" ({shorten(': '.join(filter(None, [task[0], ', '.join(task[1])])), _WIDTH)})"
        yield _table(by_task[task], split, column, f"{KIND}-{number}", title)


def _table(members: Sequence[SlicedRuns], split: str, column: str, key: str, title: str) -> Table:
    by_member = [[_entries(run, split, column) for run in member.runs] for member in members]
    all_entries: list[dict[str, Any]] = [
        record for runs in by_member for entries in runs for record in entries.values()
    ]
    values = list(dict.fromkeys(entry["value"] for entry in all_entries))
    shown = dict(zip(values, shorten_all(values, _WIDTH), strict=True))
    kind, footnotes = members[0].runs[0].task, Notes()
    lines: list[Row] = []
    groups: list[tuple[int, str]] = []
    for metric in shown_metrics(kind, all_entries):
        groups.append((len(lines), metric_name(metric)))
        for value in values:
            entries_by_member = [[entries.get(value) for entries in runs] for runs in by_member]
            known = [entry for entries in entries_by_member for entry in entries if entry is not None]
            cells = [
                _cell(member, entries, metric, (split, column, value), footnotes)
                for member, entries in zip(members, entries_by_member, strict=True)
            ]
            lines.append((_name(shown[value], known), _num_rows(known), *cells))
    columns: list[Heading] = [(column, "slice"), ("Rows", "num_rows"), *(member.label for member in members)]
    are_means = {len(member.runs) > 1 for member in members}
    about = notes(kind, {column: all_entries}, are_single=False in are_means, are_means=True in are_means)
    return make_table(key, title, columns, lines, 1, (*about, *footnotes.lines), groups=groups)


def _entries(run: RunRecord, split: str, column: str) -> dict[str, dict[str, Any]]:
    return {entry["value"]: entry for entry in run.slices.get(split, {}).get(column, [])}


def _name(value: str, entries: Sequence[Entry]) -> str:
    """Return the value with its description, if all runs agree on the description."""
    details = {entry["detail"] for entry in entries}
    return f"{value}: {details.pop()}" if len(details) == 1 and None not in details else value


def _num_rows(entries: Sequence[Entry]) -> TableCell:
    counts = list(dict.fromkeys(entry["num_rows"] for entry in entries))
    return TableCell(", ".join(f"{count:,}" for count in counts), counts[0] if len(counts) == 1 else None)


def _cell(
    member: SlicedRuns, entries: Sequence[Entry | None], metric: str, place: tuple[str, str, str], footnotes: Notes
) -> TableCell:
    """Return the score of one run with its interval, or the mean of several runs with its spread."""
    split, column, value = place
    source = f"summary.slices.{split}.{column}: {metric}"
    names = tuple(run.name for run in member.runs)
    known = [entry for entry in entries if entry is not None]
    if not known:
        marks = footnotes.marks([_why_none(member.runs, split, column)])
        return TableCell(NOT_AVAILABLE, None, names, source, marks)
    if len(member.runs) == 1:
        score, interval = slice_score(known[0], metric)
        return TableCell(score_text(known[0], metric), score, names, source, interval=interval)
    by_run = dict(zip(names, entries, strict=True))

    def read(run: RunRecord) -> float | None:
        entry = by_run[run.name]
        return None if entry is None else slice_score(entry, metric)[0]

    label = f"{LABELS.get(metric, metric)} of {value}"
    mean = amount(Measure(f"{split}_{metric}", label, "Slices", "score", 0, source, read, is_quality=True), member.runs)
    text = amount_text(mean, scale_of(mean.measure.unit, [mean.center]))
    return TableCell(text, mean.center, tuple(mean.values) or names, f"mean of {source}", (), mean.deviation)


def _why_none(runs: Sequence[RunRecord], split: str, column: str) -> str:
    """Return why no run has a slice."""
    if any(column in run.slices.get(split, {}) for run in runs):
        return f"no row of {split} has this value"
    if not any(column in (run.setting("evaluate.slices") or ()) for run in runs):
        return f"evaluate.slices of this configuration does not name {column}"
    if not any(run.summary.scores.get(split) for run in runs):
        return f"no scores of {split}"
    return f"the record has no scores of {split} by {column}; the log of the run gives the reason if there was an error"
