"""Verdicts as text."""

from collections.abc import Iterable, Iterator

from paratune.base.units import NOT_AVAILABLE, format_as, format_number
from paratune.config.metric_names import LOWER_IS_BETTER, metric_label
from paratune.verdicts.finding import MOST_RUNS, MeasureComparison
from paratune.verdicts.groups import SPEED
from paratune.verdicts.order import WARN_BELOW
from paratune.verdicts.speeds import GOODPUT

NOT_IN_POINTS = LOWER_IS_BETTER - {"hamming_loss"} | {"matthews", "r2", "pearson", "spearman", "qwk"}
"""Scores that are not shares; all others are shown in points of a hundred."""
LEAST_LOAD_DIFFERENCE = 0.05  # share of all cores: a difference of the load by other programs that is worth a note
_MINUS, _DASH = "\u2212", "\u2013"
_RATIO_WORDS = {SPEED: ("faster", "slower", "as fast"), GOODPUT: ("more goodput", "less goodput", "the goodput")}


def quality_words(scores: tuple[MeasureComparison, ...], task: str) -> str:
    """Return the verdict on scores, such as "quality equal within 0.5 points test F1"."""
    if not scores:
        return f"quality {NOT_AVAILABLE} (no score that all of these runs have)"
    margins = {amount_words(score, score.margin or 0, task) for score in scores}
    if all(score.outcome == "equal" for score in scores) and len(margins) == 1:
        rows = " on these rows" if any(score.scope == "seeds" for score in scores) else ""
        return f"quality equal within {margins.pop()} {' and '.join(map(name_of, scores))}{rows}"
    return "; ".join(comparison_words(score, task) for score in scores)


def comparison_words(comparison: MeasureComparison, task: str = "") -> str:
    """Return the verdict on one measure: "27% faster (24–30%)", "test F1 equal within 0.5 points"."""
    name, is_ratio, change = name_of(comparison), comparison.is_ratio, comparison.change
    low, high = comparison.low, comparison.high
    short = (comparison.reason or "").partition(":")[0]  # without the explanation after its colon
    # A verdict over seeds only holds for the rows on which these runs were scored.
    rows = " on these rows" if comparison.scope == "seeds" else ""
    if change is None:
        return f"{name} {NOT_AVAILABLE} ({short})"
    if comparison.outcome == "equal" and is_ratio:
        return f"same {name} within {100 * (comparison.margin or 0):g}%"
    if comparison.outcome == "equal":
        return f"{name} equal within {amount_words(comparison, comparison.margin or 0, task)}{rows}"
    if comparison.outcome == "different" and low is not None and high is not None:
        if is_ratio:
            more, less, times = _RATIO_WORDS[comparison.measure]
            many = f"{1 + change:.2f}× {times}"
            words = many if change >= 1 else f"{_number(comparison, abs(change))} {more if change >= 0 else less}"
        else:
            better = "better" if comparison.is_better else "worse"
            words = f"{name} {amount_words(comparison, abs(change), task)} {better}{rows}"
        if low == high:
            return f"{words} (no variation)"
        if is_ratio and change >= 1:
            return f"{words} ({1 + low:.2f}{_DASH}{1 + high:.2f}×)"
        least, most = (_number(comparison, end, task).lstrip(_MINUS) for end in sorted((low, high), key=abs))
        return f"{words} ({least.removesuffix('%')}{_DASH}{most})"
    if comparison.outcome == "cannot tell":
        at = {
            "many_comparisons": " with so many comparisons",
            "repeated_looks": " at the first look" if comparison.look == 1 else f" at look {comparison.look}",
        }.get(comparison.code or "", "")
        signed = f"{change_words(comparison, task)} {signed_interval_words(comparison, task)}"
        return f"{name}: cannot tell{at} ({signed}): {_needs(comparison, short)}"
    # A change of these runs alone: without an interval, "faster" would be a statement on the configurations.
    where = " in these runs" if is_ratio else ""
    return f"{name} {change_words(comparison, task)}{where}, interval {NOT_AVAILABLE} ({short})"


def _needs(comparison: MeasureComparison, short: str) -> str:
    """Return what is needed for a decision, such as "3–12 more seeds needed to tell a change of this size"."""
    if comparison.code == "order_confounded":
        return (
            "order and configuration are confounded: all runs of one came before all of the other, and a drift of the "
            "machine could explain the change; run them in turn"
        )
    if comparison.code == "negative_control" and comparison.control is not None:
        most = f"{100 * comparison.control.most:.1f}%"
        return f"configurations that cannot differ in speed differ by up to {most}, and more runs do not change that"
    noun = "seed" if comparison.scope and "seeds" in comparison.scope else "run"
    # The runs of a side that a plan counts: in main effects those of one combination.
    sides = comparison.estimate.sides if comparison.estimate is not None else ()
    there = min(side.num_runs for side in sides) if sides else min(comparison.num_runs)
    needed: list[str] = []
    for runs, aim in ((comparison.runs_to_tell, "to tell a change of this size"),
                      (comparison.runs_to_equal, "to show equality")):  # fmt: skip
        if runs is None:
            continue
        low, high = runs.low - there, runs.high and runs.high - there
        count = f"at least {low}" if runs.middle is None else str(low)
        if runs.middle is not None and high != low:
            within = f"at least {low}" if high is None else f"{low}{_DASH}{high}"
            count = f"about {runs.middle - there} ({within})"
        needed.append(f"{count} {aim}" if needed else f"{count} more {noun}{'' if count == '1' else 's'} needed {aim}")
    if needed:
        # The variance of two runs is hardly known.
        is_guess = there == 2 and comparison.estimate is not None and comparison.estimate.degrees_of_freedom < 3
        return ", ".join(needed) + (f" (a guess from {there} {noun}s)" if is_guess else "")
    if comparison.num_samples_needed is not None and comparison.estimate is not None:
        return (
            f"more seeds do not help, {comparison.estimate.num_rows:,} rows are too few: at least "
            f"{comparison.num_samples_needed:,} needed, or a wider margin"
        )
    if comparison.scope == "samples":
        return f"{short}, and other seeds may differ more"
    return f"more than {MOST_RUNS} {noun}s needed, or a wider margin"


