"""How a score depends on the samples it was computed on: jackknife pseudovalues.

The pseudovalue of a sample is N times the score less N - 1 times the score without the sample; of a mean it is the
sample's own value. The variance of a score over other samples is the variance of its pseudovalues over N, and the
covariance of two runs' scores that of their pseudovalues: runs are scored on the same samples.

Source: Quenouille, Biometrika 43, 1956; Tukey, Annals of Mathematical Statistics 29, 1958.

Dimensions: `N` samples, `K` sums, `G` samples, blocks of samples, or groups of samples with one value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
NUM_BLOCKS = 100  # of samples where a score without each of them would take too long; rank correlations do


@dataclass(frozen=True, eq=False)
class JackknifeScore:
    """The score of a run with the pseudovalues of its samples."""

    score: float
    pseudovalues: Floats
    """(G,), in the order of the samples, blocks or clusters; blocks are the same for all runs on the same samples."""
    num_samples: int  # N, in blocks or not
    num_clusters: int = 0  # clusters of samples, each one pseudovalue or whole in a block; 0 for independent samples

    @property
    def is_known(self) -> bool:
        """Whether the score is also defined without each single sample, or block."""
        return len(self.pseudovalues) > 1 and bool(np.isfinite(self.pseudovalues).all())

    def by_cluster(self, clusters: Ints) -> "JackknifeScore":
        """Return a score whose pseudovalues are of clusters of samples that are drawn together.

        The pseudovalue of a cluster is the score plus G / N times the sum of its samples' distances from the score, of
        G clusters of N samples: their variance over G is that of the score over other clusters (Liang and Zeger,
        Biometrika 73(1), 1986, for a mean). Blocks are returned as they are: clusters are whole in them. `clusters` is
        (N,), numbers from 0 without gaps.
        """
        num_clusters, values = int(clusters.max()) + 1, self.pseudovalues
        if len(values) == self.num_samples:
            apart = np.bincount(clusters, weights=values - self.score, minlength=num_clusters)
            values = self.score + apart * num_clusters / self.num_samples
        return JackknifeScore(self.score, values, self.num_samples, num_clusters)


def of_mean(values: npt.ArrayLike) -> JackknifeScore:
    """Return the mean of a value of each sample, (N,)."""
    samples = np.asarray(values, dtype=np.float64)
    return JackknifeScore(float(samples.mean()), samples, len(samples))


def of_sums(values: Floats, score: Callable[[Floats], Floats]) -> JackknifeScore | None:
    """Return a score that is a function of sums over samples; None where it is undefined.

    `values` is (N, K): what each sample adds to each sum; `score` maps sums, (..., K), to scores, (...,).
    """
    sums = values.sum(axis=0)
    with np.errstate(all="ignore"):
        return _scored(float(score(sums)), score(sums - values), len(values))


def of_kinds(kinds: Ints, score: Callable[[Ints, Floats], float | None]) -> JackknifeScore | None:
    """Return a score that depends on the number of samples of each kind, such as a label with a prediction.

    `kinds` is (N,), from 0; `score` maps the kinds that occur, and how often each does, to a score.
    """
    counts = np.bincount(kinds).astype(np.float64)
    without: dict[int, float | None] = {}
    for kind in map(int, np.flatnonzero(counts)):
        fewer = counts.copy()
        fewer[kind] -= 1
        left = np.flatnonzero(fewer)
        without[kind] = score(left, fewer[left]) if left.size else None
    occurring = np.flatnonzero(counts)
    return _scored(score(occurring, counts[occurring]), [without[kind] for kind in kinds], len(kinds))


def of_blocks(
    num_samples: int, score: Callable[[Ints], float | None], clusters: Ints | None = None
) -> JackknifeScore | None:
    """Return any score, with pseudovalues of `NUM_BLOCKS` blocks of samples.

    `score` maps the samples that are left, in order, to a score; None where it is undefined. `clusters` is (N,),
    numbers from 0: samples with the same one are in one block; None for independent samples.
    """
    clusters = np.arange(num_samples) if clusters is None else clusters
    num_clusters = int(clusters.max()) + 1 if num_samples else 0
    num_blocks = min(NUM_BLOCKS, num_clusters)
    # Shuffled, because rows of a file often come sorted; the same for all runs.
    block_of = (np.random.default_rng(0).permutation(num_clusters) % num_blocks)[clusters]
    everything = np.arange(num_samples)
    without = [score(everything[block_of != block]) if num_samples > 1 else None for block in range(num_blocks)]
    return _scored(score(everything), without, num_samples)


def mean_over_classes(
    metric: str, is_class: Sequence[npt.NDArray[np.bool_]], scores: Sequence[npt.NDArray[Any]]
) -> JackknifeScore | None:
    """Return the mean over classes of roc_auc or average_precision; None where a class has no sample, or all of them.

    `is_class` and `scores` are (N,) for each class: whether a sample is of it, and a finite number that is larger where
    it is more likely.
    """
    if any(mask.all() or not mask.any() for mask in is_class):
        return None
    scored, without = [], []
    with np.errstate(all="ignore"):  # without a class that has a single sample, the score is undefined
        for mask, score in zip(is_class, scores, strict=True):
            # Samples with one score are a group; groups are in descending order of it.
            own_N, group_N = mask.astype(np.float64), np.unique(-score, return_inverse=True)[1]
            positive_G, negative_G = (
                np.bincount(group_N, weights=some).astype(np.float64) for some in (own_N, 1 - own_N)
            )
            num_positive, num_negative = positive_G.sum(), negative_G.sum()
            if metric == "roc_auc":
                # The share of pairs (sample of the class, other sample) in the right order; a tie counts one half.
                # Without a sample, its pairs are left out.
                below_G = num_negative - np.cumsum(negative_G) + negative_G / 2
                above_G = np.cumsum(positive_G) - positive_G / 2
                right = float(positive_G @ below_G)
                of_sample = np.where(own_N == 1, below_G[group_N], above_G[group_N])
                pairs = (num_positive - own_N) * (num_negative - (1 - own_N))
                scored.append(right / (num_positive * num_negative))
                without.append((right - of_sample) / pairs)
                continue
            # The sum over groups of (share of the class in this group) * (precision down to this group).
            hits_G, size_G = np.cumsum(positive_G), np.cumsum(positive_G + negative_G)
            parts_G = positive_G * hits_G / size_G
            before_G = np.cumsum(parts_G) - parts_G
            # Groups below the sample have one sample less above them, and for a sample of the class also one hit less.
            left_N = np.empty_like(own_N)
            for value in (0.0, 1.0):
                rest_G = np.where(size_G > 1, (hits_G - value) / np.maximum(size_G - 1, 1), 0.0)
                after_G = (positive_G * rest_G)[::-1].cumsum()[::-1] - positive_G * rest_G
                own_G = (positive_G - value) * rest_G
                chosen = own_N == value
                left_N[chosen] = (before_G + own_G + after_G)[group_N[chosen]] / (num_positive - value)
            scored.append(float(parts_G.sum()) / num_positive)
            without.append(left_N)
    of_all = np.mean(without, axis=0)
    return _scored(float(np.mean(scored)), of_all, len(of_all))


def _scored(score: float | None, without: Sequence[float | None] | Floats, num_samples: int) -> JackknifeScore | None:
    """Return a score whose values without each sample, or block, are known, (G,); None where it is undefined."""
    if score is None or not np.isfinite(score):
        return None
    values = np.asarray(without, dtype=np.float64)  # None becomes NaN
    return JackknifeScore(score, len(values) * score - (len(values) - 1) * values, num_samples)
