"""The difference of a score between two configurations, over other seeds and other samples.

Each run is a reader and each sample a case of a multiple-reader, multiple-case study, with seeds for readers: the
variation from seed to seed is seen in the scores, and the part that all runs share, because they were scored on the
same samples, in the covariance of their scores. Configurations with the same seeds are compared seed by seed.

Source: Obuchowski and Rockette, Communications in Statistics - Simulation and Computation 24(2), 1995; Hillis,
Statistics in Medicine 26(3), 2007, for the common residual variance; Dorfman, Berbaum and Metz, Investigative Radiology
27(9), 1992, for pseudovalues.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import cast

import numpy as np

from paratune.base.text import plain
from paratune.config.metric_names import score_range
from paratune.records.finished import RunRecord
from paratune.verdicts import special
from paratune.verdicts.estimate import Estimate, Side, change_of_means, common_sides
from paratune.verdicts.finding import MeasureComparison
from paratune.verdicts.groups import Group, Margin, matched, why_one
from paratune.verdicts.jackknife import JackknifeScore
from paratune.verdicts.scoring import SAME_ROWS, CannotTell, PredictionRows, read_rows, score_again

Scores = Mapping[Hashable, float]  # the score of each seed
Seeds = Sequence[Sequence[RunRecord]]
Cache = dict[tuple[str, str], tuple[PredictionRows, JackknifeScore]]  # by the names of reference and run
_NOT_BY_CHANCE = 3  # seeds without a change that show equality: on 50 rows two have none by chance 7% of the time, 3 2%
SMALLEST_SHARE = 0.001
"""Of the F distribution: a pair whose differences vary less than this quantile keeps its own variance. Two ways to
compute the same thing have nearly the same score with each seed, among configurations that train something else."""


def differences(
    base: Group, others: Sequence[Group], split: str, metric: str, margin: Margin
) -> list[MeasureComparison]:
    """Return the difference of a score of each configuration from the baseline's.

    Over seeds and samples where both sides have two seeds or more and their predictions exist; over seeds, on these
    samples, where predictions do not; over samples, of these models, where a side has one seed. The variance from seed
    to seed is that of all configurations with several seeds together.
    """
    # The score of each seed, the mean of its repeats; all runs have it.
    of_base, *of_others = (
        {
            seed: fmean(cast("list[float]", [run.score(split, metric) for run in runs]))
            for seed, runs in group.by_seed.items()
        }
        for group in (base, *others)
    )
    cache: Cache = {}
    least, most = score_range(metric, base.runs[0].task)
    found: list[MeasureComparison] = []
    family: dict[int, Estimate] = {}
    for place, (other, own) in enumerate(zip(others, of_others, strict=True)):
        sides: tuple[Seeds, Seeds] = [*base.by_seed.values()], [*other.by_seed.values()]
        scores = [[*of_base.values()], [*own.values()]]
        pairs = matched([*of_base], [*own])
        if pairs is not None:  # runs without a partner are not part of the change, nor of the figures next to it
            sides = ([sides[0][place] for place in pairs[0]], [sides[1][place] for place in pairs[1]])
            scores = [[side[place] for place in places] for side, places in zip(scores, pairs, strict=True)]
        first, second = fmean(scores[0]), fmean(scores[1])
        counts, limit = (len(scores[0]), len(scores[1])), margin.amount * (abs(first) if margin.is_share else 1)
        one = MeasureComparison(metric, False, first, second, counts, second - first, margin=limit or None, split=split)
        if not limit:
            reason = "the margin is a share of the baseline's score, which is 0"
            found.append(replace(one, code="zero_baseline", reason=reason))
            continue
        estimate, why = _estimate(sides, scores, split, metric, cache, is_paired=pairs is not None)
        one = replace(one, reason=why)
        if estimate is None:
            found.append(replace(one, code="one_run" if min(counts) < 2 else "same_change"))
            continue
        estimate = replace(estimate, reach=most - least)
        found.append(one if estimate.sides else one.with_interval(estimate))
        if estimate.sides:
            family[place] = estimate
    pooled = with_family_variance(of_base, [of_others[place] for place in family], [*family.values()])
    for place, estimate in zip(family, pooled, strict=True):
        found[place] = found[place].with_interval(estimate)
    return found


def _estimate(
    sides: tuple[Seeds, Seeds], scores: Sequence[Sequence[float]], split: str, metric: str, cache: Cache, *,
    is_paired: bool,
) -> tuple[Estimate | None, str | None]:  # fmt: skip
    """Return the estimate, None where there is none, and the reason when it is not over seeds and samples."""
    too_few = why_one(len(sides[0]), len(sides[1]), "seed")
    try:
        first, second = (_with_samples(side, sides[0][0][0], split, metric, cache) for side in sides)
    except CannotTell as error:
        if too_few is not None:
            return None, f"{too_few}; and none over samples: {error}"
        estimate = change_of_means(scores[0], scores[1], scope="seeds", is_paired=is_paired)
        if not estimate.variance and (estimate.value or min(map(len, scores)) < _NOT_BY_CHANCE):
            return None, f"the same change in all seeds: how far another seed would be from it is not known; {error}"
        return estimate, f"over seeds on these samples, not over other samples: {error}"
    why = None if too_few is None else f"{too_few}; the interval is over samples, of these models"
    return over_seeds_and_samples(first, second, is_paired=is_paired), why


def _with_samples(side: Seeds, reference: RunRecord, split: str, metric: str, cache: Cache) -> list[JackknifeScore]:
    """Return the scores of a side by seed, the mean over its repeats; `CannotTell` where a file cannot be used, or a
    run was scored on other rows than the reference."""
    by_seed = []
    for repeats in side:
        scored = []
        for run in repeats:
            place = reference.name, run.name
            if place not in cache:
                rows = read_rows(run, split)
                first = rows if run is reference else cache[reference.name, reference.name][0]
                names = [name for name in SAME_ROWS if name in rows.columns]
                if any(name not in first.columns or not np.array_equal(rows[name], first[name]) for name in names):
                    raise CannotTell(f"{plain(run.name)} and {plain(reference.name)} were scored on other rows")
                cache[place] = rows, score_again(run, rows, split, metric)
            scored.append(cache[place][1])
        if len(scored) > 1:
            values = np.mean([one.pseudovalues for one in scored], axis=0)
            scored[0] = replace(scored[0], score=fmean([one.score for one in scored]), pseudovalues=values)
        by_seed.append(scored[0])
    return by_seed


def over_seeds_and_samples(
    first: Sequence[JackknifeScore], second: Sequence[JackknifeScore], *, is_paired: bool
) -> Estimate:
    """Return the change of the mean score over other seeds and samples; both sides were scored on the same ones.

    Over samples alone, for these models, where a side has one seed.
    """
    a, b = (np.stack([run.pseudovalues for run in runs]) for runs in (first, second))
    of_first, of_second = ([run.score for run in runs] for runs in (first, second))
    num_samples, num_rows, num_clusters = a.shape[1], first[0].num_samples, first[0].num_clusters
    if min(len(first), len(second)) < 2:
        change = float(np.mean(of_second) - np.mean(of_first))
        variance = float((b.mean(axis=0) - a.mean(axis=0)).var(ddof=1)) / num_samples
        return Estimate(change, (), variance, num_samples, "samples", num_rows, num_clusters)
    estimate = change_of_means(of_first, of_second, scope="seeds", is_paired=is_paired)
    parts = []
    for values in [b - a] if is_paired else [a, b]:
        # The mean covariance of the scores of two rows, and the rest of the variance of a row's score.
        of_sum, of_each = float(values.sum(axis=0).var(ddof=1)), float(values.var(axis=1, ddof=1).sum())
        covariance = (of_sum - of_each) / float(len(values) * (len(values) - 1) * num_samples)
        parts.append((covariance, max(0.0, of_each / (len(values) * num_samples) - covariance)))
    if is_paired:
        shared, alone = parts[0][0], (parts[0][1] / 2, parts[0][1] / 2)
    else:
        between = float(np.cov(a.mean(axis=0), b.mean(axis=0))[0, 1]) / num_samples
        shared, alone = parts[0][0] + parts[1][0] - 2 * between, (parts[0][1], parts[1][1])
    sides = tuple(replace(side, if_equal=value) for side, value in zip(estimate.sides, alone, strict=True))
    return replace(
        estimate, sides=sides, shared=max(0.0, shared), num_samples=num_samples, scope="seeds and samples",
        num_rows=num_rows, num_clusters=num_clusters,
    )  # fmt: skip


def with_family_variance(base: Scores, others: Sequence[Scores], estimates: Sequence[Estimate]) -> list[Estimate]:
    """Return differences from one baseline with the variance from seed to seed that all configurations have in common.

    `others` are the scores of each other configuration, `estimates` the differences over seeds. Those that are paired
    are pooled among themselves, as residuals of an additive model of configurations and seeds, and so are the rest.
    """
    pooled = list(estimates)
    for is_paired in (True, False):
        places = [place for place, one in enumerate(estimates) if one.sides and one.is_paired == is_paired]
        if len(places) < 2:
            continue
        alone = [estimates[places[0]].sides[0], *(estimates[place].sides[1] for place in places)]
        if is_paired:
            # Each score less the sum of an effect of its configuration and one of its seed, by least squares.
            scores = [base, *(others[place] for place in places)]
            seeds = {seed: at for at, seed in enumerate(dict.fromkeys(seed for each in scores for seed in each))}
            cells = [(at, seeds[seed], score) for at, each in enumerate(scores) for seed, score in each.items()]
            of, by, values = (np.asarray(column) for column in zip(*cells, strict=True))
            table = np.concatenate([np.eye(len(scores))[of], np.eye(len(seeds))[by]], axis=1)
            fitted = table @ np.linalg.pinv(table)
            squares, free = (values - fitted @ values) ** 2, 1 - np.diag(fitted)
            least = (1e-13 * float(np.abs(values).max())) ** 2  # below it, residuals are rounding, as in `moments`
            freedoms = [float(free[of == at].sum()) for at in range(len(scores))]
            mean_squares = [float(squares[of == at].sum()) / freedom for at, freedom in enumerate(freedoms)]
            alone = [
                Side(square if square > least else 0.0, len(each), freedom)
                for each, square, freedom in zip(scores, mean_squares, freedoms, strict=True)
            ]
        first, *rest = common_sides(alone)
        for place, second in zip(places, rest, strict=True):
            pairs = [*zip(estimates[place].sides, (first, second), strict=True)]
            sides = [replace(side, num_runs=own.num_runs, if_equal=own.if_equal) for own, side in pairs]
            one, own, common = replace(estimates[place], sides=tuple(sides)), pairs[0][0], sides[0]
            # The differences of a pair may vary far less than two configurations of the family do.
            is_closer = False
            if is_paired and all(side.is_pooled for side in one.sides):
                quantile = special.fdtri(own.freedom, common.freedom, SMALLEST_SHARE)
                is_closer = own.variance < quantile * common.variance
            pooled[place] = estimates[place] if is_closer else one
    return pooled
