"""Verdicts in words that a person reads."""

from typing import TYPE_CHECKING

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE
from paratune.config.metric_names import LABELS, LOWER_IS_BETTER
from paratune.verdicts.finding import MeasureComparison
from paratune.verdicts.margins import SPEED
from paratune.verdicts.planning import MOST_RUNS, RunRange
from paratune.verdicts.rates import GOODPUT

if TYPE_CHECKING:
    from paratune.verdicts.judge import Verdict

_NOT_IN_POINTS = LOWER_IS_BETTER - {"hamming_loss"} | {"matthews", "r2", "pearson", "spearman", "qwk"}
"""Scores that are no share of anything; all others are shown as points of a hundred."""
_MINUS, _DASH = "\u2212", "\u2013"


def sentence_of(verdict: "Verdict") -> str:
    """Return a verdict in one sentence."""
    return f"{head_of(verdict)}: {'; '.join(text for text, _ in parts_of(verdict))}."


def head_of(verdict: "Verdict") -> str:
    """Return which configurations a verdict is of."""
    return f"{plain(verdict.label)} against {plain(verdict.baseline)}"


def parts_of(verdict: "Verdict") -> list[tuple[str, bool | None]]:
    """Return the parts of a verdict: speed, quality, and what differs; each with whether it is good news.

    True is a part that is told and no worse than the baseline, False one that is worse, None one that is not told.
    """
    differs = verdict.differs
    if differs.refused:
        return [(f"no verdict: not the same experiment; they differ in {'; '.join(differs.refused)}", None)]
    parts = [(speed_words(verdict.speed), _is_good(verdict.speed))]
    if verdict.quality and all(one.outcome == "equal" for one in verdict.quality):
        parts = [(f"{parts[0][0]}, {quality_words(verdict.quality, verdict.task)}", parts[0][1])]
    elif not verdict.quality:
        parts.append((quality_words((), verdict.task), None))
    else:
        parts += [(quality_words((one,), verdict.task), _is_good(one)) for one in verdict.quality]
    if differs.allowed:
        parts.append((f"they differ in {'; '.join(differs.allowed)}, which is what is compared", None))
    if differs.elsewhere:
        parts.append(("they ran on different machines, which changes times and memory too", None))
    if differs.unknown:
        parts.append((f"whether they trained the same thing is not recorded ({'; '.join(differs.unknown)})", None))
    return parts


def _is_good(found: MeasureComparison) -> bool | None:
    return {"equal": True, "different": found.is_better}.get(found.outcome)


def speed_words(found: MeasureComparison) -> str:
    """Return what is found of the speed, such as "27% faster (24–30%)"."""
    if found.change is None:
        return f"{found.measure} {NOT_AVAILABLE} ({_short(found)})"
    if found.outcome == "different":
        return f"{_ratio_words(found)} ({interval_words(found)})"
    if found.outcome == "equal":
        return f"same {found.measure} within {100 * (found.margin or 0):g}%"
    if found.outcome == "cannot tell":
        change = f"{change_words(found)} {signed_interval_words(found)}"
        return f"{found.measure}: {_cannot_tell(found)} ({change}): {needs_words(found)}"
    return f"{_ratio_words(found)}, interval {NOT_AVAILABLE} ({_short(found)})"


def quality_words(findings: tuple[MeasureComparison, ...], task: str) -> str:
    """Return what is found of the scores, such as "quality equal within 0.5 points F1"."""
    if not findings:
        return f"quality {NOT_AVAILABLE} (no score that all of these runs have)"
    same = {amount_words(one, one.margin or 0, task) for one in findings}
    if all(one.outcome == "equal" for one in findings) and len(same) == 1:
        return f"quality equal within {same.pop()} {' and '.join(label_of(one.measure) for one in findings)}"
    return "; ".join(_one_score(one, task) for one in findings)


def _one_score(found: MeasureComparison, task: str) -> str:
    name = label_of(found.measure)
    if found.outcome == "equal":
        return f"{name} equal within {amount_words(found, found.margin or 0, task)}"
    if found.change is None:
        return f"{name} {NOT_AVAILABLE} ({_short(found)})"
    if found.outcome == "different":
        side = "better" if found.is_better else "worse"
        return f"{name} {amount_words(found, abs(found.change), task)} {side} ({interval_words(found, task)})"
    change = change_words(found, task)
    if found.outcome == "cannot tell":
        return f"{name}: {_cannot_tell(found)} ({change} {signed_interval_words(found, task)}): {needs_words(found)}"
    return f"{name} {change}, interval {NOT_AVAILABLE} ({_short(found)})"


def _short(found: MeasureComparison) -> str:
    """Return a reason without its explanation, which stands after a colon."""
    return (found.reason or "").partition(":")[0]


def _cannot_tell(found: MeasureComparison) -> str:
    """Return "cannot tell", and of an interval that by itself leaves out 0, why."""
    by_itself = found.low is not None and found.high is not None and (found.low > 0 or found.high < 0)
    return "cannot tell with so many comparisons" if by_itself and found.scope != "samples" else "cannot tell"


