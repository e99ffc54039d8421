"""Builds tables of configurations: a line for each configuration, a column for each figure, marks for differences."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from paratune.base.grouping import grouped
from paratune.base.units import NOT_AVAILABLE, counted, format_count, format_percent, percent_change
from paratune.records.finished import RunRecord
from paratune.reports.amounts import Amount, Scale, amount_text, scale_of
from paratune.reports.measures import Measure
from paratune.reports.systems.changes import changes
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.model import Systems
from paratune.reports.systems.sameness import Notes, comparison_notes
from paratune.reports.tables.table import Column, Table, TableCell, make_table
from paratune.verdicts import Group, MeasureComparison
from paratune.verdicts.placebo import is_of_a_step

OVER_RUNS = "Mean ± sample standard deviation over the runs of a line; rates are all samples divided by the whole time."
ONE_RUN = "One run for each line: no spread over runs; more seeds or repeats give one."
_PROBE = "a probe: a few timed steps, without scores and without the time of a whole run"
ADJUSTED = "the change is adjusted for the order of the runs, as in the verdicts: it is not that of the two values"
_MAX_REASONS = 2
_MEASURE_OF_VERDICT = {"speed": "samples_per_s", "goodput": "goodput_samples_per_s"}
"""Key of the measure whose change a verdict has."""


@dataclass(frozen=True)
class FigureColumn:
    """A column of numbers: a measure, and how to compute it for a configuration."""

    measure: Measure
    find: Callable[[Configuration], Amount]
    is_always_shown: bool = False
    """Whether the column is shown when all its values are unknown."""
    scale: Scale | None = None
    """Its unit and format; None: those that suit its values."""


LabelColumn = tuple[Column, Sequence[TableCell]]
"""A column of names."""


def measure_column(systems: Systems, measure: Measure, *, is_always_shown: bool = False) -> FigureColumn:
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
    counts = [TableCell(format_count(len(runs)), len(runs), runs, "finished runs") for runs in names_of_runs]
    columns.append((Column("Runs", "num_runs"), counts))
    lines = zip(*(cells for _, cells in columns), strict=True)
    below = (*_table_notes(systems, members), *notes, *_left_out(members, amounts_by_column), *footnotes.lines)
    base = [row for row, member in enumerate(members) if compares and systems.baseline_of(member) is member]
    return make_table(key, title, [column for column, _ in columns], lines, 0, below, base)


def names(label: str, key: str, values: Sequence[str | int | None]) -> LabelColumn:
    """Return a column of names or numbers that identify the lines."""
    entries = [TableCell(value if isinstance(value, str) else format_count(value), value) for value in values]
    return Column(label, key, is_text=True), entries


def memory_kinds(runs: Sequence[RunRecord]) -> list[str]:
    """Return the kinds of memory that the runs measured: rss, cuda_allocated; n/a where a run does not record it."""
    return sorted({str(run.summary.memory.kind or NOT_AVAILABLE) for run in runs})


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
    scale = figured.scale or scale_of(figured.measure.unit, [amount.center for amount in amounts])
    is_compared = compares and figured.measure.better != 0
    side = {1: " ↑", -1: " ↓"}.get(figured.measure.better, "") if compares or figured.measure.is_quality else ""
    changes = _changes(systems, members, figured) if is_compared else {}
    entries = []
    for member, amount in zip(members, amounts, strict=True):
        marks = footnotes.marks([amount.remark] if amount.remark else [])
        text, runs = amount_text(amount, scale), tuple(amount.values)
        entry = TableCell(
            text, amount.center, runs, figured.measure.source, marks, amount.deviation, interval=amount.interval
        )
        if is_compared:
            entry = _compared(systems, member, figured, entry, changes.get(member.label), footnotes)
        entries.append(entry)
    return Column(scale.label(figured.measure.label) + side, figured.measure.key), entries


def _compared(
    systems: Systems, configuration: Configuration, figured: FigureColumn, entry: TableCell,
    comparison: MeasureComparison | None, footnotes: Notes,
) -> TableCell:  # fmt: skip
    """Return a cell with its change against the baseline; without one if the two are not comparable, or cannot differ.

    The change is that of the two values, or one that is adjusted, which a mark names.
    """
    base, differs = systems.baseline_of(configuration), systems.differing[configuration.label]
    before, key = figured.find(base).center, figured.measure.key
    is_placebo = differs.placebo and is_of_a_step(key)
    is_of_budget = differs.samples is not None and not (is_of_a_step(key) or key == _MEASURE_OF_VERDICT["goodput"])
    if configuration is base or entry.value is None or before is None or is_placebo:
        return entry
    if differs.refused:
        return replace(entry, text=f"{entry.text} (no comparison)")
    change, is_adjusted = (comparison.change, False) if comparison is not None else (None, False)
    if comparison is not None and comparison.order is not None:
        is_adjusted = comparison.order.is_adjusted
    percent = percent_change(entry.value, before)
    # Means over runs and the ratio of geometric means may differ in sign: then the change is that of the two values.
    is_of_comparison = change is not None and (is_adjusted or (change > 0) == (entry.value > before))
    if change is not None and is_of_comparison:
        percent = 100 * change
    marks = (*entry.marks, *footnotes.marks([ADJUSTED] if is_adjusted else []))
    shown = format_percent(percent)
    if percent is None or shown == format_percent(0.0) or is_of_budget:
        return replace(entry, text=f"{entry.text} ({shown})", change_percent=percent, marks=marks)
    rose = percent > 0
    is_told = comparison is not None and is_of_comparison and _is_told(comparison)
    text = f"{entry.text} ({shown} {'↑' if rose else '↓'})"
    better = rose == (figured.measure.better > 0) if is_told else None
    return replace(entry, text=text, change_percent=percent, better=better, marks=marks)


def _changes(systems: Systems, members: Sequence[Configuration], figured: FigureColumn) -> dict[str, MeasureComparison]:
    """Return the change of each configuration against its baseline, by label.

    That of the verdict for speed and goodput; of other times and rates, with the variances and the adjustment of
    verdicts; of all else the ratio of geometric means. None where a value is not above 0 or is one for all runs.
    """
    found: dict[str, MeasureComparison] = {}
    measure = figured.measure
    for family in grouped((id(systems.baseline_of(member)), member) for member in members).values():
        base = systems.baseline_of(family[0])
        compared = [one for one in family if one is not base and not systems.differing[one.label].refused]
        others = [known for member in compared if (known := _positive(systems, member, figured))]
        first = _positive(systems, base, figured)
        if first is None:
            continue
        sides = [(first[1], values) for _, values in others]
        groups = [group for group, _ in others]
        changed = changes(measure, first[0], groups, sides)
        found |= dict(zip((group.label for group in groups), changed, strict=True))
    speeds = {verdict.label: verdict.speed for verdict in systems.verdicts}
    return found | {
        label: speed for label, speed in speeds.items() if _MEASURE_OF_VERDICT.get(speed.measure) == measure.key
    }


def _positive(
    systems: Systems, member: Configuration, figured: FigureColumn
) -> tuple[Group, list[float | None]] | None:
    """Return the runs that have a value, and their values; None where one is not above 0 or is one for all runs."""
    amount = figured.find(member)
    if amount.is_of_all or min(amount.values.values(), default=0.0) <= 0:
        return None
    runs = tuple(run for run in member.runs if run.name in amount.values)
    # The group of all runs is kept: it knows whether its steps can differ from those of others.
    is_whole = len(runs) == len(member.runs)
    group = systems.once("group", member, lambda: Group(member.label, runs)) if is_whole else Group(member.label, runs)
    return group, [amount.values[run.name] for run in runs]


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


def _reasons_text(members: Sequence[Configuration], measure: Measure) -> str:
    """Return the reasons for unknown values from the records, those of runs with several ranks first."""
    part = re.match(r"summary\.\w+(\.preconditioned)?", measure.source)
    if part is None:
        return ""
    runs = sorted((run for member in members for run in member.runs), key=lambda run: run.run.world_size == 1)
    reasons = dict.fromkeys(run.get(f"{part[0]}.reason") for run in runs)
    texts = [reason for reason in reasons if isinstance(reason, str)]
    num_more = len(texts) - _MAX_REASONS
    return "; or ".join(texts[:_MAX_REASONS]) + (f"; and {counted(num_more, 'other reason')}" if num_more > 0 else "")
