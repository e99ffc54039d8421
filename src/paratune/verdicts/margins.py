"""Margins: the largest change of each measure that counts as equal.

A margin is a judgement, not statistics: the largest change that does not matter to the reader.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from paratune.config.metric_names import METRICS
from paratune.errors import ConfigError, did_you_mean

SPEED = "speed"
"""Samples/s, or goodput where batches differ."""


@dataclass(frozen=True)
class Margin:
    """The largest change that counts as equal."""

    amount: float
    """In the unit of the metric, or a share of the baseline's figure; above 0."""
    is_share: bool = False

    def of(self, baseline: float) -> float:
        """Return the margin of a measure whose baseline has this figure."""
        return self.amount * abs(baseline) if self.is_share else self.amount

    def __str__(self) -> str:
        return f"{100 * self.amount:g}%" if self.is_share else f"{self.amount:g}"


_OF_THE_BASELINE = {SPEED: 0.02, "loss": 0.01, "perplexity": 0.01, "rmse": 0.01, "mse": 0.02, "mae": 0.01}
"""Shares of the baseline's figure, for measures without a fixed scale."""
_POINTS = 0.005
"""For scores from 0 to 1: half a point of a hundred."""


def default_margin(measure: str, task: str) -> Margin:
    """Return the margin of `SPEED` or of a metric for which no margin is given; scores of qa are per cent."""
    if task == "ordinal" and measure == "mae":
        return Margin(_POINTS)
    if measure in _OF_THE_BASELINE:
        return Margin(_OF_THE_BASELINE[measure], is_share=True)
    return Margin(100 * _POINTS if task == "qa" else _POINTS)


def read_margins(words: Iterable[str]) -> Mapping[str, Margin]:
    """Return margins by measure from words such as "f1=0.01", "rmse=2%" and "speed=3%"; `ConfigError` with all words
    that are none."""
    known = [SPEED, *dict.fromkeys(metric for metrics in METRICS.values() for metric in metrics)]
    margins, problems = {}, []
    for word in (part.strip() for words_of_option in words for part in words_of_option.split(",")):
        measure, equals, text = (part.strip() for part in word.partition("="))
        number, percent, rest = text.partition("%")
        try:
            amount = float(number) / (100 if percent else 1)
        except ValueError:
            amount = math.nan
        if not equals:
            problems.append(f"{word!r} is not MEASURE=MARGIN, such as f1=0.01 or speed=3%")
        elif measure not in known:
            problems.append(
                f"{measure!r} is not a measure{did_you_mean(measure, known) or f'; {SPEED} or a metric is'}"
            )
        elif rest or not 0 < amount < math.inf:
            problems.append(f"{measure}={text!r}: a number above 0 is needed, or per cent of the baseline's (3%)")
        elif measure == SPEED and not percent:
            problems.append(f"{word}: the margin of speed is per cent, such as speed=3%")
        else:
            margins[measure] = Margin(amount, is_share=bool(percent))
    if problems:
        lines = [f"--margin: {len(problems)} cannot be read", *(f"  {line}" for line in problems)]
        raise ConfigError("\n".join(lines), code="compare.margin", option="--margin")
    return margins
