"""The sentences on top of a report: functions of the comparisons, each with three values: yes, no and cannot tell.

Unknown is never no. "X is fastest" needs that X is shown to be faster and as good, and that every other configuration
is shown not to be faster: one with an unknown speed, without a score, with one run or without any run leaves it open.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from paratune.base.grouping import grouped
from paratune.base.units import counted, format_duration
from paratune.config.metric_names import direction, is_lower_better
from paratune.reports.document import Statement
from paratune.reports.matrix.outcomes import CandidateGroup, CandidateRuns, SweepReport, difference_over_seeds
from paratune.reports.rows.devices import device_hours
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.ladder_parts import ladder_statements
from paratune.reports.systems.measures import ENERGY_J
from paratune.reports.text import some_names
from paratune.verdicts import MeasureComparison, Verdict
from paratune.verdicts.estimate import Estimate, mean_of
from paratune.verdicts.margins import SPEED
from paratune.verdicts.words import (
    change_words,
    comparison_words,
    label_of,
    name_of,
    quality_words,
    signed_interval_words,
)

MAX_SENTENCES = 4
"""Sentences on one subject; of more, a last one has the number."""
_UNKNOWN = MeasureComparison(SPEED, True, None, None, (0, 0), reason="it has no verdict")


_CANNOT_DIFFER: frozenset[str] = frozenset({"placebo"})
"""Codes of comparisons without a change whose sides are equal by their options, such as two learning rates in speed."""


@dataclass(frozen=True)
class Option:
    """A configuration, or a value of an axis, compared with a baseline."""

    label: str
    baseline: str
    speed: MeasureComparison = _UNKNOWN
    quality: tuple[MeasureComparison, ...] = ()
    task: str = ""

    @property
    def is_faster(self) -> bool | None:
        return is_better(self.speed)

    @property
    def is_as_good(self) -> bool | None:
        """Whether every score is equal or better; None without scores."""
        scores = [True if score.outcome == "equal" else is_better(score) for score in self.quality]
        return all_of(*scores) if scores else None

    @property
    def is_faster_and_as_good(self) -> bool | None:
        return all_of(self.is_faster, self.is_as_good)

    @property
    def is_better_in_quality(self) -> bool | None:
        """Whether the first score, the one of the headline, is better; None without scores."""
        return is_better(self.quality[0]) if self.quality else None


def is_better(comparison: MeasureComparison) -> bool | None:
    """Return whether a measure is better than the baseline's; None where that is not decided."""
    if comparison.code in _CANNOT_DIFFER:
        return False
    return {"equal": False, "different": comparison.is_better}.get(comparison.outcome)


def all_of(*facts: bool | None) -> bool | None:
    """Return whether all facts hold: no where one does not hold, else unknown where one is unknown."""
    return False if False in facts else None if None in facts else True


def run_statements(verdicts: Sequence[Verdict]) -> tuple[Statement, ...]:
    """Return the conclusions of a report of runs; none without a configuration to compare with."""
    statements: list[Statement] = []
    for options in _options(verdicts).values():
        statements += [fastest(options), *best_in_quality(options)]
    return tuple(statements)


def matrix_statements(report: SweepReport) -> tuple[Statement, ...]:
    """Return the conclusions of a matrix; none without verdicts and scores."""
    return (*_speed(report), *_quality(report), *ladder_statements(report.ladders), *_cost(report))


def fastest(options: Sequence[Option], subject: str = "") -> Statement:
    """Return the sentence on what is fastest at equal quality among the options of one baseline."""

    def words(option: Option) -> str:
        return f"{comparison_words(option.speed)}; {_quality_text(option)}"

    return _leading(
        f"Fastest at equal quality{f', {subject}' if subject else ''}", options,
        lambda option: option.is_faster_and_as_good, lambda option: _gains(option.speed), words,
        ("faster without being worse", "as fast or faster"),
    )  # fmt: skip


def best_in_quality(options: Sequence[Option]) -> Iterator[Statement]:
    """Yield the sentence on what is best in the headline score that is compared with one baseline, if there is one."""
    score = next((option.quality[0] for option in options if option.quality), None)
    if score is not None:
        yield _leading(
            f"Best in {name_of(score)}", options, lambda option: option.is_better_in_quality,
            lambda option: _gains(*option.quality[:1]), lambda option: quality_words(option.quality[:1], option.task),
            ("better", "as good or better"),
        )  # fmt: skip


