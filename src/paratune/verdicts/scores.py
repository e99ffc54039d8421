"""The difference of a score between two configurations, over seeds and samples as far as they are recorded."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from paratune.base.text import plain
from paratune.config.metric_names import direction
from paratune.verdicts.estimate import Estimate, paired, unpaired
from paratune.verdicts.finding import MeasureComparison, UncorrectedComparison, with_interval
from paratune.verdicts.groups import Group, matched, why_one
from paratune.verdicts.jackknife import JackknifeScore
from paratune.verdicts.margins import Margin
from paratune.verdicts.quality import over_samples, over_seeds_and_samples
from paratune.verdicts.rows import CannotTell, ComparedRun, PredictionRows, read_rows
from paratune.verdicts.scoring import score_again

Seeds = Sequence[Sequence[ComparedRun]]
_NOT_BY_CHANCE = 3
"""Seeds without any change that show equality: on 50 rows two have no change by chance 7% of the time, three 2%."""


def difference(base: Group, other: Group, split: str, metric: str, margin: Margin) -> UncorrectedComparison:
    """Return the difference of a score.

    Over seeds and samples where both sides have two seeds or more and their predictions exist; over seeds, on
    these samples, where predictions are not; over samples, of these models, where a side has one seed.
    """
    sides: tuple[Seeds, Seeds] = [*base.by_seed.values()], [*other.by_seed.values()]
    pairs = matched([*base.by_seed], [*other.by_seed])
    if pairs is not None:  # runs without a partner are not part of the change, nor of the figures next to it
        sides = ([sides[0][place] for place in pairs[0]], [sides[1][place] for place in pairs[1]])
    scores = [[fmean([_recorded(run, split, metric) for run in runs]) for runs in side] for side in sides]
    first, second = fmean(scores[0]), fmean(scores[1])
    counts = len(scores[0]), len(scores[1])
    limit = margin.of(first)
    finding = MeasureComparison(metric, False, first, second, counts, change=second - first, margin=limit or None)
    finding = replace(finding, split=split)
    if not limit:
        return UncorrectedComparison(
            replace(finding, code="zero_baseline", reason="the margin is a share of the baseline's score, which is 0")
        )
    estimate, reason = _estimate(sides, scores, split, metric, is_paired=pairs is not None)
    if estimate is not None:
        finding = with_interval(finding, estimate)
    else:
        finding = replace(finding, code="one_run" if min(counts) < 2 else "same_change")
    return UncorrectedComparison(
        replace(finding, reason=reason), estimate, sign=1 if direction(metric) == "max" else -1
    )


def _estimate(
    sides: tuple[Seeds, Seeds], scores: Sequence[Sequence[float]], split: str, metric: str, *, is_paired: bool
) -> tuple[Estimate | None, str | None]:
    """Return the estimate, None where there is none, and the reason when it is not over seeds and samples."""
    too_few = why_one(len(sides[0]), len(sides[1]), "seed")
    try:
        first, second = _scored(sides, split, metric)
    except CannotTell as error:
        if too_few is not None:
            return None, f"{too_few}; and none over samples: {error}"
        make = paired if is_paired else unpaired
        estimate = make(scores[0], scores[1], scope="seeds")
        if not estimate.variance and (estimate.value or min(map(len, scores)) < _NOT_BY_CHANCE):
            return None, f"the same change in all seeds: how far another seed would be from it is not known; {error}"
        return estimate, f"over seeds on these samples, not over other samples: {error}"
    if too_few is not None:
        return _of_rows(over_samples(first, second), first), f"{too_few}; the interval is over samples, of these models"
    return _of_rows(over_seeds_and_samples(first, second, is_paired=is_paired), first), None


def _of_rows(estimate: Estimate, scored: Sequence[JackknifeScore]) -> Estimate:
    """Return an estimate with the number of rows and of their clusters, also where it was found on blocks of them."""
    return replace(estimate, num_rows=scored[0].num_samples, num_clusters=scored[0].num_clusters)


def _scored(sides: tuple[Seeds, Seeds], split: str, metric: str) -> list[list[JackknifeScore]]:
    """Return the scores of both sides by seed, with pseudovalues; repeats of a seed are averaged."""
    tables = [[[(run, read_rows(run, split)) for run in runs] for runs in side] for side in sides]
    pairs = [pair for side in tables for runs in side for pair in runs]
    if any(rows.clusters is None for _, rows in pairs):  # records from before clusters were written
        tables = [[[(run, rows.without_clusters()) for run, rows in runs] for runs in side] for side in tables]
        pairs = [pair for side in tables for runs in side for pair in runs]
    reference = pairs[0][1]
    for run, rows in pairs:
        if not rows.is_same_as(reference):
            raise CannotTell(f"{plain(run.name)} and {plain(reference.run)} were scored on other rows")
    return [[_mean_score(runs, split, metric) for runs in side] for side in tables]


def _mean_score(runs: Sequence[tuple[ComparedRun, PredictionRows]], split: str, metric: str) -> JackknifeScore:
    """Return the mean score of the repeats of a seed."""
    scored = [score_again(run, rows, split, metric) for run, rows in runs]
    values = np.mean([repeat.pseudovalues for repeat in scored], axis=0)
    first = scored[0]
    return JackknifeScore(fmean([repeat.score for repeat in scored]), values, first.num_samples, first.num_clusters)


def _recorded(run: ComparedRun, split: str, metric: str) -> float:
    value = run.number(("summary", "scores", split, metric))
    assert value is not None
    return value
