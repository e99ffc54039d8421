"""Tables of scores by slice: a line for each slice, a column for each run or configuration."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paratune.base.units import NOT_AVAILABLE
from paratune.config.metric_names import LABELS
from paratune.records.slices import notes, score_of, score_text, shown_metrics
from paratune.report.read import RunRecord
from paratune.report.score_rows import metric_name
from paratune.report.systems.measures import ReportMeasure, amount
from paratune.report.systems.sameness import Notes
from paratune.report.systems.writing import amount_text, scale_of
from paratune.report.tabular import Column, Table, TableCell
from paratune.report.text import shorten, shorten_all

KIND, HEADING = "slices", "Scores by slice"
_WIDTH = 60
Entry = Mapping[str, Any]
"""An entry of `summary.slices.SPLIT.COLUMN`."""
_Task = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class SlicedRuns:
    """What a column of the tables is of."""

    label: str
    runs: tuple[RunRecord, ...]
    """One run, or those of all seeds of a configuration."""


def slice_tables(members: Sequence[SlicedRuns]) -> Iterator[Table]:
    """Yield a table for each set and column by which any of the runs was scored; those of other tasks have their own.

    Args:
        members: The columns, each of one task and with a run.
    """
    by_task: dict[_Task, list[SlicedRuns]] = {}
    for one in members:
        if one.runs:
            by_task.setdefault((one.runs[0].task, tuple(one.runs[0].labels)), []).append(one)
    names = [
        (split, column, task)
        for task, some in by_task.items()
        for split in _ordered(split for one in some for run in one.runs for split in run.slices)
        for column in _ordered(column for one in some for run in one.runs for column in run.slices.get(split, {}))
    ]
    for number, (split, column, task) in enumerate(names, start=1):
        title = f"{split.capitalize().replace('_', ' ')} scores by {column}"
        if sum(name[:2] == (split, column) for name in names) > 1:
            title += f" ({shorten(': '.join(filter(None, [task[0], ', '.join(task[1])])), _WIDTH)})"
        yield _table(by_task[task], split, column, f"{KIND}-{number}", title)


def _ordered(names: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _table(members: Sequence[SlicedRuns], split: str, column: str, key: str, title: str) -> Table:
    by_member = [[_entries(run, split, column) for run in one.runs] for one in members]
    every: list[dict[str, Any]] = [each for runs in by_member for entries in runs for each in entries.values()]
    values = _ordered(entry["value"] for entry in every)
    shown = dict(zip(values, shorten_all(values, _WIDTH), strict=True))
    kind, footnotes = members[0].runs[0].task, Notes()
    lines: list[tuple[TableCell, ...]] = []
    groups: list[tuple[int, str]] = []
    for metric in shown_metrics(kind, every):
        groups.append((len(lines), metric_name(metric)))
        for value in values:
            found = [[entries.get(value) for entries in runs] for runs in by_member]
            known = [entry for entries in found for entry in entries if entry is not None]
            cells = [
                _cell(one, entries, metric, (split, column, value), footnotes)
                for one, entries in zip(members, found, strict=True)
            ]
            lines.append((TableCell(_name(shown[value], known)), _num_rows(known), *cells))
    columns = (
        Column(column, "slice", is_text=True),
        Column("Rows", "num_rows"),
        *(Column(one.label) for one in members),
    )
    are_means = {len(one.runs) > 1 for one in members}
    about = notes(kind, {column: every}, are_single=False in are_means, are_means=True in are_means)
    return Table(key, title, columns, tuple(lines), (*about, *footnotes.lines), groups=tuple(groups))


def _entries(run: RunRecord, split: str, column: str) -> dict[str, dict[str, Any]]:
    return {entry["value"]: entry for entry in run.slices.get(split, {}).get(column, [])}


def _name(value: str, entries: Sequence[Entry]) -> str:
    """Return the value with what it stands for, where all runs agree on that."""
    details = {entry["detail"] for entry in entries}
    return f"{value}: {details.pop()}" if len(details) == 1 and None not in details else value


def _num_rows(entries: Sequence[Entry]) -> TableCell:
    counts = list(dict.fromkeys(entry["num_rows"] for entry in entries))
    return TableCell(", ".join(f"{count:,}" for count in counts), counts[0] if len(counts) == 1 else None)


def _cell(
    one: SlicedRuns, entries: Sequence[Entry | None], metric: str, place: tuple[str, str, str], footnotes: Notes
) -> TableCell:
    """Return a score with its interval of one run, and the mean with its spread of several."""
    split, column, value = place
    source = f"summary.slices.{split}.{column}: {metric}"
    names = tuple(run.name for run in one.runs)
    known = [entry for entry in entries if entry is not None]
    if not known:
        marks = footnotes.marks([_why_none(one.runs, split, column)])
        return TableCell(NOT_AVAILABLE, None, names, source, marks)
    if len(one.runs) == 1:
        score, interval = score_of(known[0], metric)
        return TableCell(score_text(known[0], metric), score, names, source, interval=interval)
    by_run = dict(zip(names, entries, strict=True))

    def read(run: RunRecord) -> float | None:
        entry = by_run[run.name]
        return None if entry is None else score_of(entry, metric)[0]

    label = f"{LABELS.get(metric, metric)} of {value}"
    found = amount(ReportMeasure(f"{split}_{metric}", label, "score", 0, source, read, is_quality=True), one.runs)
    text = amount_text(found, scale_of(found.measure, [found.center]))
    return TableCell(text, found.center, tuple(found.values) or names, f"mean of {source}", (), found.deviation)


def _why_none(runs: Sequence[RunRecord], split: str, column: str) -> str:
    """Return why no run has a slice."""
    if any(column in run.slices.get(split, {}) for run in runs):
        return f"no row of {split} has this value"
    if not any(column in (run.get("run.config.evaluate.slices") or ()) for run in runs):
        return f"evaluate.slices of this configuration does not name {column}"
    if not any(run.get(("summary", "scores", split)) for run in runs):
        return f"no scores of {split}"
    return f"the record has no scores of {split} by {column}; the log of the run gives the reason if there was an error"
