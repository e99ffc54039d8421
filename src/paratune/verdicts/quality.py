"""The difference of scores between two configurations, over other seeds and other samples.

Each run is a reader and each sample a case of a multiple-reader, multiple-case study, with seeds for readers: the
variation from seed to seed is seen in the scores, and the part that all runs share, because they were scored on the
same samples, in the covariance of their scores.

Source: Obuchowski and Rockette, Communications in Statistics - Simulation and Computation 24(2), 1995; Hillis,
Statistics in Medicine 26(3), 2007; Dorfman, Berbaum and Metz, Investigative Radiology 27(9), 1992, for pseudovalues.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paratune.verdicts.estimate import Estimate, paired, unpaired
from paratune.verdicts.jackknife import Floats, JackknifeScore


def over_seeds_and_samples(
    first: Sequence[JackknifeScore], second: Sequence[JackknifeScore], *, is_paired: bool
) -> Estimate:
    """Return the mean score of `second` less that of `first`.

    Both sides have at least 2 runs on the same samples, in the same order of seeds if they are paired.
    """
    a, b = (np.stack([run.pseudovalues for run in runs]) for runs in (first, second))
    scores = [[run.score for run in runs] for runs in (first, second)]
    num_samples = a.shape[1]
    if is_paired:
        shared, own = _covariance(b - a)
        estimate = paired(*scores, scope="seeds and samples", shared=max(0.0, shared), num_samples=num_samples)
        return _untied(estimate, [own])
    between = float(np.cov(a.mean(axis=0), b.mean(axis=0))[0, 1]) / num_samples
    (a_shared, a_own), (b_shared, b_own) = _covariance(a), _covariance(b)
    shared = max(0.0, a_shared + b_shared - 2 * between)
    estimate = unpaired(*scores, scope="seeds and samples", shared=shared, num_samples=num_samples)
    return _untied(estimate, [a_own, b_own])


def over_samples(first: Sequence[JackknifeScore], second: Sequence[JackknifeScore]) -> Estimate:
    """Return the mean score of `second` less that of `first`, the baseline, for these models and other samples."""
    means = [np.stack([run.pseudovalues for run in runs]).mean(axis=0) for runs in (first, second)]
    change = float(np.mean([run.score for run in second]) - np.mean([run.score for run in first]))
    difference = means[1] - means[0]
    variance = float(difference.var(ddof=1)) / len(difference)
    return Estimate(change, (), variance, len(difference), "samples")


def _covariance(pseudovalues: Floats) -> tuple[float, float]:
    """Return the mean covariance of two rows' scores, of (R, G) pseudovalues, and the rest of a row's variance."""
    num_runs, num_samples = pseudovalues.shape
    of_sum = float(pseudovalues.sum(axis=0).var(ddof=1))
    of_each = float(pseudovalues.var(axis=1, ddof=1).sum())
    shared = (of_sum - of_each) / float(num_runs * (num_runs - 1) * num_samples)
    return shared, max(0.0, of_each / (num_runs * num_samples) - shared)


def _untied(estimate: Estimate, own: Sequence[float]) -> Estimate:
    """Return an estimate in which seeds with equal scores have the variance that their answers to samples imply.

    On few samples the scores of two seeds are the same by chance up to 19% of the time, which does not show that seeds
    do not matter. `own` is, for each side, the variance of the score of a seed that it shares with no other seed.
    """
    sides = zip(estimate.sides, own, strict=True)
    return replace(estimate, sides=tuple(replace(side, mean_square=side.mean_square or least) for side, least in sides))
