"""Tables of configurations: their main figures beside each other, and all changes against a baseline."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from paratune.base.units import NOT_AVAILABLE, counted, format_percent, percent_change
from paratune.records.finished import RunRecord
from paratune.reports.amounts import Amount, Scale, amount, amount_text, scale_of
from paratune.reports.comparison.arrange import Compared, FigureRow
from paratune.reports.measures import Measure, constant_score, cost, named, score
from paratune.reports.runs.sameness import Difference, setting_text
from paratune.reports.tables.table import Column, Heading, Row, Table, TableCell, make_table
from paratune.verdicts import MeasureComparison
from paratune.verdicts.words import change_words, signed_interval_words

MAX_BESIDE = 3
"""Configurations that are beside each other; more have a line each."""
MAX_SCORES = 2
"""Headline scores of a split."""
_ADJUSTED = " *"
_ABOUT_ADJUSTED = "* adjusted for the order of the runs"


@dataclass(frozen=True)
class Member:
    """A configuration in a table of main figures."""

    label: str
    runs: Sequence[RunRecord]
    scored: Sequence[RunRecord]
    """The runs whose scores count."""

    def amount(self, measure: Measure) -> Amount:
        found = amount(measure, self.scored if measure.is_quality else self.runs)
        # A constant answer has no spread over seeds.
        return found if measure.better else replace(found, is_of_all=True)


def main_table(
    members: Sequence[Member], price: float | None, compared: Compared | None, settings: Sequence[Difference] = (),
    most: int | None = None,
) -> Table:  # fmt: skip
    """Return the main figures of configurations: of up to `MAX_BESIDE` a column for each, else a line for each.

    Args:
        members: The configurations.
        price: Price of a device-hour: adds the cost of a run.
        compared: The comparison of two members, whose changes are in a last column.
        settings: Differences between their runs, above the figures of few members.
        most: Lines of many members.
    """
    if len(members) > MAX_BESIDE:
        return lines_table(members, price, most)
    findings = {} if compared is None or len(members) != 2 else _findings(compared)
    if compared is not None:
        members = sorted(members, key=lambda member: member.label != compared.baseline)
    rows: list[list[str | TableCell]] = [[setting.key, *_settings(setting, members)] for setting in settings]
    if any(len(member.runs) > 1 for member in members):
        rows.append(["Runs", *(f"{len(member.runs)}" for member in members)])
    columns: list[Heading] = [("", "figure"), *(Column(member.label) for member in members)]
    for measure, heading, scale, amounts in _figures_of(members, main_measures(members, price)):
        finding = findings.get(measure.key)
        if finding is not None:  # the means that the change is of
            means = (finding.baseline, finding.value)
            amounts = [replace(item, center=mean) for item, mean in zip(amounts, means, strict=True)]
        cells = [_cell(measure, item, amount_text(item, scale)) for item in amounts]
        rows.append([TableCell(heading, measure.key), *cells])
    if not findings:
        return make_table("main", "", columns, rows)
    task = next(iter(compared.verdicts)).task if compared is not None else ""
    keys = [row[0].value if isinstance(row[0], TableCell) else None for row in rows]
    changes = [_short_change(findings[key], task) if key in findings else "" for key in keys]
    notes = ["Scores change in points of a hundred. In brackets: 95% intervals."]
    if any(change.endswith(_ADJUSTED) for change in changes):
        notes.append(_ABOUT_ADJUSTED)
    lines = [[*row, change] for row, change in zip(rows, changes, strict=True)]
    return make_table("main", "", [*columns, Column("Change")], lines, 1, notes)


def lines_table(members: Sequence[Member], price: float | None, most: int | None = None) -> Table:
    """Return means of the main figures with a line for each configuration; with `most`, of the first ones."""
    found = [*_figures_of(members, [measure for measure in main_measures(members, price, 1) if measure.better])]
    rows: list[Row] = [
        [member.label, TableCell(f"{len(member.runs)}", len(member.runs)),
         *(_cell(measure, amounts[at], scale.text(amounts[at].center)) for measure, _, scale, amounts in found)]
        for at, member in enumerate(members)
    ]  # fmt: skip
    notes = ["Means over the runs of a line."] if any(len(member.runs) > 1 for member in members) else []
    notes += [f"{len(rows) - len(rows[:most])} more: see the report."] if rows[:most] != rows else []
    columns = [("Configuration", "configuration"), ("Runs", "runs"), *((head, item.key) for item, head, *_ in found)]
    return make_table("main", "", columns, rows[:most], 1, notes)


def _figures_of(
    members: Sequence[Member], wanted: Iterable[Measure]
) -> Iterator[tuple[Measure, str, Scale, list[Amount]]]:
    """Yield each measure that a member has, with its heading, the format of its values, and the values."""
    for measure in wanted:
        amounts = [member.amount(measure) for member in members]
        if any(amount.center is not None for amount in amounts):
            scale = scale_of(measure.unit, [amount.center for amount in amounts])
            yield measure, scale.label(measure.label.removesuffix(" per device")), scale, amounts


def _cell(measure: Measure, found: Amount, text: str) -> TableCell:
    return TableCell(text, found.center, tuple(found.values), measure.source, deviation=found.deviation)


def main_measures(members: Sequence[Member], price: float | None = None, most: int = MAX_SCORES) -> Iterator[Measure]:
    """Yield time, speed, memory and energy, and the headline scores of each split, above those of a constant answer."""
    are_full = not any(run.is_probe for member in members for run in member.runs)
    yield from named(
        "train_s" if are_full else "mean_step_ms", "latency_p50_ms", "latency_p95_ms", "samples_per_s",
        "peak_memory_largest_bytes", "weights_bytes", "energy_j",
    )  # fmt: skip
    if price is not None:
        yield cost(price)
    for split, metric in headline_scores([run for member in members for run in member.scored], most):
        yield score(split, metric)
        yield replace(constant_score(split, metric), label="  constant answer")


def headline_scores(runs: Sequence[RunRecord], most: int = MAX_SCORES) -> list[tuple[str, str]]:
    """Return split and name of the first headline metrics of the tasks, validation and test first."""
    headline = dict.fromkeys(metric for run in runs for metric in run.run.task.metrics)
    scored = [run.summary.scores for run in runs]
    splits = dict.fromkeys(["validation", "test", *(split for scores in scored for split in scores)])
    found = []
    for split in splits:
        known = dict.fromkeys(metric for scores in scored for metric in scores.get(split) or ())
        shown = [metric for metric in (headline or known) if metric in known and metric != "loss"]
        found += [(split, metric) for metric in shown[:most]]
    return found


def _settings(setting: Difference, members: Sequence[Member]) -> list[str]:
    """Return the values of a setting in the runs of each configuration."""
    return [", ".join(dict.fromkeys(setting_text(setting, run.name) for run in member.runs)) for member in members]


def _findings(compared: Compared) -> dict[str, MeasureComparison]:
    """Return each known change of the only other configuration, by key of the measure."""
    pairs = [(row.measure.key, row.findings[0]) for row in compared.rows if row.findings[0].change is not None]
    return {f"{finding.split}_{key}" if finding.split else key: finding for key, finding in pairs}


def _short_change(finding: MeasureComparison, task: str) -> str:
    """Return a known change with its interval, without its unit."""
    return re.sub(" points?", "", change_text(finding, task)) + _adjusted(finding)


def _adjusted(finding: MeasureComparison) -> str:
    return _ADJUSTED if finding.order is not None and finding.order.is_adjusted else ""


def change_text(comparison: MeasureComparison, task: str = "") -> str:
    """Return a change with its interval, if it has one: "+8% [−39, +89]"; n/a where it is unknown."""
    if comparison.change is None:
        return NOT_AVAILABLE
    interval = signed_interval_words(comparison, task)
    change = change_words(comparison, task)
    return change if interval == NOT_AVAILABLE else f"{change} {interval}"


def changes_table(compared: Compared) -> Table:
    """Return all figures of the configurations: a column for each, with the changes against the baseline."""
    verdicts, base, others = compared.verdicts, compared.base, compared.others
    counts = [f"{counted(len(group.runs), 'run')}, {counted(len(group.by_seed), 'seed')}" for group in (base, *others)]
    runs = {group.label: tuple(run.name for run in group.runs) for group in compared.groups}
    rows: list[Row] = [["", *counts]]
    for row in compared.rows:
        changes = [_all_changes(finding, verdict.task) for finding, verdict in zip(row.findings, verdicts, strict=True)]
        values = _values(row)
        scale = scale_of(row.measure.unit, values)
        texts = zip(map(scale.text, values), ["", *changes], (base, *others), strict=True)
        cells = [TableCell(f"{text} {change}".rstrip(), runs=runs[group.label]) for text, change, group in texts]
        split = next((finding.split for finding in row.findings if finding.split), None)
        rows.append(
            [
                TableCell(f"{split.capitalize()} {row.measure.label}" if split else row.measure.label, row.measure.key),
                *cells,
            ]
        )
    base_column = Column(f"{compared.baseline} (baseline)", is_repeated=True)
    columns: list[Heading] = [("", "figure"), base_column, *(group.label for group in others)]
    notes = ["In square brackets: 95% confidence intervals; in round ones: the change in per cent of the baseline."]
    if any(_adjusted(finding) for row in compared.rows for finding in row.findings):
        notes.append(_ABOUT_ADJUSTED)
    return make_table("changes", f"Changes against {compared.baseline}", columns, rows, 1, notes)


def _all_changes(finding: MeasureComparison, task: str) -> str:
    """Return a change with its interval; of scores and different experiments also or only in per cent."""
    change = "" if finding.change is None else change_text(finding, task) + _adjusted(finding)
    if finding.value is None or (finding.baseline or 0) <= 0 or (finding.is_ratio and change):
        return change
    return f"{change} ({format_percent(percent_change(finding.value, finding.baseline))})".strip()


def _values(row: FigureRow) -> list[float | None]:
    """Return the figure of the baseline and of each other configuration."""
    base = next((finding.baseline for finding in row.findings if finding.baseline is not None), None)
    return [base, *(finding.value for finding in row.findings)]