def values_words(comparison: MeasureComparison, label: str, base: str) -> str:
    """Return both values, where they have no interval: "a 400, b 640 samples/s (one run each)"; empty if one is n/a."""
    unit = {SPEED: " samples/s", GOODPUT: " samples/s of goodput"}.get(comparison.measure, "")
    values = (comparison.baseline, comparison.value)
    first, second = (format_number(value, 3) if unit else format_as(value, ".4f") for value in values)
    text = f"{base} {first}, {label} {second}{unit} ({(comparison.reason or '').partition(':')[0]})"
    return "" if comparison.change is None else text


def name_of(comparison: MeasureComparison) -> str:
    """Return the name of what is compared; that of a score with its split."""
    return " ".join(filter(None, (comparison.split, metric_label(comparison.measure))))


def comparison_notes(speed: MeasureComparison, quality: Iterable[MeasureComparison]) -> Iterator[str]:
    """Yield notes on clusters of rows, then on the order of the runs and on other programs, with their effects."""
    estimates = [score.estimate for score in quality if score.estimate is not None]
    for num_clusters, num_rows in sorted({(one.num_clusters, one.num_rows) for one in estimates if one.num_clusters}):
        yield f"intervals of scores are over the {num_clusters:,} clusters of the {num_rows:,} rows"
    effect = speed.order
    if effect is None:
        return
    changes = (effect.total, effect.total_low, effect.total_high, effect.bias)
    total, low, high, bias = (_signed(f"{100 * change:.1f}%".replace("-", _MINUS)) for change in changes)
    if effect.p_value < WARN_BELOW and effect.total:
        noun = "session" if "session" in effect.covariates else "run"
        yield f"the speed of all changed by up to {total} ({low} to {high}) since the first {noun}"
    if effect.is_adjusted:
        yield f"the change of speed is adjusted for the order of the runs, which explains {bias} of it"
    if effect.is_confounded:
        yield (
            "all runs of one configuration ended before the first run of the other began, so a sudden change of the "
            "machine between them cannot be distinguished from a change of the configuration"
        )
    if effect.load_difference is not None and abs(effect.load_difference) >= LEAST_LOAD_DIFFERENCE:
        more, share = "more" if effect.load_difference > 0 else "fewer", f"{100 * abs(effect.load_difference):.0f}%"
        yield f"other programs kept {share} {more} of all cores busy than during the baseline's runs"


def change_words(comparison: MeasureComparison, task: str = "") -> str:
    """Return the change with its sign, such as "+27%" and "−0.4 points"."""
    assert comparison.change is not None
    return _signed((_number if comparison.is_ratio else amount_words)(comparison, comparison.change, task))


def signed_interval_words(comparison: MeasureComparison, task: str = "") -> str:
    """Return the ends of the interval as in a table: "[−24.9, −21.1]"."""
    low, high = comparison.low, comparison.high
    if low is None or high is None:
        return NOT_AVAILABLE
    return f"[{', '.join(_signed(_number(comparison, end, task)).removesuffix('%') for end in (low, high))}]"


def amount_words(comparison: MeasureComparison, value: float, task: str) -> str:
    """Return an amount of a score with its unit, such as "0.5 points"."""
    text = _number(comparison, value, task)
    return text if comparison.measure in NOT_IN_POINTS else f"{text} point{'' if text == '1' else 's'}"


def _number(comparison: MeasureComparison, value: float, task: str = "") -> str:
    """Return a share in per cent, or an amount of a score, with digits that fit the width of its interval: half of it
    has one or two digits."""
    is_ratio, in_points = comparison.is_ratio, comparison.measure not in NOT_IN_POINTS
    factor = 100 if is_ratio or (in_points and task != "qa") else 1
    half = 0.0 if comparison.high is None or comparison.low is None else factor * (comparison.high - comparison.low) / 2
    places = next((places for places, least in enumerate((2, 0.2, 0.02, 0.002)) if half >= least), 4)
    if not half:
        places = 1 if is_ratio else 2 if in_points else 4
    text = f"{factor * value:.{places if is_ratio else max(1, places)}f}"
    if not is_ratio and value == comparison.margin:
        text = f"{factor * value:.4g}"
    return text.replace("-", _MINUS) + ("%" if is_ratio else "")


def _signed(text: str) -> str:
    """Return a number with its sign; without a sign if it rounds to 0."""
    digits = text.lstrip(_MINUS)
    if not any(digit in "123456789" for digit in digits):
        return digits
    return text if text.startswith(_MINUS) else f"+{text}"
