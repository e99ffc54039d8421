"""The difference of scores between two configurations, over other seeds and other samples.

Each run is a reader and each sample a case of a multiple-reader, multiple-case study, with seeds for readers: what
varies from seed to seed is seen in the scores, and what all runs share, because they were scored on the same samples,
in the covariance of their scores.

Source: Obuchowski and Rockette, Communications in Statistics - Simulation and Computation 24(2), 1995; Hillis,
Statistics in Medicine 26(3), 2007; Dorfman, Berbaum and Metz, Investigative Radiology 27(9), 1992, for pseudovalues.
"""

from collections.abc import Sequence

import numpy as np

from paratune.verdicts.estimate import Estimate, paired, unpaired
from paratune.verdicts.jackknife import Floats, Scored


def over_seeds_and_samples(first: Sequence[Scored], second: Sequence[Scored], *, is_paired: bool) -> Estimate:
    """Return the mean score of `second` less that of `first`.

    Args:
        first: Runs of the baseline, on the same samples as all others; at least 2.
        second: Runs of the other, at least 2; in the order of the baseline's seeds where they are paired.
        is_paired: Whether runs of both sides share their seeds.
    """
    a, b = (np.stack([run.pseudovalues for run in runs]) for runs in (first, second))
    scores = [[run.score for run in runs] for runs in (first, second)]
    num_samples = a.shape[1]
    if is_paired:
        return paired(*scores, scope="seeds and samples", shared=max(0.0, _shared(b - a)), num_samples=num_samples)
    between = float(np.cov(a.mean(axis=0), b.mean(axis=0))[0, 1]) / num_samples
    shared = max(0.0, _shared(a) + _shared(b) - 2 * between)
    return unpaired(*scores, scope="seeds and samples", shared=shared, num_samples=num_samples)


def over_samples(first: Sequence[Scored], second: Sequence[Scored]) -> Estimate:
    """Return the mean score of `second` less that of `first`, for these very models and other samples.

    Args:
        first: Runs of the baseline, on the same samples as all others.
        second: Runs of the other.
    """
    means = [np.stack([run.pseudovalues for run in runs]).mean(axis=0) for runs in (first, second)]
    change = float(np.mean([run.score for run in second]) - np.mean([run.score for run in first]))
    difference = means[1] - means[0]
    variance = float(difference.var(ddof=1)) / len(difference)
    return Estimate(change, (), variance, len(difference), "samples")


def _shared(pseudovalues: Floats) -> float:
    """Return the mean covariance of two rows' scores, of (R, G) pseudovalues."""
    num_runs, num_samples = pseudovalues.shape
    of_sum = float(pseudovalues.sum(axis=0).var(ddof=1))
    of_each = float(pseudovalues.var(axis=1, ddof=1).sum())
    return (of_sum - of_each) / float(num_runs * (num_runs - 1) * num_samples)
