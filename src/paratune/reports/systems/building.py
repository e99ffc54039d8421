"""Builds tables of configurations: a line for each configuration, a column for each figure, marks for differences."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from paratune.base.grouping import grouped
from paratune.base.units import NOT_AVAILABLE, counted, format_count, format_percent, percent_change
from paratune.records.finished import RunRecord
from paratune.reports.amounts import Amount, Scale, amount_text, scale_of
from paratune.reports.measures import EFFICIENCY, GOODPUT, NOISE_KEYS, STEP_PARTS, Measure, named
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.efficiency import efficiency, goodput, noise_amount
from paratune.reports.systems.labels import Notes, comparison_notes
from paratune.reports.systems.model import Systems
from paratune.reports.systems.scaling import SCALING, SPEED_UP, scaling_efficiency, speed_up
from paratune.reports.tables.table import Column, Table, TableCell, make_table
from paratune.verdicts import Group, MeasureComparison
from paratune.verdicts.placebo import is_of_a_step
from paratune.verdicts.speeds import changes_of

OVER_RUNS = "Mean ± sample standard deviation over the runs of a line; rates are all samples divided by the whole time."
ONE_RUN = "One run for each line: no spread over runs; more seeds or repeats give one."
_PROBE = "a probe: a few timed steps, without scores and without the time of a whole run"
ADJUSTED = "the change is adjusted for the order of the runs, as in the verdicts: it is not that of the two values"
_MAX_REASONS = 2
_MEASURE_OF_VERDICT = {"speed": "samples_per_s", "goodput": "goodput_samples_per_s"}
"""Key of the measure whose change a verdict has."""
_OF_TIME = ("rate", "ms", "s")
COMPARED = (
    *named("samples_per_s", "train_s", "epoch_s", "step_median_ms"), *STEP_PARTS,
    *named("peak_memory_largest_bytes", "utilisation", "energy_j"),
)  # fmt: skip
"""The measures of a comparison besides goodput and scores, in their order."""


LabelColumn = tuple[Column, Sequence[TableCell]]
"""A column of names."""


def amount_of(systems: Systems, measure: Measure, member: Configuration, first: Configuration) -> Amount:
    """Return a measure of a configuration; `first` is the one that its speed-up is against."""
    kinds = {key: kind for kind, key in NOISE_KEYS.items()}
    if measure.key in kinds:
        return noise_amount(systems, kinds[measure.key], member)
    if measure.key == SPEED_UP.key:
        return speed_up(first, member)
    if measure.key == SCALING.key:
        return scaling_efficiency(first, member)
    find = {EFFICIENCY.key: efficiency, GOODPUT.key: goodput}.get(measure.key)
    return systems.amount(measure, member) if find is None else find(systems, member)


def build(
    systems: Systems, key: str, title: str, labels: Sequence[LabelColumn], members: Sequence[Configuration],
    measures: Sequence[Measure], notes: Sequence[str] = (), *, compares: bool = False, shows_all: bool = False,
    first_of: Mapping[str, Configuration] | None = None, scales: Mapping[str, Scale] | None = None,
) -> Table:  # fmt: skip
    """Return a table of configurations.

    Args:
        systems: The matrix.
        key: Key of the table.
        title: Title of the table.
        labels: The first columns, with a text for each member.
        members: Configurations of the lines, each with a run.
        measures: The columns of numbers.
        notes: Notes below the table, before those of its marks.
        compares: Whether cells show their change against the baseline.
        shows_all: Whether columns without any known value are shown; else they are named below.
        first_of: Configuration that each line is compared with, by name; the baseline when None.
        scales: Units and formats by key of the measure; else those that suit the values.
    """
    firsts = [(first_of or {}).get(member.label) or systems.baseline_of(member) for member in members]
    columns_of_amounts = [
        (measure, [amount_of(systems, measure, *pair) for pair in zip(members, firsts, strict=True)])
        for measure in measures
    ]
    footnotes, marks = Notes(), []
    for member, base in zip(members, firsts, strict=True):
        differs = comparison_notes(
            systems.differs(member, base), "the first of its kind" if first_of else "the baseline"
        )
        marks.append(footnotes.marks([*differs, *([_PROBE] if member.is_probe else [])]))
    (first, entries), *others = labels
    columns = [(first, [replace(cell, marks=mark) for cell, mark in zip(entries, marks, strict=True)]), *others]
    left_out = []
    for measure, amounts in columns_of_amounts:
        if shows_all or any(amount.center is not None for amount in amounts):
            scale = (scales or {}).get(measure.key) or scale_of(measure.unit, [amount.center for amount in amounts])
            columns.append(_column(systems, members, measure, amounts, scale, footnotes, compares=compares))
        else:
            left_out.append(measure)
    names_of_runs = [tuple(run.name for run in member.runs) for member in members]
    counts = [TableCell(format_count(len(runs)), len(runs), runs, "finished runs") for runs in names_of_runs]
    columns.append((Column("Runs", "num_runs"), counts))
    lines = zip(*(cells for _, cells in columns), strict=True)
    about_runs = OVER_RUNS if any(len(member.runs) > 1 for member in members) else ONE_RUN
    remark = [f"{systems.baseline_remark}."] if systems.baseline_remark else []
    below = (about_runs, *remark, *notes, *_left_out(members, left_out), *footnotes.lines)
    marked = [row for row, member in enumerate(members) if compares and systems.baseline_of(member) is member]
    return make_table(key, title, [column for column, _ in columns], lines, 0, below, marked)


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


def _column(
    systems: Systems, members: Sequence[Configuration], measure: Measure, amounts: Sequence[Amount], scale: Scale,
    footnotes: Notes, *, compares: bool,
) -> tuple[Column, Sequence[TableCell]]:  # fmt: skip
    """Return a column of figures."""
    is_compared = compares and measure.better != 0
    side = {1: " ↑", -1: " ↓"}.get(measure.better, "") if compares or measure.is_quality else ""
    by_label = {member.label: amount for member, amount in zip(members, amounts, strict=True)}
    changes = comparisons(systems, members, measure, by_label) if is_compared else {}
    entries = []
    for member, amount in zip(members, amounts, strict=True):
        marks = footnotes.marks([amount.remark] if amount.remark else [])
        text, runs = amount_text(amount, scale), tuple(amount.values)
        entry = TableCell(
            text, amount.center, runs, amount.measure.source, marks, amount.deviation, interval=amount.interval
        )
        base = by_label.get(systems.baseline_of(member).label)
        if is_compared and base is not None:
            entry = _compared(systems, member, measure, entry, base.center, changes.get(member.label), footnotes)
        entries.append(entry)
    return Column(scale.label(measure.label) + side, measure.key), entries


def _compared(
    systems: Systems, configuration: Configuration, measure: Measure, entry: TableCell, before: float | None,
    comparison: MeasureComparison | None, footnotes: Notes,
) -> TableCell:  # fmt: skip
    """Return a cell with its change against the baseline; without one if the two are not comparable, or cannot differ.

    The change is that of the two values, or one that is adjusted, which a mark names.
    """
    differs, key = systems.differing[configuration.label], measure.key
    base, is_placebo = systems.baseline_of(configuration), differs.placebo and is_of_a_step(key)
    is_of_budget = differs.samples is not None and not (is_of_a_step(key) or key == GOODPUT.key)
    is_alone = configuration is base or configuration.is_probe != base.is_probe
    if is_alone or entry.value is None or before is None or is_placebo:
        return entry
    if differs.refused:
        return replace(entry, text=f"{entry.text} (no comparison)")
    change, is_adjusted = (comparison.change, False) if comparison is not None else (None, False)
    if comparison is not None and comparison.order is not None:
        is_adjusted = comparison.order.is_adjusted
    percent = percent_change(entry.value, before)
    # Means over runs and the ratio of geometric means may differ in sign: then the change is that of the two values.
    is_of_comparison = change is not None and (is_adjusted or (change > 0) == (entry.value > before))
    if change is not None and is_of_comparison and comparison is not None and comparison.is_ratio:
        percent = 100 * change
    marks = (*entry.marks, *footnotes.marks([ADJUSTED] if is_adjusted else []))
    shown = format_percent(percent)
    if percent is None or shown == format_percent(0.0) or is_of_budget:
        return replace(entry, text=f"{entry.text} ({shown})", change_percent=percent, marks=marks)
    rose = percent > 0
    is_told = comparison is not None and is_of_comparison and _is_told(comparison)
    text = f"{entry.text} ({shown} {'↑' if rose else '↓'})"
    better = rose == (measure.better > 0) if is_told else None
    return replace(entry, text=text, change_percent=percent, better=better, marks=marks)


def findings(systems: Systems) -> dict[str, dict[str, MeasureComparison]]:
    """Return all comparisons with the baselines by key of the measure and label: of `COMPARED`, and of the verdicts."""
    found = {}
    for measure in (*COMPARED, GOODPUT):
        amounts = {member.label: amount_of(systems, measure, member, member) for member in systems.measured}
        by_label = comparisons(systems, systems.measured, measure, amounts)
        if measure is not GOODPUT or any(finding.measure == "goodput" for finding in by_label.values()):
            found[measure.key] = by_label
    for verdict in systems.verdicts:
        for score in verdict.quality:
            found.setdefault(score.measure, {})[verdict.label] = score
    return {key: by_label for key, by_label in found.items() if by_label}


def comparisons(
    systems: Systems, members: Sequence[Configuration], measure: Measure, amounts: Mapping[str, Amount]
) -> dict[str, MeasureComparison]:
    """Return the comparison of a measure with the baseline of each configuration, by label: the one of all tables.

    That of the verdict for speed, goodput and scores, else the ratio with its interval and no outcome: times and rates
    have the variances and the adjustment of verdicts on speed, all else has those of the two alone. There is none for
    different experiments, for a probe and a full run, and where a value is not above 0 or is one for all runs.
    """
    found: dict[str, MeasureComparison] = {}
    for family in grouped((systems.baseline_of(member).label, member) for member in members).values():
        base = systems.baseline_of(family[0])
        others = [one for one in family if one is not base and one.is_probe == base.is_probe]
        compared = [one for one in others if not systems.differing[one.label].refused]
        known = [(one, group_of_runs) for one in (base, *compared) if (group_of_runs := _group(systems, one, amounts))]
        if not known or known[0][0] is not base:
            continue
        first, *groups = (group for _, group in known)
        values = [[amounts[one.label].values[run.name] for run in group.runs] for one, group in known]
        sides = [(values[0], own) for own in values[1:]]
        changes = changes_of(first, groups, measure.key, sides, is_speed=measure.unit in _OF_TIME)
        for group, finding in zip(groups, changes, strict=True):
            kinds = memory_kinds([*first.runs, *group.runs])
            if measure.unit == "bytes" and len(kinds) > 1:
                finding = MeasureComparison(
                    measure.key, True, finding.baseline, finding.value, finding.num_runs,
                    code="different_memory_kind", reason=f"different kinds of memory: {', '.join(kinds)}",
                )  # fmt: skip
            found[group.label] = finding
    for verdict in systems.verdicts:
        if _MEASURE_OF_VERDICT.get(verdict.speed.measure) == measure.key:
            found[verdict.label] = verdict.speed
        for score in verdict.quality:
            if f"{score.split}_{score.measure}" == measure.key:
                found[verdict.label] = score
    return found


def _group(systems: Systems, member: Configuration, amounts: Mapping[str, Amount]) -> Group | None:
    """Return the runs that have a value; None where one is not above 0 or is one for all runs."""
    amount = amounts.get(member.label)
    if amount is None or amount.is_of_all or min(amount.values.values(), default=0.0) <= 0:
        return None
    runs = tuple(run for run in member.runs if run.name in amount.values)
    # The group of all runs is kept: it knows whether its steps can differ from those of others.
    is_whole = len(runs) == len(member.runs)
    return systems.once("group", member, lambda: Group(member.label, runs)) if is_whole else Group(member.label, runs)


def _is_told(comparison: MeasureComparison) -> bool:
    """Return whether a change is shown: by its verdict, or by a 95% interval without 0 for measures without one."""
    if comparison.measure in _MEASURE_OF_VERDICT or not comparison.is_ratio:
        return comparison.outcome == "different"
    low, high = comparison.low, comparison.high
    return low is not None and high is not None and (low > 0 or high < 0)


def _left_out(members: Sequence[Configuration], measures: Sequence[Measure]) -> list[str]:
    """Return the note on columns without known values, with the reasons from the records."""
    unknown = grouped((_reasons_text(members, measure), measure.label) for measure in measures)
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
