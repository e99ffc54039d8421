"""How a table of configurations is put together: a line a configuration, a column a figure, marks for what differs."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from paratune.base.units import NOT_AVAILABLE, counted, format_percent, percent_change
from paratune.report.rows import count_text
from paratune.report.systems.configurations import Configuration
from paratune.report.systems.measures import Amount, ReportMeasure
from paratune.report.systems.model import Systems
from paratune.report.systems.sameness import Notes, notes_of
from paratune.report.systems.writing import amount_text, scale_of
from paratune.report.tabular import Column, Table, TableCell

OVER_RUNS = "Mean ± sample standard deviation over the runs of a line; of rates, all samples over all of their time."
ONE_RUN = "One run a line: the spread over runs is n/a; more seeds or repeats give one."
_PROBE = "a probe: a few steps to be timed, without quality and without the time of a whole run"
_MAX_REASONS = 2


@dataclass(frozen=True)
class Figured:
    """A column of figures: what is shown, and how it is found of a configuration."""

    measure: ReportMeasure
    find: Callable[[Configuration], Amount]
    is_kept: bool = False
    """Whether the column stays where nothing is known of it."""


@dataclass(frozen=True)
class Labels:
    """A column of names."""

    column: Column
    entries: Sequence[TableCell]


def column_of(systems: Systems, measure: ReportMeasure, *, is_kept: bool = False) -> Figured:
    """Return the column of a measure that runs have themselves."""
    return Figured(measure, lambda one: systems.amount(measure, one), is_kept)


def build(
    systems: Systems, key: str, title: str, labels: Sequence[Labels], members: Sequence[Configuration],
    figures: Sequence[Figured], notes: Sequence[str] = (), *, compares: bool = False,
    first_of: Mapping[str, Configuration] | None = None,
) -> Table:  # fmt: skip
    """Return a table of configurations.

    Args:
        systems: The matrix.
        key: Of the table.
        title: Of the table.
        labels: The first columns, a text for each member.
        members: The lines, each with a run.
        figures: The columns; those of which nothing is known are left out and named below, unless they are kept.
        notes: Below the table, before those of its marks.
        compares: Whether each figure is shown with its change against the baseline.
        first_of: What each line, by its configuration's name, is beside; the baseline when not given.
    """
    found = [(figured, [figured.find(one) for one in members]) for figured in figures]
    shown = [each for each in found if each[0].is_kept or any(amount.center is not None for amount in each[1])]
    footnotes = Notes()
    marks = [_marks(systems, one, first_of, footnotes) for one in members]
    columns = [each.column for each in labels]
    cells: list[list[TableCell]] = [
        [
            replace(each.entries[row], marks=marks[row]) if at == 0 else each.entries[row]
            for at, each in enumerate(labels)
        ]
        for row in range(len(members))
    ]
    for figured, amounts in shown:
        column, entries = _column(systems, members, figured, amounts, footnotes, compares=compares)
        columns.append(column)
        for line, entry in zip(cells, entries, strict=True):
            line.append(entry)
    columns.append(Column("Runs", "num_runs"))
    for one, line in zip(members, cells, strict=True):
        runs = tuple(run.name for run in one.runs)
        line.append(TableCell(count_text(len(runs)), len(runs), runs, "finished runs"))
    lines = tuple(tuple(line) for line in cells)
    below = (*_about(systems, members), *notes, *_left_out(members, found), *footnotes.lines)
    base = [row for row, one in enumerate(members) if compares and systems.baseline_of(one) is one]
    return Table(key, title, tuple(columns), lines, below, tuple(base))


def names(label: str, key: str, values: Sequence[str | int | None]) -> Labels:
    """Return a column of names, or of numbers that say what a line is of."""
    entries = [TableCell(value if isinstance(value, str) else count_text(value), value) for value in values]
    return Labels(Column(label, key, is_text=True), entries)


def memory_notes(members: Sequence[Configuration]) -> list[str]:
    """Return what has to be said of their memory figures."""
    kinds = sorted({str(run.get("summary.memory.kind") or NOT_AVAILABLE) for one in members for run in one.runs})
    about = {"rss": "memory is resident memory of processes, shared pages counted in each"}
    about["cuda_allocated"] = "memory is what PyTorch allocated on the devices"
    if len(kinds) > 1:
        return [f"Memory is of different kinds, which do not compare: {', '.join(kinds)}."]
    return [f"{text[0].upper()}{text[1:]}." for kind in kinds if (text := about.get(kind))]


def _about(systems: Systems, members: Sequence[Configuration]) -> list[str]:
    counts = [len(one.runs) for one in members]
    said = [OVER_RUNS if max(counts, default=0) > 1 else ONE_RUN]
    return said + ([f"{systems.baseline_remark}."] if systems.baseline_remark else [])


def _marks(
    systems: Systems, one: Configuration, first_of: Mapping[str, Configuration] | None, footnotes: Notes
) -> tuple[str, ...]:
    """Return the marks of a line: what it trained otherwise than what it is beside, and on what machine."""
    if first_of is None:
        said = list(notes_of(systems.differing[one.label]))
    else:
        said = list(notes_of(systems.differs(one, first_of[one.label]), "the first line of its kind"))
    return footnotes.marks([*said, *([_PROBE] if one.is_probe else [])])


def _column(
    systems: Systems, members: Sequence[Configuration], figured: Figured, amounts: Sequence[Amount], footnotes: Notes,
    *, compares: bool,
) -> tuple[Column, list[TableCell]]:  # fmt: skip
    """Return a column of figures."""
    scale = scale_of(figured.measure, [amount.center for amount in amounts])
    side = {1: " ↑", -1: " ↓"}.get(figured.measure.better, "") if compares or figured.measure.is_quality else ""
    entries = []
    for one, amount in zip(members, amounts, strict=True):
        entry = TableCell(
            amount_text(amount, scale),
            amount.center,
            tuple(amount.values),
            figured.measure.source,
            footnotes.marks([amount.remark] if amount.remark else []),
            amount.deviation,
        )
        is_compared = compares and figured.measure.better != 0
        entries.append(_compared(systems, one, figured, amount, entry) if is_compared else entry)
    return Column(scale.label(figured.measure.label) + side, figured.measure.key), entries


def _compared(systems: Systems, one: Configuration, figured: Figured, amount: Amount, entry: TableCell) -> TableCell:
    """Return a cell with its change against the baseline; what is no comparison has none."""
    base = systems.baseline_of(one)
    value, other = amount.center, figured.find(base).center
    percent = percent_change(value, other)
    if one is base or value is None or other is None:
        return entry
    if systems.differing[one.label].refused:
        return replace(entry, text=f"{entry.text} (no comparison)")
    rose = value > other
    is_same = value == other or format_percent(percent) == format_percent(0.0)
    better = None if is_same or not figured.measure.better else rose == (figured.measure.better > 0)
    arrow = "" if is_same else " ↑" if rose else " ↓"
    text = f"{entry.text} ({format_percent(percent)}{arrow})"
    return replace(entry, text=text, change_percent=percent, better=better)


def _left_out(members: Sequence[Configuration], found: Sequence[tuple[Figured, Sequence[Amount]]]) -> list[str]:
    """Return the sentence that names the columns of which nothing is known, with what the records say of why."""
    unknown: dict[str, list[str]] = {}
    for figured, amounts in found:
        if not figured.is_kept and all(amount.center is None for amount in amounts):
            unknown.setdefault(_why(members, figured.measure), []).append(figured.measure.label)
    parts = [f"{', '.join(labels)}{f' ({why})' if why else ''}" for why, labels in unknown.items()]
    return [f"Not recorded by any of these runs: {'; '.join(parts)}."] if parts else []


def _why(members: Sequence[Configuration], measure: ReportMeasure) -> str:
    """Return the reasons beside a figure in the records, those of several ranks first: one rank has less to measure."""
    part = re.match(r"summary\.\w+", measure.source)
    if part is None:
        return ""
    runs = sorted((run for one in members for run in one.runs), key=lambda run: run.get("run.world_size") == 1)
    reasons = dict.fromkeys(run.get(f"{part[0]}.reason") for run in runs)
    texts = [reason for reason in reasons if isinstance(reason, str)]
    rest = len(texts) - _MAX_REASONS
    return "; or ".join(texts[:_MAX_REASONS]) + (f"; and {counted(rest, 'other reason')}" if rest > 0 else "")
