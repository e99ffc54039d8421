"""Tables of scores by slice: a line for each slice, a column for each run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paratune.base.units import NOT_AVAILABLE
from paratune.records.slices import notes, score_of, score_text, shown_metrics
from paratune.report.read import RunRecord
from paratune.report.score_rows import metric_name
from paratune.report.tabular import Column, Table, TableCell
from paratune.report.text import shorten_all

KIND = "slices"
_WIDTH = 60
Entries = dict[str, dict[str, Any]]
"""Entries of `summary.slices.SPLIT.COLUMN` by their value."""


def slice_tables(runs: Sequence[RunRecord]) -> Iterator[Table]:
    """Yield a table for each set and column by which any of the runs was scored."""
    names = [
        (split, column)
        for split in dict.fromkeys(split for run in runs for split in _columns(run))
        for column in dict.fromkeys(column for run in runs for column in _columns(run).get(split, {}))
    ]
    for number, (split, column) in enumerate(names, start=1):
        yield _table(runs, split, column, f"{KIND}-{number}")


def _columns(run: RunRecord) -> Mapping[str, Mapping[str, Any]]:
    found = run.get("summary.slices")
    return found if isinstance(found, dict) else {}


def _table(runs: Sequence[RunRecord], split: str, column: str, key: str) -> Table:
    by_run = [_entries(run, split, column) for run in runs]
    kind = next(str(run.get("run.task.kind")) for run, entries in zip(runs, by_run, strict=True) if entries)
    every: list[dict[str, Any]] = [entry for entries in by_run for entry in entries.values()]
    values = list(dict.fromkeys(entry["value"] for entry in every))
    shown = dict(zip(values, shorten_all(values, _WIDTH), strict=True))
    lines: list[tuple[TableCell, ...]] = []
    groups: list[tuple[int, str]] = []
    for metric in shown_metrics(kind, every):
        groups.append((len(lines), metric_name(metric)))
        for value in values:
            found = [entries.get(value) for entries in by_run]
            cells = (
                _cell(run, entry, metric, f"summary.slices.{split}.{column}")
                for run, entry in zip(runs, found, strict=True)
            )
            lines.append((TableCell(_name(shown[value], found)), _num_rows(found), *cells))
    columns = (Column(column, "slice", is_text=True), Column("Rows", "num_rows"), *(Column(run.name) for run in runs))
    title = f"{split.capitalize().replace('_', ' ')} scores by {column}"
    return Table(key, title, columns, tuple(lines), tuple(notes(kind, {column: every})), groups=tuple(groups))


def _entries(run: RunRecord, split: str, column: str) -> Entries:
    found = _columns(run).get(split, {}).get(column, [])
    return {entry["value"]: entry for entry in found}


def _name(value: str, entries: Sequence[Mapping[str, Any] | None]) -> str:
    """Return the value with what it stands for, where all runs agree on that."""
    details = {entry["detail"] for entry in entries if entry is not None}
    return f"{value}: {details.pop()}" if len(details) == 1 and None not in details else value


def _num_rows(entries: Sequence[Mapping[str, Any] | None]) -> TableCell:
    counts = list(dict.fromkeys(entry["num_rows"] for entry in entries if entry is not None))
    return TableCell(", ".join(f"{count:,}" for count in counts), counts[0] if len(counts) == 1 else None)


def _cell(run: RunRecord, entry: Mapping[str, Any] | None, metric: str, source: str) -> TableCell:
    if entry is None:
        return TableCell(NOT_AVAILABLE, None, (run.name,), source)
    value, interval = score_of(entry, metric)
    return TableCell(score_text(entry, metric), value, (run.name,), f"{source}: {metric}", interval=interval)
