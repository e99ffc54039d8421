"""The conclusions of a matrix: what is fastest at equal quality, what is best on validation, and what it cost."""

import math
from collections.abc import Iterator, Sequence

from paratune.base.grouping import grouped
from paratune.base.text import listing
from paratune.base.units import counted, format_duration
from paratune.reports.document import Statement
from paratune.reports.matrix.outcomes import Candidate, CandidateGroup, SweepReport
from paratune.reports.measures import MEASURES
from paratune.reports.statements import UNKNOWN, ComparedOption, fastest, options_of
from paratune.reports.systems.configurations import Configuration
from paratune.verdicts.words import change_words, label_of, signed_interval_words

MAX_SENTENCES = 4
"""Sentences on one subject; of more, a last one has the number."""


def matrix_statements(report: SweepReport) -> tuple[Statement, ...]:
    """Return the conclusions of a matrix; none without verdicts and scores."""
    return (*_speed(report), *_quality(report), *_cost(report))


def matrix_options(report: SweepReport) -> dict[str, list[ComparedOption]]:
    """Return what is compared with each baseline: values of the axes if there are main effects, else configurations.

    The key is the subject of a sentence: an axis, or the name of a baseline. What could run and has no verdict, because
    no run of it is finished or for another reason, is an option of which nothing is known.
    """
    if report.baseline is None:
        return {}
    possible = [
        member for member in report.configurations
        if not all(item.cell.state == "skipped" for item in member.cell_runs)
    ]  # fmt: skip
    families: dict[str, list[ComparedOption]] = {}
    for family in report.effects:
        for axis in dict.fromkeys(effect.axis for effect in family.effects):
            effects = [effect for effect in family.effects if effect.axis == axis]
            base = f"{axis} {effects[0].baseline}"
            by_level = grouped((effect.level, effect.comparison) for effect in effects)
            levels = dict.fromkeys([*by_level, *_levels(report, possible, axis, family.title)])
            options = []
            for level in (level for level in levels if level != effects[0].baseline):
                found = by_level.get(level, [])
                speed = next((comparison for comparison in found if comparison.is_ratio), UNKNOWN)
                scores = tuple(comparison for comparison in found if not comparison.is_ratio)
                options.append(ComparedOption(f"{axis} {level}", base, speed, scores, family.task))
            families[f"{axis} ({family.title})" if family.title else axis] = options
    if families:
        return families
    families = {f"against {base}": options for base, options in options_of(report.verdicts).items()}
    known = {name for verdict in report.verdicts for name in (verdict.label, verdict.baseline)}
    for member in possible:
        base = report.baseline_of(member).label
        if member.label not in known and member.label != base:
            families.setdefault(f"against {base}", []).append(ComparedOption(member.label, base))
    return families


def _levels(report: SweepReport, members: Sequence[Configuration], label: str, title: str) -> list[str]:
    """Return the shown values on an axis of the configurations within one combination of the axes in `select_per`."""
    held = [axis for axis in report.record.axes if axis.label in report.record.select_per]
    shown = next(axis.values for axis in report.record.axes if axis.label == label)
    inside = (
        member for member in members if ", ".join(axis.values[member.values[axis.label]] for axis in held) == title
    )
    return list(dict.fromkeys(shown[member.values[label]] for member in inside))


def _speed(report: SweepReport) -> Iterator[Statement]:
    families = matrix_options(report)
    # An axis without any value that may be faster has no sentence, unless that is so of all axes.
    telling = {
        subject: options
        for subject, options in families.items()
        if not report.effects or any(option.is_faster is not False for option in options)
    } or families
    for subject, options in list(telling.items())[:MAX_SENTENCES]:
        yield fastest(options, subject if len(telling) > 1 else "")
    if len(telling) > MAX_SENTENCES:
        text = f"{len(telling) - MAX_SENTENCES} more baselines have sentences of their own."
        yield Statement("More baselines", text, None, "verdicts")


