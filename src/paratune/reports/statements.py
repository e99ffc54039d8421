"""The sentences on top of a report: functions of the comparisons, each with three values: yes, no and cannot tell.

Unknown is never no. "X is fastest" needs that X is shown to be faster and as good, and that every other configuration
is shown not to be faster: one with an unknown speed, without a score, with one run or without any run leaves it open.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from paratune.base.grouping import grouped
from paratune.config.metric_names import is_lower_better
from paratune.reports.document import Statement
from paratune.reports.text import some_names
from paratune.verdicts import MeasureComparison, Verdict
from paratune.verdicts.margins import SPEED
from paratune.verdicts.words import (
    comparison_words,
    name_of,
    quality_words,
)

UNKNOWN = MeasureComparison(SPEED, True, None, None, (0, 0), reason="it has no verdict")


_CANNOT_DIFFER: frozenset[str] = frozenset({"placebo"})
"""Codes of comparisons without a change whose sides are equal by their options, such as two learning rates in speed."""


@dataclass(frozen=True)
class ComparedOption:
    """A configuration, or a value of an axis, compared with a baseline."""

    label: str
    baseline: str
    speed: MeasureComparison = UNKNOWN
    quality: tuple[MeasureComparison, ...] = ()
    task: str = ""

    @property
    def is_faster(self) -> bool | None:
        return is_better(self.speed)

    @property
    def is_as_good(self) -> bool | None:
        """Whether every score is equal or better; None without scores."""
        return all_of(*(_is_as_good(score) for score in self.quality)) if self.quality else None

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
    if comparison.scope == "seeds":  # decided only for the rows on which these runs were scored
        return None
    return {"equal": False, "different": comparison.is_better}.get(comparison.outcome)


def _is_as_good(score: MeasureComparison) -> bool | None:
    decided = is_better(score)
    return True if decided is False and score.outcome == "equal" else decided


def all_of(*facts: bool | None) -> bool | None:
    """Return whether all facts hold: no where one does not hold, else unknown where one is unknown."""
    return False if False in facts else None if None in facts else True


def run_statements(verdicts: Sequence[Verdict]) -> tuple[Statement, ...]:
    """Return the conclusions of a report of runs; none without a configuration to compare with."""
    statements: list[Statement] = []
    for options in options_of(verdicts).values():
        statements += [fastest(options), *best_in_quality(options)]
    return tuple(statements)


def fastest(options: Sequence[ComparedOption], subject: str = "") -> Statement:
    """Return the sentence on what is fastest at equal quality among the options of one baseline."""

    def words(option: ComparedOption) -> str:
        return f"{comparison_words(option.speed)}; {_quality_text(option)}"

    return _leading(
        f"Fastest at equal quality{f', {subject}' if subject else ''}", options,
        lambda option: option.is_faster_and_as_good, lambda option: _gains(option.speed), words,
        ("faster without being worse", "as fast or faster"),
    )  # fmt: skip


def best_in_quality(options: Sequence[ComparedOption]) -> Iterator[Statement]:
    """Yield the sentence on what is best in the headline score that is compared with one baseline, if there is one."""
    score = next((option.quality[0] for option in options if option.quality), None)
    if score is not None:
        yield _leading(
            f"Best in {name_of(score)}", options, lambda option: option.is_better_in_quality,
            lambda option: _gains(*option.quality[:1]), lambda option: quality_words(option.quality[:1], option.task),
            ("better", "as good or better"),
        )  # fmt: skip


def _gains(comparison: MeasureComparison = UNKNOWN) -> tuple[float, float, float]:
    """Return the lower end of the interval, the change, and the upper end, all such that more is better."""
    ends = (comparison.low, comparison.change, comparison.high)
    lowest, change, highest = (
        unknown if end is None else end for unknown, end in zip((-math.inf, -math.inf, math.inf), ends, strict=True)
    )
    is_less_better = not comparison.is_ratio and is_lower_better(comparison.measure)
    return (-highest, -change, -lowest) if is_less_better else (lowest, change, highest)


def _leading(
    label: str, options: Sequence[ComparedOption], holds: Callable[[ComparedOption], bool | None],
    gains: Callable[[ComparedOption], tuple[float, float, float]], words: Callable[[ComparedOption], str],
    names: tuple[str, str],
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
            label,
            f"{best.label} against {base}: {words(best)}.{others}",
            None if peers else True,
            "verdicts",
            "Verdicts",
        )
    nearest = max(open_ones or options, key=lambda option: gains(option)[1])
    closest = f" Closest: {nearest.label}, {words(nearest)}."
    if not open_ones:
        return Statement(label, f"{base}. Nothing else is {better}.{closest}", True, "verdicts", "Verdicts")
    which = "" if len(options) == 1 else f" for {len(open_ones)} of {len(options)}"
    return Statement(label, f"cannot tell{which} against {base}.{closest}", None, "verdicts", "Verdicts")


def _quality_text(option: ComparedOption) -> str:
    """Return the scores by their outcome: "test Accuracy equal, test F1 cannot tell"."""
    outcomes = grouped(
        (("better" if score.is_better else "worse") if score.outcome == "different" else score.outcome, name_of(score))
        for score in option.quality
    )
    return (
        ", ".join(f"{' and '.join(names)} {outcome}" for outcome, names in outcomes.items()) or "no score is compared"
    )


def options_of(verdicts: Sequence[Verdict]) -> dict[str, list[ComparedOption]]:
    """Return the configurations with a verdict, by their baseline; also those that are different experiments."""
    return grouped(
        (
            verdict.baseline,
            ComparedOption(verdict.label, verdict.baseline, verdict.speed, verdict.quality, verdict.task),
        )
        for verdict in verdicts
    )
