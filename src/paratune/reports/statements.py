"""The sentences on top of a report: functions of the comparisons, each with three values: yes, no and cannot tell.

Unknown is never no. "X is fastest" needs that X is shown to be faster and as good, and that every other configuration
is shown not to be faster: one with an unknown speed, without a score, with one run or without any run leaves it open.
"""

import math
from collections.abc import Iterator, Sequence

from paratune.base.grouping import grouped
from paratune.base.text import listing
from paratune.config.metric_names import is_lower_better
from paratune.reports.document import Statement
from paratune.verdicts import Differs, MeasureComparison, Verdict
from paratune.verdicts.groups import SPEED
from paratune.verdicts.words import comparison_words, name_of, quality_words

UNKNOWN = MeasureComparison(SPEED, True, None, None, (0, 0), reason="it has no verdict")


def without_verdict(label: str, baseline: str) -> Verdict:
    """Return the verdict on a configuration of which nothing is known."""
    return Verdict(label, baseline, (), (), UNKNOWN, (), None, "", Differs(), 0)


def is_better(comparison: MeasureComparison) -> bool | None:
    """Return whether a measure is better than the baseline's; None where that is not decided."""
    if comparison.code == "placebo":  # sides that are equal by their options, such as two learning rates in speed
        return False
    if comparison.scope == "seeds":  # decided only for the rows on which these runs were scored
        return None
    return {"equal": False, "different": comparison.is_better}.get(comparison.outcome)


def all_of(*facts: bool | None) -> bool | None:
    """Return whether all facts hold: no where one does not hold, else unknown where one is unknown."""
    return False if False in facts else None if None in facts else True


def is_as_good(verdict: Verdict) -> bool | None:
    """Return whether every score is equal or better; None without scores."""
    decided = ((score, is_better(score)) for score in verdict.quality)
    good = [True if known is False and score.outcome == "equal" else known for score, known in decided]
    return all_of(*good) if good else None


def run_statements(verdicts: Sequence[Verdict]) -> tuple[Statement, ...]:
    """Return the conclusions of a report of runs; none without a configuration to compare with."""
    families = grouped((verdict.baseline, verdict) for verdict in verdicts).values()
    return tuple(statement for family in families for statement in (fastest(family), *best_in_quality(family)))


def fastest(verdicts: Sequence[Verdict], subject: str = "") -> Statement:
    """Return the sentence on what is fastest at equal quality among the configurations of one baseline."""
    found = []
    for verdict in verdicts:
        outcomes = grouped(
            (
                score.outcome if score.outcome != "different" else "better" if score.is_better else "worse",
                name_of(score),
            )
            for score in verdict.quality
        )
        quality = ", ".join(f"{' and '.join(names)} {outcome}" for outcome, names in outcomes.items())
        words = f"{comparison_words(verdict.speed)}; {quality or 'no score is compared'}"
        found.append((verdict, all_of(is_better(verdict.speed), is_as_good(verdict)), verdict.speed, words))
    label = f"Fastest at equal quality{f', {subject}' if subject else ''}"
    return _leading(label, found, "faster without being worse", "as fast or faster")


def best_in_quality(verdicts: Sequence[Verdict]) -> Iterator[Statement]:
    """Yield the sentence on what is best in the headline score that is compared with one baseline, if there is one."""
    found = []
    for verdict in verdicts:
        first = verdict.quality[:1]
        known = (is_better(first[0]), first[0]) if first else (None, UNKNOWN)
        found.append((verdict, *known, quality_words(first, verdict.task)))
    if score := next((verdict.quality[0] for verdict in verdicts if verdict.quality), None):
        yield _leading(f"Best in {name_of(score)}", found, "better", "as good or better")


def _gains(comparison: MeasureComparison) -> tuple[float, float, float]:
    """Return the lower end of the interval, the change, and the upper end, all such that more is better."""
    low = -math.inf if comparison.low is None else comparison.low
    change = -math.inf if comparison.change is None else comparison.change
    high = math.inf if comparison.high is None else comparison.high
    is_less_better = not comparison.is_ratio and is_lower_better(comparison.measure)
    return (-high, -change, -low) if is_less_better else (low, change, high)


Candidate = tuple[Verdict, bool | None, MeasureComparison, str]
"""A verdict, whether it is better than its baseline, the measure in which it leads, and the comparison in words."""


def _leading(label: str, found: Sequence[Candidate], better: str, not_behind: str) -> Statement:
    """Return which configuration leads.

    `better` is what a configuration is that leads the baseline, and `not_behind` what one is that is not shown to be
    behind the leading one.
    """
    base = found[0][0].baseline
    open_ones = [candidate for candidate in found if candidate[1] is None]
    if leads := [candidate for candidate in found if candidate[1]]:
        best, _, speed, words = max(leads, key=lambda candidate: _gains(candidate[2])[1])
        least = _gains(speed)[0]
        peers = [it.label for it, _, own, _ in (*leads, *open_ones) if it is not best and _gains(own)[2] >= least]
        others = f" Cannot tell whether {listing(peers, 3)} may be {not_behind}." if peers else ""
        is_good, text = None if peers else True, f"{best.label} against {base}: {words}.{others}"
    else:
        nearest, _, _, words = max(open_ones or found, key=lambda candidate: _gains(candidate[2])[1])
        which = "" if len(found) == 1 else f" for {len(open_ones)} of {len(found)}"
        told = f"cannot tell{which} against {base}" if open_ones else f"{base}. Nothing else is {better}"
        is_good, text = None if open_ones else True, f"{told}. Closest: {nearest.label}, {words}."
    return Statement(label, text, is_good, "verdicts")
