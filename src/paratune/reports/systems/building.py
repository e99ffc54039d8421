"""Tables of configurations: a line for each configuration, a column for each figure, marks for differences."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.units import NOT_AVAILABLE, counted, format_count, format_percent, percent_change
from paratune.config.traits import TRAITS
from paratune.records.finished import RunRecord
from paratune.reports.amounts import Amount, Scale, amount_text, scale_of
from paratune.reports.measures import GOODPUT, STEP_PARTS, Measure, named
from paratune.reports.runs.machine import value_text
from paratune.reports.runs.sameness import canonical
from paratune.reports.systems.model import ENV, NODES, NPROC, Configuration, Systems
from paratune.reports.tables.table import Column, Table, TableCell, make_table
from paratune.verdicts import Differs, Group, MeasureComparison
from paratune.verdicts.groups import OF_A_STEP
from paratune.verdicts.speeds import changes_of

OVER_RUNS = "Mean ± sample standard deviation over the runs of a line; rates are all samples divided by the whole time."
ONE_RUN = "One run for each line: no spread over runs; more seeds or repeats give one."
_PROBE = "a probe: a few timed steps, without scores and without the time of a whole run"
ADJUSTED = "the change is adjusted for the order of the runs, as in the verdicts: it is not that of the two values"
_MAX_REASONS = 2
_MEASURE_OF_VERDICT = {"speed": "samples_per_s", "goodput": "goodput_samples_per_s"}  # keys, by names in verdicts
_OF_TIME = ("rate", "ms", "s")
COMPARED = (
    *named("samples_per_s", "train_s", "epoch_s", "step_median_ms"), *STEP_PARTS,
    *named("peak_memory_largest_bytes", "utilisation", "energy_j"),
)  # fmt: skip
"""The measures of a comparison besides goodput and scores, in their order."""
_LABELS = {
    "of": "Common settings", "configuration": "Configuration", "num_devices": "Devices",
    "global_batch_size": "Global batch",
}  # fmt: skip
"""Headings of the columns that name the lines, by key."""
Labels = dict[str, Any]
"""The columns that name the lines by their keys: a value for each line, or a function of its configuration."""
NAMES: Labels = {"configuration": lambda member: member.label}
SIZES: Labels = {
    "num_devices": lambda member: member.runs[0].run.world_size,
    "global_batch_size": lambda member: member.global_batch_size,
}


def is_batch(key: str) -> bool:
    return key.partition(".")[0] == "batch" and key != "batch.layout"


@dataclass(frozen=True)
class Scaling:
    """Configurations that differ in their number of devices, under one rule for the batch."""

    rule: str  # strong: equal total batch; weak: equal batch per device
    where: str  # values that all members share and other configurations do not; empty if there are none
    members: tuple[Configuration, ...]
    batch: float  # samples a step of all devices (strong), or of each device (weak)


def scalings(measured: Sequence[Configuration]) -> tuple[Scaling, ...]:
    """Return the families of at least two numbers of devices with equal total batch, or equal batch per device.

    Only the number counts: with one device, a total batch of 64 is also 64 for each device, however it was set.
    """
    found: list[Scaling] = []
    varied = _varied_keys(measured, lambda key: key == NPROC or is_batch(key))
    for members in _groups(measured):
        by_batch: dict[tuple[str, float], list[Configuration]] = {}
        for member in members:
            if total := member.global_batch_size:
                by_batch.setdefault(("strong", float(total)), []).append(member)
                by_batch.setdefault(("weak", total / member.world_size), []).append(member)
        for (rule, batch), same_batch in by_batch.items():
            lines = list(_lines(same_batch))
            apart = _varied_keys([line[-1] for line in lines], lambda key: not is_batch(key))
            for line in lines:
                # The values that the members share and other configurations do not.
                first, keys = line[-1], [*varied, *apart]
                parts = ["probes"] if None in keys and first.is_probe else []
                for key in filter(None, keys):
                    value, variable = first.settings.get(key), key.removeprefix(f"{ENV}.")
                    text = {True: "on", False: "off"}[value] if isinstance(value, bool) else value_text(value)
                    if variable != key or not isinstance(value, str):
                        name = variable if variable != key else key.rpartition(".")[2].replace("_", " ")
                        text = f"{name} {text}"
                    parts += [] if value is None else [text]
                where = ", ".join(dict.fromkeys(filter(None, parts)))
                found.append(Scaling(rule, where, tuple(line), batch))
    order = list(dict.fromkeys(scaling.where for scaling in found))  # that of the configurations
    return tuple(sorted(found, key=lambda scaling: (scaling.rule, order.index(scaling.where), scaling.batch)))


def _lines(members: Sequence[Configuration]) -> Iterator[list[Configuration]]:
    """Yield lines over the number of devices, from members with an equal batch.

    Settings of the batch, such as accumulation, separate lines. A member that is alone with its settings is in each
    line that has no member of its size. Of two with equal settings and size the first one counts.
    """
    by_settings: dict[str, dict[int, Configuration]] = {}
    for member in members:
        settings = canonical({key: value for key, value in member.settings.items() if is_batch(key)})
        by_settings.setdefault(settings, {}).setdefault(member.world_size, member)
    alone: dict[int, Configuration] = {}
    for by_size in by_settings.values():
        alone = by_size | alone if len(by_size) == 1 else alone
    for line in [by_size for by_size in by_settings.values() if len(by_size) > 1] or [alone]:
        by_size = alone | line
        if len(by_size) > 1:
            yield [by_size[size] for size in sorted(by_size)]


def _groups(measured: Sequence[Configuration]) -> Iterator[list[Configuration]]:
    """Yield the configurations that are equal in all settings except those of devices and batch.

    Configurations on one device join each group without any: those of the strategy single, which is one device of every
    strategy, and those that differ only in the number of nodes.
    """
    singles = [member for member in measured if member.world_size == 1]
    for group in grouped((_others(member), member) for member in measured).values():
        if all(member.world_size > 1 for member in group):
            for single in singles:
                traits = TRAITS.get(str(single.runs[0].run.strategy.kind))
                is_any = traits is not None and traits.max_world_size == 1
                of_single, of_group = (_others(one, nodes=False, strategy=not is_any) for one in (single, group[-1]))
                group = [single, *group] if of_single == of_group else group
        if len(group) > 1:
            yield group


def _others(member: Configuration, *, nodes: bool = True, strategy: bool = True) -> str:
    """Return the settings that are not of devices and batch; without those of nodes and of the strategy if so asked.

    An option that is off is one that another strategy does not have. Precision and CPU offload are not of the strategy.
    """
    settings = {}
    for key, value in member.settings.items():
        section, _, name = key.partition(".")
        is_strategy = section == "strategy" and not any(of in name for of in ("param_dtype", "offload", "cpu_adam"))
        is_left_out = key == NPROC or is_batch(key) or (not nodes and key == NODES) or (not strategy and is_strategy)
        if not is_left_out and value is not None and value is not False:
            settings[key] = value
    return canonical([member.is_probe, settings])


def _varied_keys(measured: Sequence[Configuration], left_out: Callable[[str], bool]) -> list[str | None]:
    """Return the settings in which configurations differ; None: some are probes and some not."""
    keys = dict.fromkeys(key for member in measured for key in member.settings if not left_out(key))
    varied = [key for key in keys if len({canonical(member.settings.get(key)) for member in measured}) > 1]
    return [*varied, *([None] if len({member.is_probe for member in measured}) > 1 else [])]


class Notes(dict[str, str]):
    """The notes of a table: each text once, with the letters of its mark: a to z, then aa, ab, ..."""

    def marks(self, *texts: str) -> tuple[str, ...]:
        """Return the marks of notes, which are added; empty texts are no notes."""
        for text in filter(None, texts):
            if text not in self:
                over, last = divmod(len(self), 26)
                self[text] = (ascii_lowercase[over - 1] if over else "") + ascii_lowercase[last]
        return tuple(self[text] for text in texts if text)


def comparison_notes(differs: Differs, base: str) -> Iterator[str]:
    """Yield the remarks on the differences of a configuration; `base` names the other one."""
    names = [[label.removeprefix("the ") for label in labels] for labels in (differs.refused, differs.allowed)]
    refused, allowed = map(", ".join, names)
    if refused:
        yield f"not comparable with {base}: different {refused}, which is not on an axis"
    if allowed:
        yield f"trained differently from {base}: different {allowed}"
    if differs.samples is not None:
        yield f"another training budget than {base}: do not compare scores and times of whole runs"
    if differs.elsewhere:
        yield f"ran on a different machine from {base}: do not compare times and memory"


def build(
    systems: Systems, key: str, title: str, labels: Labels,
    members: Sequence[Configuration], measures: Sequence[Measure], notes: Sequence[str] = (), *,
    compares: bool = False, shows_all: bool = False, first_of: Mapping[str, Configuration] = {},
    scales: Mapping[str, Scale] = {},
) -> Table:  # fmt: skip
    """Return a table of configurations.

    Args:
        members: Configurations of the lines, each with a run.
        notes: Notes below the table, before those of its marks.
        compares: Whether cells show their change against the baseline.
        shows_all: Whether columns without any known value are shown; else they are named below.
        first_of: Configuration that each line is compared with, by name; else the baseline.
        scales: Units and formats by key of the measure; else those that suit the values.
    """
    firsts = [first_of.get(member.label) or systems.baseline_of(member) for member in members]
    footnotes, marks, other = Notes(), [], "the first of its kind" if first_of else "the baseline"
    for member, base in zip(members, firsts, strict=True):
        remarks = comparison_notes(systems.differs(member, base), other)
        marks.append(footnotes.marks(*remarks, _PROBE if member.is_probe else ""))
    columns: list[tuple[Column, list[TableCell]]] = []
    for label, source in labels.items():
        values = [*map(source, members)] if callable(source) else source
        texts = [value if isinstance(value, str) else format_count(value) for value in values]
        entries = [TableCell(text, value) for text, value in zip(texts, values, strict=True)]
        if not columns:
            entries = [replace(cell, marks=mark) for cell, mark in zip(entries, marks, strict=True)]
        columns.append((Column(_LABELS[label], label, is_text=True), entries))
    left_out, about = [], []
    for measure in measures:
        amounts = [systems.amount(measure, *pair) for pair in zip(members, firsts, strict=True)]
        if shows_all or any(amount.center is not None for amount in amounts):
            scale = scales.get(measure.key) or scale_of(measure.unit, [amount.center for amount in amounts])
            columns.append(_column(systems, members, measure, amounts, scale, footnotes, compares=compares))
            about += [measure.note] if measure.note else []
        else:
            left_out.append(measure)
    names_of_runs = [tuple(run.name for run in member.runs) for member in members]
    counts = [TableCell(format_count(len(runs)), len(runs), runs, "finished runs") for runs in names_of_runs]
    columns.append((Column("Runs", "num_runs"), counts))
    lines = zip(*(cells for _, cells in columns), strict=True)
    below = [OVER_RUNS if any(len(member.runs) > 1 for member in members) else ONE_RUN]
    named, baseline = systems.record.baseline, systems.baseline
    if baseline is not None and not named.items() <= baseline.values.items():
        wanted = ", ".join(f"{label} {name}" for label, name in named.items())
        below.append(f"the baseline of the matrix ({wanted}) has no finished run.")
    below += [*notes, *about, *_left_out(members, left_out)]
    below += [f"[{letters}] {text}" for text, letters in footnotes.items()]
    marked = [row for row, member in enumerate(members) if compares and systems.baseline_of(member) is member]
    return make_table(key, title, [column for column, _ in columns], lines, 0, below, marked)


def amount_cell(amount: Amount, scale: Scale, marks: tuple[str, ...] = ()) -> TableCell:
    """Return the cell of a measure of a configuration."""
    return TableCell(
        amount_text(amount, scale), amount.center, tuple(amount.values), amount.measure.source, marks,
        amount.deviation, interval=amount.interval,
    )  # fmt: skip


def memory_kinds(runs: Sequence[RunRecord]) -> list[str]:
    """Return the kinds of memory that the runs measured: rss, cuda_allocated; n/a where a run does not record it."""
    return sorted({str(run.summary.memory.kind or NOT_AVAILABLE) for run in runs})


def memory_notes(members: Sequence[Configuration]) -> list[str]:
    kinds = memory_kinds([run for member in members for run in member.runs])
    about = {"rss": "Memory is the resident memory of the processes, which counts shared pages in each process."}
    about["cuda_allocated"] = "Memory is the memory that PyTorch allocated on the devices."
    if len(kinds) > 1:
        return [f"Memory was measured in different ways and is not comparable: {', '.join(kinds)}."]
    return [about[kind] for kind in kinds if kind in about]


def _column(
    systems: Systems, members: Sequence[Configuration], measure: Measure, amounts: Sequence[Amount], scale: Scale,
    footnotes: Notes, *, compares: bool,
) -> tuple[Column, list[TableCell]]:  # fmt: skip
    """Return a column of figures; with `compares`, each with its change against the baseline."""
    is_compared = compares and measure.better != 0
    side = {1: " ↑", -1: " ↓"}.get(measure.better, "") if compares or measure.is_quality else ""
    by_label = {member.label: amount for member, amount in zip(members, amounts, strict=True)}
    changes = comparisons(systems, members, measure, by_label) if is_compared else {}
    entries = []
    for member, amount in zip(members, amounts, strict=True):
        entry = amount_cell(amount, scale, footnotes.marks(amount.remark))
        base = by_label.get(systems.baseline_of(member).label)
        if is_compared and base is not None and base.center is not None and amount.center is not None:
            entry = _compared(systems, member, measure, entry, base.center, changes.get(member.label), footnotes)
        entries.append(entry)
    return Column(scale.label(measure.label) + side, measure.key), entries


def _compared(
    systems: Systems, member: Configuration, measure: Measure, entry: TableCell, before: float,
    comparison: MeasureComparison | None, footnotes: Notes,
) -> TableCell:  # fmt: skip
    """Return a cell with its change against the baseline; without one if the two are not comparable, or cannot differ.

    The change is that of the two values, or one that is adjusted, which a mark names.
    """
    differs, base, is_of_step = systems.differs(member), systems.baseline_of(member), measure.key in OF_A_STEP
    is_placebo = is_of_step and base.group.cannot_differ(member.group)
    if member is base or member.is_probe != base.is_probe or is_placebo:
        return entry
    if differs.refused:
        return replace(entry, text=f"{entry.text} (no comparison)")
    percent, is_adjusted, is_told = percent_change(entry.value, before), False, False
    if comparison is not None and comparison.change is not None:
        is_adjusted = comparison.order is not None and comparison.order.is_adjusted
        # Means over runs and the ratio of geometric means may differ in sign: then the change is that of the values.
        if is_adjusted or (comparison.change > 0) == (entry.value > before):
            # Measures without a verdict are told apart by a 95% interval without 0.
            low, high = comparison.low, comparison.high
            is_told = low is not None and high is not None and (low > 0 or high < 0)
            if comparison.measure in _MEASURE_OF_VERDICT or not comparison.is_ratio:
                is_told = comparison.outcome == "different"
            percent = 100 * comparison.change if comparison.is_ratio else percent
    entry = replace(entry, marks=(*entry.marks, *footnotes.marks(ADJUSTED if is_adjusted else "")))
    shown = format_percent(percent)
    is_of_budget = differs.samples is not None and not (is_of_step or measure.key == GOODPUT.key)
    if percent is None or shown == format_percent(0.0) or is_of_budget:
        return replace(entry, text=f"{entry.text} ({shown})", change_percent=percent)
    better = (percent > 0) == (measure.better > 0) if is_told else None
    text = f"{entry.text} ({shown} {'↑' if percent > 0 else '↓'})"
    return replace(entry, text=text, change_percent=percent, better=better)


def findings(systems: Systems) -> dict[str, dict[str, MeasureComparison]]:
    """Return all comparisons with the baselines by key of the measure and label: of `COMPARED`, and of the verdicts."""
    found = {}
    for measure in (*COMPARED, GOODPUT):
        amounts = {member.label: systems.amount(measure, member) for member in systems.measured}
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
    for base, family in grouped((systems.baseline_of(member), member) for member in members).items():
        others = [one for one in family if one is not base and one.is_probe == base.is_probe]
        compared = [one for one in others if not systems.differs(one).refused]
        # The runs that have a value; without those where one is not above 0 or is one for all runs.
        groups, values = [], []
        for member in (base, *compared):
            amount = amounts.get(member.label)
            if amount is not None and not amount.is_pooled and min(amount.values.values(), default=0.0) > 0:
                runs = tuple(run for run in member.runs if run.name in amount.values)
                groups.append(member.group if len(runs) == len(member.runs) else Group(member.label, runs))
                values.append([amount.values[run.name] for run in runs])
        if not groups or groups[0].label != base.label:
            continue
        (first, *known), (before, *others_values) = groups, values
        sides = [(before, after) for after in others_values]
        changes = changes_of(first, known, measure.key, sides, is_speed=measure.unit in _OF_TIME)
        for group, finding in zip(known, changes, strict=True):
            kinds = memory_kinds([*first.runs, *group.runs])
            if measure.unit == "bytes" and len(kinds) > 1:
                reason = f"different kinds of memory: {', '.join(kinds)}"
                finding = finding.without_change("different_memory_kind", reason)
            found[group.label] = finding
    for verdict in systems.verdicts:
        if _MEASURE_OF_VERDICT.get(verdict.speed.measure) == measure.key:
            found[verdict.label] = verdict.speed
        for score in verdict.quality:
            if f"{score.split}_{score.measure}" == measure.key:
                found[verdict.label] = score
    return found


def _left_out(members: Sequence[Configuration], measures: Sequence[Measure]) -> list[str]:
    # A run of one rank has a reason of its own.
    runs = sorted((run for member in members for run in member.runs), key=lambda run: run.run.world_size == 1)
    unknown: dict[str, list[str]] = {}
    for measure in measures:
        texts = [reason for reason in dict.fromkeys(map(measure.reason, runs)) if reason is not None]
        more = [f"and {counted(len(texts) - _MAX_REASONS, 'other reason')}"] if len(texts) > _MAX_REASONS else []
        why = "; ".join(filter(None, ["; or ".join(texts[:_MAX_REASONS]), *more]))
        unknown.setdefault(why, []).append(measure.label)
    parts = [f"{', '.join(labels)}{f' ({why})' if why else ''}" for why, labels in unknown.items()]
    return [f"Not recorded by these runs: {'; '.join(parts)}."] if parts else []
