"""The difference of scores between two configurations, over other seeds and other samples.

Each run is a reader and each sample a case of a multiple-reader, multiple-case study, with seeds for readers: the
variation from seed to seed is seen in the scores, and the part that all runs share, because they were scored on the
same samples, in the covariance of their scores. Configurations with the same seeds are compared seed by seed.

Source: Obuchowski and Rockette, Communications in Statistics - Simulation and Computation 24(2), 1995; Hillis,
Statistics in Medicine 26(3), 2007, for the common residual variance; Dorfman, Berbaum and Metz, Investigative Radiology
27(9), 1992, for pseudovalues.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from paratune.verdicts.estimate import Estimate, Side, moments, unpaired
from paratune.verdicts.jackknife import Floats, JackknifeScore
from paratune.verdicts.pooling import with_common_variance

Scores = Mapping[Hashable, float]
"""The score of each seed."""
SMALLEST_SHARE = 0.001
"""Of the F distribution: a pair whose differences vary less than this quantile keeps its own variance. Two ways to
compute the same thing have nearly the same score with each seed, among configurations that train something else."""


def over_seeds(first: Sequence[float], second: Sequence[float], *, is_paired: bool) -> Estimate:
    """Return the mean score of `second` less that of `first`, over other seeds on the same samples.

    Both sides have at least 2 seeds, in the same order if they are paired. The variance of a difference of a pair is
    that of two scores without what a seed has in common, so each side has half of it.
    """
    if not is_paired:
        return unpaired(first, second, scope="seeds")
    differences = [b - a for a, b in zip(first, second, strict=True)]
    mean, square = moments(differences, scale=max(map(abs, (*first, *second))))
    side = Side(square / 2, len(differences), pooled_freedom=len(differences) - 1)
    return Estimate(mean, (side, side), 0.0, 0, "seeds", is_paired=True)


def over_seeds_and_samples(
    first: Sequence[JackknifeScore], second: Sequence[JackknifeScore], *, is_paired: bool
) -> Estimate:
    """Return the same over other samples, too; both sides were scored on the same ones."""
    a, b = (np.stack([run.pseudovalues for run in runs]) for runs in (first, second))
    estimate = over_seeds([run.score for run in first], [run.score for run in second], is_paired=is_paired)
    if is_paired:
        shared, own = _covariance(b - a)
        alone = own / 2, own / 2
    else:
        between = float(np.cov(a.mean(axis=0), b.mean(axis=0))[0, 1]) / a.shape[1]
        parts = _covariance(a), _covariance(b)
        shared, alone = parts[0][0] + parts[1][0] - 2 * between, (parts[0][1], parts[1][1])
    sides = tuple(replace(side, if_equal=value) for side, value in zip(estimate.sides, alone, strict=True))
    return replace(
        estimate, sides=sides, shared=max(0.0, shared), num_samples=a.shape[1], scope="seeds and samples"
    )  # fmt: skip


def over_samples(first: Sequence[JackknifeScore], second: Sequence[JackknifeScore]) -> Estimate:
    """Return the mean score of `second` less that of `first`, the baseline, for these models and other samples."""
    means = [np.stack([run.pseudovalues for run in runs]).mean(axis=0) for runs in (first, second)]
    change = float(np.mean([run.score for run in second]) - np.mean([run.score for run in first]))
    difference = means[1] - means[0]
    variance = float(difference.var(ddof=1)) / len(difference)
    return Estimate(change, (), variance, len(difference), "samples")


def with_family_variance(base: Scores, others: Sequence[Scores], estimates: Sequence[Estimate]) -> list[Estimate]:
    """Return differences from one baseline with the variance from seed to seed that all configurations have in common.

    `others` are the scores of each other configuration, `estimates` the differences over seeds. Those that are paired
    are pooled among themselves, as residuals of an additive model of configurations and seeds, and so are the rest.
    """
    pooled = list(estimates)
    for is_paired in (True, False):
        places = [
            place for place, estimate in enumerate(estimates) if estimate.sides and estimate.is_paired == is_paired
        ]
        if len(places) < 2:
            continue
        family = [estimates[place] for place in places]
        if is_paired:
            first, *rest = _residuals([base, *(others[place] for place in places)])
            family = [
                replace(estimate, sides=tuple(
                    replace(own, mean_square=side.mean_square, own_freedom=side.own_freedom, pooled_freedom=0)
                    for own, side in zip(estimate.sides, (first, side), strict=True)
                ))
                for estimate, side in zip(family, rest, strict=True)
            ]  # fmt: skip
        for place, estimate in zip(places, with_common_variance(family), strict=True):
            if not (is_paired and _is_closer(estimates[place], estimate)):
                pooled[place] = estimate
    return pooled


def _residuals(scores: Sequence[Scores]) -> list[Side]:
    """Return the variance of each configuration's scores around the sum of an effect of its own and one of the seed."""
    seeds = {seed: number for number, seed in enumerate(dict.fromkeys(seed for each in scores for seed in each))}
    cells = [(at, seeds[seed], score) for at, each in enumerate(scores) for seed, score in each.items()]
    of, by, values = (np.asarray(column) for column in zip(*cells, strict=True))
    table = np.concatenate([np.eye(len(scores))[of], np.eye(len(seeds))[by]], axis=1)
    fitted = table @ np.linalg.pinv(table)
    squares, free = (values - fitted @ values) ** 2, 1 - np.diag(fitted)
    least = (1e-13 * float(np.abs(values).max())) ** 2  # below it, residuals are rounding, as in `moments`
    sides = []
    for at, each in enumerate(scores):
        freedom = float(free[of == at].sum())
        square = float(squares[of == at].sum()) / freedom
        sides.append(Side(square if square > least else 0.0, len(each), own_freedom=freedom))
    return sides


def _is_closer(own: Estimate, common: Estimate) -> bool:
    """Return whether the differences of a pair vary far less than two configurations of the family do."""
    from scipy import special

    if not common.has_common_variance:
        return False
    freedom, of_family = own.sides[0].pooled_freedom, common.sides[0].pooled_freedom
    limit = special.fdtri(freedom, of_family, SMALLEST_SHARE)
    return bool(own.sides[0].variance < limit * common.sides[0].variance)


def _covariance(pseudovalues: Floats) -> tuple[float, float]:
    """Return the mean covariance of two rows' scores, of (R, G) pseudovalues, and the rest of a row's variance."""
    num_runs, num_samples = pseudovalues.shape
    of_sum = float(pseudovalues.sum(axis=0).var(ddof=1))
    of_each = float(pseudovalues.var(axis=1, ddof=1).sum())
    shared = (of_sum - of_each) / float(num_runs * (num_runs - 1) * num_samples)
    return shared, max(0.0, of_each / (num_runs * num_samples) - shared)
