"""Builds tables of configurations: a line for each configuration, a column for each figure, marks for differences."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from paratune.base.grouping import grouped
from paratune.base.units import NOT_AVAILABLE, counted, format_percent, percent_change
from paratune.reports.rows.row import count_text
from paratune.reports.runs.read import RunRecord
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.measures import Amount, ColumnScale, ReportMeasure, amount_text, column_scale
from paratune.reports.systems.model import Systems
from paratune.reports.systems.sameness import Notes, comparison_notes
from paratune.reports.tables.table import Column, Table, TableCell, make_table
from paratune.verdicts import Group, MeasureComparison
from paratune.verdicts.ratios import ratio

OVER_RUNS = "Mean ± sample standard deviation over the runs of a line; rates are all samples divided by the whole time."
ONE_RUN = "One run for each line: no spread over runs; more seeds or repeats give one."
_PROBE = "a probe: a few timed steps, without scores and without the time of a whole run"
_MAX_REASONS = 2
_MEASURE_OF_VERDICT = {"speed": "samples_per_s", "goodput": "goodput_samples_per_s"}
"""Key of the measure whose change a verdict has."""


@dataclass(frozen=True)
class FigureColumn:
    """A column of numbers: a measure, and how to compute it for a configuration."""

    measure: ReportMeasure
    find: Callable[[Configuration], Amount]
    is_always_shown: bool = False
    """Whether the column is shown when all its values are unknown."""
    scale: ColumnScale | None = None
    """Its unit and format; None: those that suit its values."""


LabelColumn = tuple[Column, Sequence[TableCell]]
"""A column of names."""


def measure_column(systems: Systems, measure: ReportMeasure, *, is_always_shown: bool = False) -> FigureColumn:
    """Return the column of a measure of runs."""
    return FigureColumn(measure, lambda member: systems.amount(measure, member), is_always_shown)


def build(
    systems: Systems, key: str, title: str, labels: Sequence[LabelColumn], members: Sequence[Configuration],
    figures: Sequence[FigureColumn], notes: Sequence[str] = (), *, compares: bool = False,
    first_of: Mapping[str, Configuration] | None = None,
) -> Table:  # fmt: skip
    """Return a table of configurations.

    Args:
        systems: The matrix.
        key: Key of the table.
        title: Title of the table.
        labels: The first columns, with a text for each member.
        members: Configurations of the lines, each with a run.
        figures: The columns of numbers; unknown ones are left out and named below, unless they are always shown.
        notes: Notes below the table, before those of its marks.
        compares: Whether cells show their change against the baseline.
        first_of: Configuration that each line is compared with, by name; the baseline when None.
    """
    amounts_by_column = [(figured, [figured.find(member) for member in members]) for figured in figures]
    footnotes = Notes()
    marks = [_marks(systems, member, first_of, footnotes) for member in members]
    (first, entries), *others = labels
    columns = [(first, [replace(cell, marks=mark) for cell, mark in zip(entries, marks, strict=True)]), *others]
    for figured, amounts in amounts_by_column:
        if figured.is_always_shown or any(amount.center is not None for amount in amounts):
            columns.append(_column(systems, members, figured, amounts, footnotes, compares=compares))
    names_of_runs = [tuple(run.name for run in member.runs) for member in members]
    counts = [TableCell(count_text(len(runs)), len(runs), runs, "finished runs") for runs in names_of_runs]
    columns.append((Column("Runs", "num_runs"), counts))
    lines = zip(*(cells for _, cells in columns), strict=True)
    below = (*_table_notes(systems, members), *notes, *_left_out(members, amounts_by_column), *footnotes.lines)
    base = [row for row, member in enumerate(members) if compares and systems.baseline_of(member) is member]
    return make_table(key, title, [column for column, _ in columns], lines, 0, below, base)


def names(label: str, key: str, values: Sequence[str | int | None]) -> LabelColumn:
    """Return a column of names or numbers that identify the lines."""
    entries = [TableCell(value if isinstance(value, str) else count_text(value), value) for value in values]
    return Column(label, key, is_text=True), entries


def memory_kinds(runs: Sequence[RunRecord]) -> list[str]:
    """Return the kinds of memory that the runs measured: rss, cuda_allocated; n/a where a run does not record it."""
    return sorted({str(run.get("summary.memory.kind") or NOT_AVAILABLE) for run in runs})


def memory_notes(members: Sequence[Configuration]) -> list[str]:
    """Return the notes on memory figures."""
    kinds = memory_kinds([run for member in members for run in member.runs])
    about = {"rss": "memory is the resident memory of the processes, which counts shared pages in each process"}
    about["cuda_allocated"] = "memory is the memory that PyTorch allocated on the devices"
    if len(kinds) > 1:
        return [f"Memory was measured in different ways and is not comparable: {', '.join(kinds)}."]
    return [f"{text[0].upper()}{text[1:]}." for kind in kinds if (text := about.get(kind))]


def _table_notes(systems: Systems, members: Sequence[Configuration]) -> list[str]:
    counts = [len(member.runs) for member in members]
    texts = [OVER_RUNS if max(counts, default=0) > 1 else ONE_RUN]
    return texts + ([f"{systems.baseline_remark}."] if systems.baseline_remark else [])


def _marks(
    systems: Systems, configuration: Configuration, first_of: Mapping[str, Configuration] | None, footnotes: Notes
) -> tuple[str, ...]:
    """Return the marks of a line: differences from the configuration that it is compared with, and probes."""
    differs, base = systems.differing[configuration.label], "the baseline"
    if first_of is not None:
        differs, base = systems.differs(configuration, first_of[configuration.label]), "the first of its kind"
    return footnotes.marks([*comparison_notes(differs, base), *([_PROBE] if configuration.is_probe else [])])


def _column(
    systems: Systems, members: Sequence[Configuration], figured: FigureColumn, amounts: Sequence[Amount],
    footnotes: Notes, *, compares: bool,
) -> tuple[Column, Sequence[TableCell]]:  # fmt: skip
    """Return a column of figures."""
    scale = figured.scale or column_scale(figured.measure, [amount.center for amount in amounts])
    side = {1: " ↑", -1: " ↓"}.get(figured.measure.better, "") if compares or figured.measure.is_quality else ""
    entries = []
    for member, amount in zip(members, amounts, strict=True):
        marks = footnotes.marks([amount.remark] if amount.remark else [])
        text, runs = amount_text(amount, scale), tuple(amount.values)
        entry = TableCell(
            text, amount.center, runs, figured.measure.source, marks, amount.deviation, interval=amount.interval
        )
        is_compared = compares and figured.measure.better != 0
        entries.append(_compared(systems, member, figured, amount, entry) if is_compared else entry)
    return Column(scale.label(figured.measure.label) + side, figured.measure.key), entries


def _compared(
    systems: Systems, configuration: Configuration, figured: FigureColumn, amount: Amount, entry: TableCell
) -> TableCell:
    """Return a cell with its change against the baseline; without one if the two are not comparable."""
    base = systems.baseline_of(configuration)
    base_amount = figured.find(base)
    if configuration is base or amount.center is None or base_amount.center is None:
        return entry
    if systems.differing[configuration.label].refused:
        return replace(entry, text=f"{entry.text} (no comparison)")
    comparison = _comparison(systems, configuration, amount, base, base_amount)
    percent = percent_change(amount.center, base_amount.center)
    if comparison is not None and comparison.change is not None:
        percent = 100 * comparison.change
    rose = percent is not None and percent > 0
    is_same = percent is None or format_percent(percent) == format_percent(0.0)
    is_told = comparison is not None and _is_told(comparison)
    better = rose == (figured.measure.better > 0) if is_told and not is_same else None
    arrow = "" if is_same else " ↑" if rose else " ↓"
    text = f"{entry.text} ({format_percent(percent)}{arrow})"
    return replace(entry, text=text, change_percent=percent, better=better)


def _comparison(
    systems: Systems, configuration: Configuration, amount: Amount, base: Configuration, base_amount: Amount
) -> MeasureComparison | None:
    """Return the change of a measure: that of the verdict for speed and goodput, else the ratio of geometric means.

    None where a value is not above 0 or is one for all runs together.
    """
    verdict = next((verdict for verdict in systems.verdicts if verdict.label == configuration.label), None)
    if verdict is not None and amount.measure.key == _MEASURE_OF_VERDICT.get(verdict.speed.measure):
        return verdict.speed
    sides = [(configuration, amount), (base, base_amount)]
    if any(side.is_of_all or min(side.values.values(), default=0.0) <= 0 for _, side in sides):
        return None
    known = [[run for run in member.runs if run.name in side.values] for member, side in sides]
    other, first = (Group(member.label, tuple(runs)) for (member, _), runs in zip(sides, known, strict=True))
    values, base_values = (
        [side.values[run.name] for run in runs] for (_, side), runs in zip(sides, known, strict=True)
    )
    return ratio(amount.measure.key, first, other, base_values, values).finding


def _is_told(comparison: MeasureComparison) -> bool:
    """Return whether a change is shown: by its verdict, or by a 95% interval without 0 for measures without one."""
    if comparison.measure in _MEASURE_OF_VERDICT:
        return comparison.outcome == "different"
    low, high = comparison.low, comparison.high
    return low is not None and high is not None and (low > 0 or high < 0)


def _left_out(
    members: Sequence[Configuration], amounts_by_column: Sequence[tuple[FigureColumn, Sequence[Amount]]]
) -> list[str]:
    """Return the note on columns without known values, with the reasons from the records."""
    unknown = grouped(
        (_reasons_text(members, figured.measure), figured.measure.label)
        for figured, amounts in amounts_by_column
        if not figured.is_always_shown and all(amount.center is None for amount in amounts)
    )
    parts = [f"{', '.join(labels)}{f' ({why})' if why else ''}" for why, labels in unknown.items()]
    return [f"Not recorded by these runs: {'; '.join(parts)}."] if parts else []


def _reasons_text(members: Sequence[Configuration], measure: ReportMeasure) -> str:
    """Return the reasons for unknown values from the records, those of runs with several ranks first."""
    part = re.match(r"summary\.\w+(\.preconditioned)?", measure.source)
    if part is None:
        return ""
    runs = sorted((run for member in members for run in member.runs), key=lambda run: run.get("run.world_size") == 1)
    reasons = dict.fromkeys(run.get(f"{part[0]}.reason") for run in runs)
    texts = [reason for reason in reasons if isinstance(reason, str)]
    num_more = len(texts) - _MAX_REASONS
    return "; or ".join(texts[:_MAX_REASONS]) + (f"; and {counted(num_more, 'other reason')}" if num_more > 0 else "")
