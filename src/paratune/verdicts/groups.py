"""What is compared: groups of runs that are equal except for seed and repeat, how they differ, and margins.

A margin is a judgement, not statistics: the largest change that does not matter to the reader.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paratune.base.grouping import grouped
from paratune.config.metric_names import METRICS
from paratune.errors import ConfigError, did_you_mean
from paratune.records.efficiency import NoiseKind
from paratune.records.finished import RunRecord
from paratune.verdicts.placebo import step_class

SPEED = "speed"
"""Samples/s, or goodput where batches differ."""


@dataclass(frozen=True)
class Group:
    """Runs that are equal except for seed and repeat."""

    label: str
    runs: tuple[RunRecord, ...]
    noise_kind: NoiseKind = "plain"
    """The noise scale that goodput uses, the same in all groups."""

    @property
    def by_seed(self) -> dict[Any, list[RunRecord]]:
        """The runs of each seed: repeats of a seed do not count as other seeds."""
        return grouped((run.run.seed, run) for run in self.runs)

    @cached_property
    def step_class(self) -> str | None:
        """A text that is equal for groups that cannot differ in the time of a step; None where that is unknown."""
        classes = {step_class(run) for run in self.runs}
        return classes.pop() if len(classes) == 1 else None

    def cannot_differ(self, other: "Group") -> bool:
        """Return whether the steps of both do the same, so that their speed and memory cannot differ."""
        is_other = self.label != other.label  # speed-ups compare a group with itself, too
        return is_other and self.step_class is not None and self.step_class == other.step_class


@dataclass(frozen=True)
class Differs:
    """Differences between two groups of runs, in what makes them the same experiment."""

    refused: tuple[str, ...] = ()
    """Differences, in words, that are not allowed: there is no verdict."""
    allowed: tuple[str, ...] = ()
    """Differences that are allowed because they are what is compared; the text names them."""
    unknown: tuple[str, ...] = ()
    """Settings that a run does not record."""
    batch: bool = False
    """Whether the global batch size differs: then goodput is compared, not samples/s."""
    elsewhere: bool = False
    """Whether they ran on different machines, which is allowed and mentioned."""
    samples: float | None = None
    """The samples on which the group trains over those of the baseline; None where they are as many."""
    placebo: bool = False
    """Whether only options differ that cannot change the time or the memory of a step."""


def matched(first: Sequence[Any], second: Sequence[Any]) -> tuple[list[int], list[int]] | None:
    """Return the places of runs with equal keys, in order; None unless every run of the smaller side has a partner."""
    shared = [key for key in first if key in second]
    if len(shared) < min(len(first), len(second)) or len(shared) < 2:
        return None
    return [first.index(key) for key in shared], [second.index(key) for key in shared]


def why_one(first: int, second: int, noun: str) -> str | None:
    """Return why there is no interval over runs or seeds when a side has only one; None when both have more."""
    if min(first, second) > 1:
        return None
    who = f"one {noun} each" if first == second else f"one {noun} on one side"
    return f"{who}: how far another {noun} would be from it is not known"


@dataclass(frozen=True)
class Margin:
    """The largest change that counts as equal."""

    amount: float
    """In the unit of the metric, or a share of the baseline's figure; above 0."""
    is_share: bool = False

    def of(self, baseline: float) -> float:
        """Return the margin of a measure whose baseline has this figure."""
        return self.amount * abs(baseline) if self.is_share else self.amount


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
        measure, _, text = (part.strip() for part in word.partition("="))
        number, percent, rest = text.partition("%")
        try:
            amount = float(number) / (100 if percent else 1)
        except ValueError:
            amount = math.nan
        if measure not in known:
            near = did_you_mean(measure, known) or f"; {SPEED} or a metric is"
            problems.append(f"{measure!r} is not a measure{near}")
        elif rest or not 0 < amount < math.inf or (measure == SPEED and not percent):
            allowed = "per cent above 0 (speed=3%)" if measure == SPEED else "a number above 0, or per cent (f1=0.01)"
            problems.append(f"{word!r}: the margin of {measure} is {allowed}")
        else:
            margins[measure] = Margin(amount, is_share=bool(percent))
    if problems:
        lines = [f"--margin: {len(problems)} cannot be read", *(f"  {line}" for line in problems)]
        raise ConfigError("\n".join(lines), code="compare.margin", option="--margin")
    return margins
