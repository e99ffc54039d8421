"""Targets of scores on a command line, such as f1>=0.88."""

import re
from dataclasses import dataclass

from paratune.base.text import plain
from paratune.config.metric_names import METRICS, direction
from paratune.errors import ConfigError

_PATTERN = re.compile(r"\s*([A-Za-z0-9_]+)\s*(>=|<=)\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,2})?)\s*")


@dataclass(frozen=True)
class ScoreTarget:
    """A score to reach."""

    metric: str
    value: float

    @property
    def is_higher_better(self) -> bool:
        """Whether larger values are better."""
        return direction(self.metric) == "max"

    @property
    def text(self) -> str:
        return f"{self.metric} {'≥' if self.is_higher_better else '≤'} {self.value:g}"

    def is_met(self, score: float) -> bool:
        """Return whether a score is at least as good."""
        return score >= self.value if self.is_higher_better else score <= self.value


def parse_target(text: str, option: str = "--target") -> ScoreTarget:
    """Return the target in the value of an option, such as "f1>=0.88" or "loss<=0.3".

    Raises:
        ConfigError: It is not a target, the metric does not exist, or the direction is wrong for the metric.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        message = f"{option} {plain(text)!r} is not a target; write METRIC>=VALUE or METRIC<=VALUE, as f1>=0.88"
        raise ConfigError(message, code="target.syntax", option=option)
    metric, sign, value = str(match[1]), match[2], float(match[3])
    try:
        wanted = ">=" if direction(metric) == "max" else "<="
    except KeyError:
        known = ", ".join(sorted({name for names in METRICS.values() for name in names}))
        message = f"{option} {plain(text)}: {metric} is not a metric; allowed: {known}"
        raise ConfigError(message, code="metric.unknown", option=option, metric=metric) from None
    if sign != wanted:
        better = "larger" if wanted == ">=" else "smaller"
        message = f"{option} {plain(text)}: {metric} is better when it is {better}; write {metric}{wanted}{value:g}"
        raise ConfigError(message, code="metric.unknown", option=option, metric=metric, value=value)
    return ScoreTarget(metric, value)