def needs_words(found: MeasureComparison) -> str:
    """Return what it would take to tell, such as "3–12 more seeds needed to tell a change of this size"."""
    what = "seed" if found.scope and "seeds" in found.scope else "run"
    there = min(found.num_runs)
    aims = ((found.runs_to_tell, "to tell a change of this size"), (found.runs_to_equal, "to show equality"))
    needed = [(range_words(runs, there), aim) for runs, aim in aims if runs is not None]
    if needed:
        (count, aim), *others = needed
        first = f"{count} more {what}{'' if count == '1' else 's'} needed {aim}"
        guess = f" (a guess from {there} {what}s)" if found.is_guess else ""
        return ", ".join([first, *(f"{count} {aim}" for count, aim in others)]) + guess
    if found.num_samples_needed is not None:
        return (
            f"more seeds do not help, {found.num_samples:,} rows are too few: at least {found.num_samples_needed:,} "
            "needed, or a wider margin"
        )
    if found.scope == "samples":
        return f"{_short(found)}, and other seeds may differ more"
    return f"more than {MOST_RUNS} {what}s needed, or a wider margin"


def range_words(runs: RunRange, num_there: int) -> str:
    """Return the runs that are needed beyond those at hand: "4", "3–12", "at least 40"."""
    low = runs.low - num_there
    if runs.high is None:
        return f"at least {low}"
    return f"{low}" if runs.high == runs.low else f"{low}{_DASH}{runs.high - num_there}"


def change_words(found: MeasureComparison, task: str = "") -> str:
    """Return the change with its sign, such as "+27%" and "−0.4 points"."""
    assert found.change is not None
    return _percent(found, found.change) if found.is_ratio else _signed(amount_words(found, found.change, task))


def interval_words(found: MeasureComparison, task: str = "") -> str:
    """Return the ends of an interval on one side of 0: "24–30%"; n/a where there is none, "always" without width."""
    if found.low is None or found.high is None:
        return NOT_AVAILABLE
    if found.low == found.high:
        return "always"
    if found.is_ratio and (found.change or 0) >= 1:
        return f"{1 + found.low:.2f}{_DASH}{1 + found.high:.2f}×"
    low, high = (
        _percent(found, end) if found.is_ratio else _plain_amount(found, end, task) for end in (found.low, found.high)
    )
    least, most = (low, high) if found.low >= 0 else (high, low)
    least, most = least.lstrip(f"+{_MINUS}"), most.lstrip(f"+{_MINUS}")
    return f"{least.removesuffix('%')}{_DASH}{most}"


def signed_interval_words(found: MeasureComparison, task: str = "") -> str:
    """Return the ends of the interval as in a table: "[−24.9, −21.1]"."""
    if found.low is None or found.high is None:
        return NOT_AVAILABLE
    if found.low == found.high:
        return "always"
    ends = (found.low, found.high)
    texts = [_percent(found, end) if found.is_ratio else _signed(_plain_amount(found, end, task)) for end in ends]
    return f"[{texts[0].removesuffix('%')}, {texts[1].removesuffix('%')}]"


def amount_words(found: MeasureComparison, value: float, task: str) -> str:
    """Return an amount of a score with its unit, such as "0.5 points"."""
    text = _plain_amount(found, value, task)
    return f"{text} point{'' if text == '1' else 's'}" if is_in_points(found.measure) else text


def is_in_points(metric: str) -> bool:
    """Return whether a metric is shown as points of a hundred."""
    return metric not in _NOT_IN_POINTS


def label_of(metric: str) -> str:
    """Return how a metric or a measure is called."""
    return LABELS.get(metric, metric)


def count_words(count: int, what: str) -> str:
    """Return "1 seed", "3 seeds"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _plain_amount(found: MeasureComparison, value: float, task: str) -> str:
    """Return an amount with as many digits as the width of its interval bears."""
    in_points = is_in_points(found.measure)
    factor = 100 if in_points and task != "qa" else 1
    half = 0.0 if found.high is None or found.low is None else factor * (found.high - found.low) / 2
    places = max(1, _places(half)) if half else (2 if in_points else 4)
    text = f"{factor * value:.{places}f}"
    if "." in text and value == found.margin:
        text = f"{factor * value:.4g}"
    return text.replace("-", _MINUS)


def _percent(found: MeasureComparison, value: float) -> str:
    half = 0.0 if found.high is None or found.low is None else 100 * (found.high - found.low) / 2
    return _signed(f"{100 * value:.{_places(half) if half else 1}f}%".replace("-", _MINUS))


def _signed(text: str) -> str:
    """Return a number with its sign; none of what rounds to 0."""
    digits = text.lstrip(f"{_MINUS}+")
    if not any(digit in "123456789" for digit in digits):
        return digits
    return text if text.startswith((_MINUS, "+")) else f"+{text}"


def _places(half_width: float) -> int:
    """Return decimals such that the half width of an interval has one or two digits."""
    return next((places for places, least in enumerate((2, 0.2, 0.02, 0.002)) if half_width >= least), 4)


def _ratio_words(found: MeasureComparison) -> str:
    """Return "27% faster", "2.41× as fast", "12% slower"; of goodput "27% more goodput"."""
    assert found.change is not None
    more, less, times = {
        SPEED: ("faster", "slower", "as fast"),
        GOODPUT: ("more goodput", "less goodput", "the goodput"),
    }[found.measure]
    if found.change >= 1:
        return f"{1 + found.change:.2f}× {times}"
    return f"{_percent(found, abs(found.change)).lstrip('+')} {more if found.change >= 0 else less}"
