"""The main measures of configurations on one screen: a few beside each other, more with a line each."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paratune.base.units import NOT_AVAILABLE
from paratune.records.finished import RunRecord
from paratune.reports.amounts import Amount, Scale, amount_text, scale_of
from paratune.reports.measures import Measure, constant_score, cost, named, score
from paratune.reports.runs.sameness import Difference, setting_text
from paratune.reports.systems.building import amount_of, findings
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.model import Systems
from paratune.reports.tables.table import Column, Heading, Row, Table, TableCell, make_table
from paratune.verdicts import MeasureComparison
from paratune.verdicts.words import change_words, signed_interval_words

MAX_BESIDE = 3
"""Configurations that are beside each other; more have a line each."""
MAX_SCORES = 2
"""Headline scores of a split."""
_ADJUSTED = " *"


def main_table(systems: Systems, settings: Sequence[Difference] = (), most: int | None = None) -> Table:
    """Return the main measures: of up to `MAX_BESIDE` configurations a column for each, else a line for each.

    Args:
        systems: The configurations, and the verdicts on them; with two, their changes are in a last column.
        settings: Differences between their runs, above the measures of few configurations.
        most: Lines of many configurations.
    """
    members = sorted(systems.measured, key=lambda member: member is not systems.baseline)
    if len(members) > MAX_BESIDE:
        return lines_table(systems, most)
    rows: list[list[str | TableCell]] = [[setting.key, *_settings(setting, members)] for setting in settings]
    if any(len(member.runs) > 1 for member in members):
        rows.append(["Runs", *(f"{len(member.runs)}" for member in members)])
    rows += [
        [TableCell(heading, measure.key), *(_cell(measure, item, amount_text(item, scale)) for item in amounts)]
        for measure, heading, scale, amounts in _amounts(systems, members, _main_measures(systems))
    ]
    columns: list[Heading] = [("", "figure"), *(Column(member.label) for member in members)]
    if len(members) != 2:
        return make_table("main", "", columns, rows)
    found = {key: finding for key, by_label in findings(systems).items() for finding in by_label.values()}
    found = {f"{finding.split}_{key}" if finding.split else key: finding for key, finding in found.items()}
    task = members[0].runs[0].task
    changes = [_change(found.get(row[0].value) if isinstance(row[0], TableCell) else None, task) for row in rows]
    if not any(changes):
        return make_table("main", "", columns, rows)
    notes = ["Scores change in points of a hundred. In brackets: 95% intervals."]
    if any(change.endswith(_ADJUSTED) for change in changes):
        notes.append("* adjusted for the order of the runs")
    lines = [[*row, change] for row, change in zip(rows, changes, strict=True)]
    return make_table("main", "", [*columns, Column("Change")], lines, 1, notes)


def lines_table(systems: Systems, most: int | None = None) -> Table:
    """Return means of the main measures with a line for each configuration; with `most`, of the first ones."""
    members = systems.measured
    measures = [measure for measure in _main_measures(systems, 1) if measure.better]
    found = [*_amounts(systems, members, measures)]
    rows: list[Row] = [
        [member.label, TableCell(f"{len(member.runs)}", len(member.runs)),
         *(_cell(measure, amounts[at], scale.text(amounts[at].center)) for measure, _, scale, amounts in found)]
        for at, member in enumerate(members)
    ]  # fmt: skip
    notes = ["Means over the runs of a line."] if any(len(member.runs) > 1 for member in members) else []
    notes += [f"{len(rows) - len(rows[:most])} more: see the report."] if rows[:most] != rows else []
    columns = [("Configuration", "configuration"), ("Runs", "runs"), *((head, item.key) for item, head, *_ in found)]
    return make_table("main", "", columns, rows[:most], 1, notes)


def _amounts(
    systems: Systems, members: Sequence[Configuration], measures: Sequence[Measure]
) -> Iterator[tuple[Measure, str, Scale, list[Amount]]]:
    """Yield each measure that a configuration has, with its heading, the format of its values, and the values."""
    for measure in measures:
        amounts = [amount_of(systems, measure, member, member) for member in members]
        if any(amount.center is not None for amount in amounts):
            scale = scale_of(measure.unit, [amount.center for amount in amounts])
            # A constant answer has no spread over seeds.
            shown = amounts if measure.better else [replace(amount, is_of_all=True) for amount in amounts]
            yield measure, scale.label(measure.label.removesuffix(" per device")), scale, shown


def _cell(measure: Measure, found: Amount, text: str) -> TableCell:
    return TableCell(text, found.center, tuple(found.values), measure.source, deviation=found.deviation)


def _main_measures(systems: Systems, most: int = MAX_SCORES) -> list[Measure]:
    """Return time, speed, memory, energy, and the headline scores of each split above those of a constant answer."""
    are_full = not any(member.is_probe for member in systems.measured)
    keys = (
        "train_s" if are_full else "mean_step_ms", "latency_p50_ms", "latency_p95_ms", "samples_per_s",
        "peak_memory_largest_bytes", "weights_bytes", "energy_j",
    )  # fmt: skip
    prices = {price for member in systems.measured if (price := systems.price_of(member)) is not None}
    scores = [
        measure
        for split, metric in headline_scores([run for member in systems.measured for run in member.scored], most)
        for measure in (score(split, metric), replace(constant_score(split, metric), label="  constant answer"))
    ]
    return [*named(*keys), *([cost(max(prices))] if len(prices) == 1 else []), *scores]


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


def _settings(setting: Difference, members: Sequence[Configuration]) -> list[str]:
    """Return the values of a setting in the runs of each configuration."""
    return [", ".join(dict.fromkeys(setting_text(setting, run.name) for run in member.runs)) for member in members]


def _change(finding: MeasureComparison | None, task: str) -> str:
    """Return a known change with its interval, without its unit: "+8% [−39, +89]"; with a mark if it is adjusted."""
    if finding is None or finding.change is None:
        return ""
    interval = signed_interval_words(finding, task)
    text = change_words(finding, task) + ("" if interval == NOT_AVAILABLE else f" {interval}")
    is_adjusted = finding.order is not None and finding.order.is_adjusted
    return re.sub(" points?", "", text) + (_ADJUSTED if is_adjusted else "")