def _gains(comparison: MeasureComparison = _UNKNOWN) -> tuple[float, float, float]:
    """Return the lower end of the interval, the change, and the upper end, all such that more is better."""
    ends = (comparison.low, comparison.change, comparison.high)
    lowest, change, highest = (
        unknown if end is None else end for unknown, end in zip((-math.inf, -math.inf, math.inf), ends, strict=True)
    )
    is_less_better = not comparison.is_ratio and is_lower_better(comparison.measure)
    return (-highest, -change, -lowest) if is_less_better else (lowest, change, highest)


def _leading(
    label: str, options: Sequence[Option], holds: Callable[[Option], bool | None],
    gains: Callable[[Option], tuple[float, float, float]], words: Callable[[Option], str], names: tuple[str, str],
) -> Statement:  # fmt: skip
    """Return which option leads.

    Args:
        label: Subject of the sentence.
        options: At least one, all compared with one baseline.
        holds: Whether an option is better than the baseline.
        gains: As `_gains` returns them; a larger change is better.
        words: The comparison of an option in words.
        names: What an option is that leads the baseline, and one that is not shown to be behind the leading one.
    """
    better, not_behind = names
    base = options[0].baseline
    leads = [option for option in options if holds(option)]
    open_ones = [option for option in options if holds(option) is None]
    if leads:
        best = max(leads, key=lambda option: gains(option)[1])
        peers = [o.label for o in (*leads, *open_ones) if o is not best and gains(o)[2] >= gains(best)[0]]
        others = f" Cannot tell whether {some_names(peers, 3)} may be {not_behind}." if peers else ""
        return Statement(
            label, f"{best.label} against {base}: {words(best)}.{others}", None if peers else True, "verdicts"
        )
    nearest = max(open_ones or options, key=lambda option: gains(option)[1])
    closest = f" Closest: {nearest.label}, {words(nearest)}."
    if not open_ones:
        return Statement(label, f"{base}. Nothing else is {better}.{closest}", True, "verdicts")
    which = "" if len(options) == 1 else f" for {len(open_ones)} of {len(options)}"
    return Statement(label, f"cannot tell{which} against {base}.{closest}", None, "verdicts")


def _quality_text(option: Option) -> str:
    """Return the outcome on quality with the interval of each score."""
    parts = [] if option.quality else ["no score is compared"]
    for score in option.quality:
        if score.change is None:
            parts.append(quality_words((score,), option.task))
            continue
        interval = f"{change_words(score, option.task)} {signed_interval_words(score, option.task)}"
        outcomes = {"equal": "equal", "different": "better" if score.is_better else "worse"}
        parts.append(f"{name_of(score)} {outcomes.get(score.outcome, 'cannot tell')} ({interval})")
    return ", ".join(parts)


def _options(verdicts: Sequence[Verdict]) -> dict[str, list[Option]]:
    """Return the configurations with a verdict, by their baseline; also those that are different experiments."""
    return grouped(
        (verdict.baseline, Option(verdict.label, verdict.baseline, verdict.speed, verdict.quality, verdict.task))
        for verdict in verdicts
    )