def _quality(report: SweepReport) -> Iterator[Statement]:
    groups = [group for group in report.groups if group.chosen is not None]
    for group in groups[:MAX_SENTENCES]:
        yield chosen_statement(report, group)
    if len(groups) > MAX_SENTENCES:
        text = f"{len(groups) - MAX_SENTENCES} more selections are in the table."
        yield Statement("More selections", text, None, "chosen")
    if report.groups and not groups:
        yield Statement("Best in quality", "cannot tell: no candidate has all of its runs.", None, "chosen")


def chosen_statement(report: SweepReport, group: CandidateGroup) -> Statement:
    """Return the sentence on the selected candidate, and whether it is shown to be better than every other one."""
    chosen = group.chosen
    assert chosen is not None

    name, where = chosen.label, ", ".join(f"{label} {report.shown(label, to)}" for label, to in group.values.items())
    label = f"Best in quality{f', {where}' if where else ''}"
    score = _mean_text(group, chosen, report.repeats)
    if group.is_below_constant:
        text = f"{name or 'the only candidate'}: {score}, not better than a constant prediction ({group.constant:.4f})."
        return Statement(label, text, False, "chosen")
    if len(group.candidates) == 1:
        same = "all configurations train the same thing" if group.not_chosen_among else "there is one candidate"
        return Statement(label, f"nothing to select, because {same}: {score}.", True, "chosen")
    text = f"{name}: {score}"
    known = [(abs(found.change), other, found) for other, found in group.compared if found.change is not None]
    if known:
        _, second, found = min(known, key=lambda lead: lead[0])
        text += f"; next {second.label}, {change_words(found, group.task)} "
        text += signed_interval_words(found, group.task)
        text += f" over {report.repeats}s, on these rows" if found.scope == "seeds" else ""
    shown = [other for other, found in group.compared if found.is_shown and found.outcome == "different"]
    open_ones = [other for other in group.candidates if other is not chosen and other not in shown]
    if open_ones:
        names = listing([candidate.label for candidate in open_ones], 3)
        text = f"cannot tell whether it is better than {names}. Chosen: {text}"
    return Statement(label, f"{text}.", None if open_ones else True, "chosen")


def _mean_text(group: CandidateGroup, candidate: Candidate, repeats: str) -> str:
    """Return the mean on validation, and of how many seeds it is."""
    found = candidate.amount("validation", group.metric)
    name = f"validation {label_of(group.metric)}"
    if found.center is None:
        return f"{name} n/a"
    number = len(found.values)
    return f"{name} {found.center:.4f} {f'over {counted(number, repeats)}' if number > 1 else f'(one {repeats})'}"


def _cost(report: SweepReport) -> Iterator[Statement]:
    """Yield the device-hours, their price and the energy of all runs."""
    hours = [
        (value, report.price_of(member))
        for member in report.measured
        for run in member.runs
        if (value := MEASURES["device_hours"].of(run)) is not None
    ]
    if not hours:
        return
    total = math.fsum(value for value, _ in hours)
    time = f"{total:,.1f} device-hours" if total >= 1 else f"{format_duration(3600 * total)} of device time"
    parts = [f"{counted(len(hours), 'run')} took {time}"]
    prices = {price for _, price in hours}
    if None not in prices:
        money = math.fsum(value * (price or 0.0) for value, price in hours)
        at = f"at {prices.pop():g} a device-hour" if len(prices) == 1 else "at the prices of their systems"
        parts.append(f"{money:.2f} {at}")
    energy = [value for run in report.runs if (value := MEASURES["energy_j"].of(run)) is not None]
    parts.append(
        f"{math.fsum(energy) / 3.6e6:.3g} kWh of energy"
        if len(energy) == len(report.runs)
        else f"energy is recorded for {len(energy)} of {counted(len(report.runs), 'run')}"
    )
    yield Statement("Cost", f"{', '.join(parts)}.", True if len(hours) == len(report.runs) else None, "resources")
