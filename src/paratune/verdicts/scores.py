"""The difference of a score between two configurations, over seeds and samples as far as they are recorded."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np

from paratune.base.text import plain
from paratune.config.metric_names import direction, score_range
from paratune.records.finished import RunRecord
from paratune.verdicts.estimate import Estimate
from paratune.verdicts.finding import MeasureComparison, UncorrectedComparison, with_interval
from paratune.verdicts.groups import Group, matched, why_one
from paratune.verdicts.jackknife import JackknifeScore
from paratune.verdicts.margins import Margin
from paratune.verdicts.quality import over_samples, over_seeds, over_seeds_and_samples, with_family_variance
from paratune.verdicts.rows import CannotTell, PredictionRows, read_rows
from paratune.verdicts.scoring import score_again

Seeds = Sequence[Sequence[RunRecord]]
_NOT_BY_CHANCE = 3
"""Seeds without any change that show equality: on 50 rows two have no change by chance 7% of the time, three 2%."""


def differences(
    base: Group, others: Sequence[Group], split: str, metric: str, margin: Margin
) -> list[UncorrectedComparison]:
    """Return the difference of a score of each configuration from the baseline's.

    Over seeds and samples where both sides have two seeds or more and their predictions exist; over seeds, on
    these samples, where predictions are not; over samples, of these models, where a side has one seed. The variance
    from seed to seed is that of all configurations with several seeds together.
    """
    predictions = _Predictions(split, metric)
    drafts = [_difference(base, other, predictions, margin) for other in others]
    pooled = [place for place, draft in enumerate(drafts) if draft.estimate is not None and draft.estimate.sides]
    of_base, *of_others = (_means(group, split, metric) for group in (base, *(others[place] for place in pooled)))
    estimates = [estimate for place in pooled if (estimate := drafts[place].estimate) is not None]
    for place, estimate in zip(pooled, with_family_variance(of_base, of_others, estimates), strict=True):
        drafts[place] = replace(drafts[place], estimate=estimate)
    return [
        draft if draft.estimate is None else replace(draft, finding=with_interval(draft.finding, draft.estimate))
        for draft in drafts
    ]


def difference(base: Group, other: Group, split: str, metric: str, margin: Margin) -> UncorrectedComparison:
    """Return the difference of one configuration, as `differences` does."""
    return differences(base, [other], split, metric, margin)[0]


def _means(group: Group, split: str, metric: str) -> dict[Any, float]:
    """Return the score of each seed, the mean of its repeats."""
    return {seed: fmean([_recorded(run, split, metric) for run in runs]) for seed, runs in group.by_seed.items()}


def _difference(base: Group, other: Group, predictions: "_Predictions", margin: Margin) -> UncorrectedComparison:
    split, metric = predictions.split, predictions.metric
    sides: tuple[Seeds, Seeds] = [*base.by_seed.values()], [*other.by_seed.values()]
    scores = [[*_means(group, split, metric).values()] for group in (base, other)]
    pairs = matched([*base.by_seed], [*other.by_seed])
    if pairs is not None:  # runs without a partner are not part of the change, nor of the figures next to it
        sides = ([sides[0][place] for place in pairs[0]], [sides[1][place] for place in pairs[1]])
        scores = [[side[place] for place in places] for side, places in zip(scores, pairs, strict=True)]
    first, second = fmean(scores[0]), fmean(scores[1])
    counts = len(scores[0]), len(scores[1])
    limit = margin.of(first)
    finding = MeasureComparison(metric, False, first, second, counts, change=second - first, margin=limit or None)
    finding = replace(finding, split=split)
    if not limit:
        return UncorrectedComparison(
            replace(finding, code="zero_baseline", reason="the margin is a share of the baseline's score, which is 0")
        )
    estimate, reason = _estimate(sides, scores, predictions, is_paired=pairs is not None)
    if estimate is not None:
        least, most = score_range(metric, str(base.runs[0].run.task.kind))
        estimate = replace(estimate, reach=most - least)
    else:
        finding = replace(finding, code="one_run" if min(counts) < 2 else "same_change")
    return UncorrectedComparison(
        replace(finding, reason=reason), estimate, sign=1 if direction(metric) == "max" else -1
    )


def _estimate(
    sides: tuple[Seeds, Seeds], scores: Sequence[Sequence[float]], predictions: "_Predictions", *, is_paired: bool
) -> tuple[Estimate | None, str | None]:
    """Return the estimate, None where there is none, and the reason when it is not over seeds and samples."""
    too_few = why_one(len(sides[0]), len(sides[1]), "seed")
    try:
        first, second = predictions.of_sides(sides)
    except CannotTell as error:
        if too_few is not None:
            return None, f"{too_few}; and none over samples: {error}"
        estimate = over_seeds(scores[0], scores[1], is_paired=is_paired)
        if not estimate.variance and (estimate.value or min(map(len, scores)) < _NOT_BY_CHANCE):
            return None, f"the same change in all seeds: how far another seed would be from it is not known; {error}"
        return estimate, f"over seeds on these samples, not over other samples: {error}"
    if too_few is not None:
        estimate, reason = over_samples(first, second), f"{too_few}; the interval is over samples, of these models"
    else:
        estimate, reason = over_seeds_and_samples(first, second, is_paired=is_paired), None
    # Pseudovalues may be of blocks or clusters of rows.
    return replace(estimate, num_rows=first[0].num_samples, num_clusters=first[0].num_clusters), reason


@dataclass
class _Predictions:
    """The scores of runs with pseudovalues; a file that several comparisons need is read once."""

    split: str
    metric: str
    rows: dict[str, PredictionRows] = field(default_factory=dict)
    scored: dict[str, JackknifeScore] = field(default_factory=dict)

    def of_sides(self, sides: tuple[Seeds, Seeds]) -> list[list[JackknifeScore]]:
        """Return the scores of both sides by seed; repeats of a seed are averaged.

        Raises:
            CannotTell: A file cannot be used, or the runs were scored on different rows.
        """
        runs = [run for side in sides for seed in side for run in seed]
        for run in runs:
            if run.name not in self.rows:
                self.rows[run.name] = read_rows(run, self.split)
            if not self.rows[run.name].is_same_as(self.rows[runs[0].name]):
                raise CannotTell(f"{plain(run.name)} and {plain(runs[0].name)} were scored on other rows")
            if run.name not in self.scored:
                self.scored[run.name] = score_again(run, self.rows[run.name], self.split, self.metric)
        return [[_mean([self.scored[run.name] for run in seed]) for seed in side] for side in sides]


def _mean(repeats: Sequence[JackknifeScore]) -> JackknifeScore:
    values = np.mean([repeat.pseudovalues for repeat in repeats], axis=0)
    return replace(repeats[0], score=fmean([repeat.score for repeat in repeats]), pseudovalues=values)


def _recorded(run: RunRecord, split: str, metric: str) -> float:
    value = run.score(split, metric)
    assert value is not None
    return value