def matrix_options(report: SweepReport) -> dict[str, list[Option]]:
    """Return what is compared with each baseline: values of the axes if there are main effects, else configurations.

    The key is the subject of a sentence: an axis, or the name of a baseline. What could run and has no verdict, because
    no run of it is finished or for another reason, is an option of which nothing is known.
    """
    systems = report.systems
    if systems is None or systems.baseline is None:
        return {}
    possible = [
        member for member in systems.configurations
        if not all(item.cell.state == "skipped" for item in member.cell_runs)
    ]  # fmt: skip
    families: dict[str, list[Option]] = {}
    for family in report.effects:
        for axis in dict.fromkeys(effect.axis for effect in family.effects):
            effects = [effect for effect in family.effects if effect.axis == axis]
            base = f"{axis} {effects[0].baseline}"
            by_level = {level: [] for level in _levels(report, possible, axis, family.title)}
            by_level |= grouped((effect.level, effect.comparison) for effect in effects)
            by_level.pop(effects[0].baseline, None)
            options = []
            for level, found in by_level.items():
                speed = next((comparison for comparison in found if comparison.is_ratio), _UNKNOWN)
                scores = tuple(comparison for comparison in found if not comparison.is_ratio)
                options.append(Option(f"{axis} {level}", base, speed, scores, family.task))
            families[f"{axis} ({family.title})" if family.title else axis] = options
    if families:
        return families
    families = {f"against {base}": options for base, options in _options(report.verdicts).items()}
    known = {name for verdict in report.verdicts for name in (verdict.label, verdict.baseline)}
    for member in possible:
        base = systems.baseline_of(member).label
        if member.label not in known and member.label != base:
            families.setdefault(f"against {base}", []).append(Option(member.label, base))
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

    def named(values: Mapping[str, str]) -> str:
        return ", ".join(f"{label} {report.shown(label, name)}" for label, name in values.items())

    name, where = named(chosen.values), named(group.values)
    label = f"Best in quality{f', {where}' if where else ''}"
    score = _mean_text(group, chosen)
    if group.is_below_constant:
        text = f"{name or 'the only candidate'}: {score}, not better than a constant prediction ({group.constant:.4f})."
        return Statement(label, text, False, "chosen")
    others = [candidate for candidate in group.candidates if candidate is not chosen]
    if not others:
        same = "all configurations train the same thing" if group.not_chosen_among else "there is one candidate"
        return Statement(label, f"nothing to select, because {same}: {score}.", True, "chosen")
    leads = [(candidate, _lead(group, chosen, candidate)) for candidate in others]
    unknown = [candidate for candidate, lead in leads if lead is None]
    known = [(lead, candidate) for candidate, lead in leads if lead is not None]
    open_ones = [*group.tied, *(candidate for candidate in unknown if candidate not in group.tied)]
    text = f"{name}: {score}"
    if known:
        lead, second = min(known, key=lambda pair: pair[0].value)
        low, high = lead.interval()
        interval = f"{lead.value:.4f} [{low:.4f}, {high:.4f}]".replace("-", "\u2212")
        side = "higher" if direction(group.metric) == "max" else "lower"
        text += f"; {interval} {side} than {named(second.values)}"
    if open_ones:
        names = some_names([named(candidate.values) for candidate in open_ones], 3)
        text = f"cannot tell whether it is better than {names}. Chosen: {text}"
    return Statement(label, f"{text}.", None if open_ones else True, "chosen")


def _lead(group: CandidateGroup, chosen: CandidateRuns, other: CandidateRuns) -> Estimate | None:
    """Return by how much the chosen candidate is better on validation; None where a run or an interval is missing."""
    if not other.figure("validation", group.metric).is_whole:
        return None
    first, second = (candidate.scores("validation", group.metric) for candidate in (other, chosen))
    if direction(group.metric) == "min":
        first, second = second, first
    return difference_over_seeds(first, second)


def _mean_text(group: CandidateGroup, candidate: CandidateRuns) -> str:
    """Return the mean on validation with its 95% interval over seeds."""
    known = candidate.figure("validation", group.metric).known
    name = f"validation {label_of(group.metric)}"
    if len(known) < 2:
        return f"{name} {known[0]:.4f} (one {candidate.repeats})" if known else f"{name} n/a"
    mean = mean_of(known, scope="seeds")
    low, high = mean.interval()
    return f"{name} {mean.value:.4f} [{low:.4f}, {high:.4f}] over {counted(len(known), candidate.repeats)}"


def _cost(report: SweepReport) -> Iterator[Statement]:
    """Yield the device-hours and the energy of all runs."""
    runs = report.systems.runs if report.systems is not None else []
    hours = [value for run in runs if (value := device_hours(run)) is not None]
    if not hours:
        return
    total = math.fsum(hours)
    time = f"{total:,.1f} device-hours" if total >= 1 else f"{format_duration(3600 * total)} of device time"
    parts = [f"{counted(len(hours), 'run')} took {time}"]
    price = report.record.price_per_device_hour
    parts += [f"{price * total:.2f} at {price:g} a device-hour"] if price is not None else []
    energy = [value for run in runs if (value := ENERGY_J.read(run)) is not None]
    parts.append(
        f"{math.fsum(energy) / 3.6e6:.3g} kWh of energy"
        if len(energy) == len(runs)
        else f"energy is recorded for {len(energy)} of {counted(len(runs), 'run')}"
    )
    yield Statement("Cost", f"{', '.join(parts)}.", True if len(hours) == len(runs) else None, "resources")
