"""Scores to be reached, as command lines name them: f1>=0.88."""

import re
from dataclasses import dataclass

from paratune.base.text import plain
from paratune.config.metric_names import METRICS, direction
from paratune.errors import ConfigError

_WRITTEN = re.compile(r"\s*([A-Za-z0-9_]+)\s*(>=|<=)\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,2})?)\s*")


@dataclass(frozen=True)
class ScoreTarget:
    """A score to be reached."""

    metric: str
    value: float

    @property
    def rises(self) -> bool:
        """Whether larger values are better."""
        return direction(self.metric) == "max"

    @property
    def text(self) -> str:
        return f"{self.metric} {'≥' if self.rises else '≤'} {self.value:g}"

    def is_met(self, score: float) -> bool:
        """Say whether a score is at least as good."""
        return score >= self.value if self.rises else score <= self.value


def parse_target(text: str, option: str = "--target") -> ScoreTarget:
    """Return what an option says, such as "f1>=0.88" or "loss<=0.3".

    Raises:
        ConfigError: It says something else, or names a metric that does not exist or is better the other way.
    """
    found = _WRITTEN.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"{option} {plain(text)!r} is not a target; write METRIC>=VALUE or METRIC<=VALUE, as f1>=0.88",
            code="target.syntax",
            option=option,
        )
    metric, sign, value = str(found[1]), found[2], float(found[3])
    try:
        wanted = ">=" if direction(metric) == "max" else "<="
    except KeyError:
        known = ", ".join(sorted({name for names in METRICS.values() for name in names}))
        raise ConfigError(
            f"{option} {plain(text)}: {metric} is not a metric; allowed: {known}",
            code="metric.unknown",
            option=option,
            metric=metric,
        ) from None
    if sign != wanted:
        better = "larger" if wanted == ">=" else "smaller"
        raise ConfigError(
            f"{option} {plain(text)}: {metric} is better when it is {better}; write {metric}{wanted}{value:g}",
            code="metric.unknown",
            option=option,
            metric=metric,
            value=value,
        )
    return ScoreTarget(metric, value)
