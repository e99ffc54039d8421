"""The conclusions of a matrix: what is fastest at equal quality, what is best in quality, and what it costs.

Each sentence is computed from the verdicts, the selection or the records, and names the section that has its figures.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paratune.base.units import counted, format_duration
from paratune.reports.document import Statement
from paratune.reports.matrix.outcomes import CandidateGroup, CandidateRuns, SweepReport
from paratune.reports.rows.devices import device_hours
from paratune.reports.runs.read import RunRecord
from paratune.reports.systems.ladder_parts import ladder_statements
from paratune.reports.systems.measures import ENERGY_J
from paratune.reports.text import some_names
from paratune.verdicts import Group, MeasureComparison
from paratune.verdicts.ratios import ratio
from paratune.verdicts.words import change_words, label_of, quality_words, signed_interval_words, speed_words

MAX_SENTENCES = 4
"""Sentences on one subject; with more baselines, a last one names their number."""
_SECTIONS = {"speed": "verdicts", "quality": "chosen", "cost": "resources"}


@dataclass(frozen=True)
class ComparedOption:
    """A configuration, or a value of an axis, compared with a baseline."""

    label: str
    baseline: str
    speed: MeasureComparison
    quality: tuple[MeasureComparison, ...]
    task: str

    @property
    def is_as_good(self) -> bool:
        """Whether all scores are shown to be equal or better."""
        return bool(self.quality) and all(
            score.is_shown and (score.outcome == "equal" or score.is_better) for score in self.quality
        )

    @property
    def is_faster(self) -> bool:
        return self.speed.outcome == "different" and bool(self.speed.is_better)

    @property
    def is_open(self) -> bool:
        """Whether it may be faster at equal quality: nothing that is decided excludes it."""
        is_slow = self.speed.outcome == "equal" or (self.speed.outcome == "different" and not self.speed.is_better)
        is_bad = any(score.outcome == "different" and not score.is_better for score in self.quality)
        return self.speed.change is not None and not is_slow and not is_bad


def summary_statements(report: SweepReport) -> tuple[Statement, ...]:
    """Return the conclusions of a matrix; none without verdicts and scores."""
    return (*_speed(report), *_quality(report), *ladder_statements(report.ladders), *_cost(report))


def compared_options(report: SweepReport) -> dict[str, list[ComparedOption]]:
    """Return what is compared with each baseline: values of the axes if there are main effects, else configurations.

    The key is the subject of a sentence: an axis, or the name of a baseline.
    """
    families: defaultdict[str, list[ComparedOption]] = defaultdict(list)
    for family in report.effects:
        for axis in dict.fromkeys(effect.axis for effect in family.effects):
            subject = f"{axis} ({family.title})" if family.title else axis
            effects = [effect for effect in family.effects if effect.axis == axis]
            for level in dict.fromkeys(effect.level for effect in effects):
                comparisons = [effect.comparison for effect in effects if effect.level == level]
                speed = next(comparison for comparison in comparisons if comparison.is_ratio)
                quality = tuple(comparison for comparison in comparisons if not comparison.is_ratio)
                option = ComparedOption(f"{axis} {level}", f"{axis} {effects[0].baseline}", speed, quality, family.task)
                families[subject].append(option)
    if families:
        return families
    for verdict in report.verdicts:
        if not verdict.differs.refused:
            option = ComparedOption(verdict.label, verdict.baseline, verdict.speed, verdict.quality, verdict.task)
            families[f"against {verdict.baseline}"].append(option)
    return families


def fastest_option(options: Sequence[ComparedOption]) -> ComparedOption | None:
    """Return the option that is shown to be faster at equal or better quality; of several the one with most speed."""
    faster = [option for option in options if option.is_as_good and option.is_faster]
    return max(faster, key=lambda option: option.speed.change or 0.0, default=None)


def _speed(report: SweepReport) -> Iterator[Statement]:
    families = compared_options(report)
    # Axes that do not change the speed have no statement.
    telling = {
        subject: options
        for subject, options in families.items()
        if not report.effects or any(option.speed.outcome == "different" for option in options)
    } or families
    for subject, options in list(telling.items())[:MAX_SENTENCES]:
        yield _fastest(subject if len(telling) > 1 else "", options)
    if len(telling) > MAX_SENTENCES:
        text = f"{len(telling) - MAX_SENTENCES} more baselines have sentences of their own."
        yield Statement("More baselines", text, None, _SECTIONS["speed"])


def _fastest(subject: str, options: Sequence[ComparedOption]) -> Statement:
    """Return the sentence on the configurations that are compared with one baseline."""
    label = f"Fastest at equal quality{f', {subject}' if subject else ''}"
    best, base = fastest_option(options), options[0].baseline
    if best is not None:
        low = best.speed.low or 0.0
        others = (option for option in options if option is not best and option.is_open)
        near = [option.label for option in others if (option.speed.high or -math.inf) >= low]
        peers = f" By their intervals, {some_names(near, 3)} may be as fast." if near else ""
        text = f"{best.label} against {base}: {speed_words(best.speed)}; {_quality_text(best)}.{peers}"
        return Statement(label, text, True, _SECTIONS["speed"])
    first = max(options, key=lambda option: (option.is_open, option.speed.change or -math.inf))
    detail, speed = "", first.speed
    if speed.change is not None:
        change = f"{change_words(speed)} {speed.measure} {signed_interval_words(speed)}"
        detail = f" Closest: {first.label}, {change}; {_quality_text(first)}."
    if not first.is_open:
        text = f"{base}. Nothing else is faster without being worse.{detail}"
        return Statement(label, text, True, _SECTIONS["speed"])
    num_open = sum(option.is_open for option in options)
    text = f"cannot tell for {num_open} of {len(options)} against {base}.{detail}"
    return Statement(label, text, None, _SECTIONS["speed"])


def _quality_text(option: ComparedOption) -> str:
    """Return the outcome on quality with the interval of each score."""
    parts = [] if option.quality else ["there are no scores"]
    for score in option.quality:
        if score.change is None:
            parts.append(quality_words((score,), option.task))
            continue
        interval = f"{change_words(score, option.task)} {signed_interval_words(score, option.task)}"
        outcomes = {"equal": "equal", "different": "better" if score.is_better else "worse"}
        outcome = outcomes.get(score.outcome, "cannot tell")
        parts.append(f"{label_of(score.measure)} {outcome} ({interval})")
    return ", ".join(parts)


def _quality(report: SweepReport) -> Iterator[Statement]:
    groups = [group for group in report.groups if group.chosen is not None]
    for group in groups[:MAX_SENTENCES]:
        yield _best(report, group)
    if len(groups) > MAX_SENTENCES:
        text = f"{len(groups) - MAX_SENTENCES} more selections are in the table."
        yield Statement("More selections", text, None, _SECTIONS["quality"])
    if report.groups and not groups:
        text = "cannot tell: no candidate has all of its runs."
        yield Statement("Best in quality", text, None, _SECTIONS["quality"])


def _best(report: SweepReport, group: CandidateGroup) -> Statement:
    """Return the sentence on the selected candidate, and whether it is distinguished from the next one."""
    chosen = group.chosen
    assert chosen is not None
    name, where = _values(report, chosen.values), _values(report, group.values)
    label = f"Best in quality{f', {where}' if where else ''}"
    score = _mean_text(group, chosen)
    if group.is_below_constant:
        text = f"{name or 'the only candidate'}: {score}, not better than a constant prediction ({group.constant:.4f})."
        return Statement(label, text, False, _SECTIONS["quality"])
    if len(group.candidates) == 1:
        same = "all configurations train the same thing" if group.not_chosen_among else "there is one candidate"
        return Statement(label, f"nothing to select, because {same}: {score}.", True, _SECTIONS["quality"])
    leads = [(abs(found.change), other, found) for other, found in group.compared if found.change is not None]
    has_one = len(chosen.by_seed) < 2
    if not leads or has_one:
        why = f"from one {chosen.repeats}" if has_one else "because no other candidate has all of its runs"
        text = f"cannot tell {why}: {name} has {score}."
        return Statement(label, text, None, _SECTIONS["quality"])
    _, second, found = min(leads, key=lambda lead: lead[0])
    ahead = f"next {_values(report, second.values)}, {change_words(found, group.task)}"
    ahead += f" {signed_interval_words(found, group.task)}"
    if found.scope == "seeds":
        ahead += f" over {chosen.repeats}s, on these rows"
    if group.tied:
        tied = some_names([_values(report, candidate.values) for candidate in group.tied], 3)
        text = f"{name} by {score}, but it cannot be distinguished from {tied}; {ahead}."
        return Statement(label, text, group.is_best, _SECTIONS["quality"])
    return Statement(label, f"{name}: {score}; {ahead}.", group.is_best, _SECTIONS["quality"])


def _mean_text(group: CandidateGroup, candidate: CandidateRuns) -> str:
    """Return the mean on validation, and of how many seeds."""
    known = candidate.figure("validation", group.metric).known
    name = f"validation {label_of(group.metric)}"
    if not known:
        return f"{name} n/a"
    return f"{name} {math.fsum(known) / len(known):.4f} over {counted(len(known), candidate.repeats)}"


def _values(report: SweepReport, values: Mapping[str, str]) -> str:
    return ", ".join(f"{label} {report.shown(label, name)}" for label, name in values.items())


def _cost(report: SweepReport) -> Iterator[Statement]:
    """Yield the device-hours and the energy of all runs, and the change by the fastest option."""
    if report.systems is None:
        return
    runs = report.systems.runs
    hours = [value for run in runs if (value := device_hours(run)) is not None]
    if not hours:
        return
    parts = [f"{counted(len(hours), 'run')} took {_hours(math.fsum(hours))}"]
    price = report.record.price_per_device_hour
    parts += [f"{price * math.fsum(hours):.2f} at {price:g} a device-hour"] if price is not None else []
    energy = [value for run in runs if (value := ENERGY_J.read(run)) is not None]
    parts.append(
        f"{math.fsum(energy) / 3.6e6:.3g} kWh of energy"
        if len(energy) == len(runs)
        else f"energy is recorded for {len(energy)} of {counted(len(runs), 'run')}"
    )
    changes = [text for options in compared_options(report).values() if (text := _cost_change(report, options))]
    text = f"{', '.join(parts)}.{''.join(f' {text}' for text in changes[:1])}"
    yield Statement("Cost", text, True if len(hours) == len(runs) else None, _SECTIONS["cost"])


def _hours(hours: float) -> str:
    """Return device-hours; short ones as a duration."""
    return f"{hours:,.1f} device-hours" if hours >= 1 else f"{format_duration(3600 * hours)} of device time"


def _cost_change(report: SweepReport, options: Sequence[ComparedOption]) -> str:
    """Return the device-hours and the energy of a run of the fastest option, against the baseline."""
    best = fastest_option(options)
    if best is None:
        return ""
    first, second = (_runs_of(report, label) for label in (best.baseline, best.label))
    texts = []
    for name, read in (("device-hours", device_hours), ("energy", ENERGY_J.read)):
        sides = [[read(run) for run in runs] for runs in (first, second)]
        change = ratio(name, Group(best.baseline, first), Group(best.label, second), *sides).finding
        if change.change is not None and change.low is not None:
            texts.append(f"{change_words(change)} {name} {signed_interval_words(change)}")
    return f"A run with {best.label} takes {' and '.join(texts)} against {best.baseline}." if texts else ""


def _runs_of(report: SweepReport, label: str) -> tuple[RunRecord, ...]:
    """Return the runs of a configuration, or of a value of an axis in all its configurations."""
    assert report.systems is not None
    named = next((member.runs for member in report.systems.measured if member.label == label), None)
    if named is not None:
        return named
    shown = {axis.label: axis.values for axis in report.record.axes}
    return tuple(
        run
        for member in report.systems.measured
        for run in member.runs
        if any(f"{axis} {shown[axis][name]}" == label for axis, name in member.values.items())
    )
