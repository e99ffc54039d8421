"""How a score depends on the samples it was computed on: jackknife pseudovalues.

The pseudovalue of a sample is N times the score less N - 1 times the score without the sample; of a mean it is the
sample's own value. The variance of a score over other samples is the variance of its pseudovalues over N, and the
covariance of two runs' scores that of their pseudovalues: runs are scored on the same samples.

Source: Quenouille, Biometrika 43, 1956; Tukey, Annals of Mathematical Statistics 29, 1958.

Dimensions: `N` samples, `K` sums, `G` samples or blocks of samples.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
NUM_BLOCKS = 100
"""Into which samples are put where a score without each of them would take too long; rank correlations do."""
MAX_CELLS = 200
"""Kinds of samples up to which a score without one of each kind is computed."""


@dataclass(frozen=True, eq=False)
class JackknifeScore:
    """The score of a run with the pseudovalues of its samples."""

    score: float
    pseudovalues: Floats
    """(G,), in the order of the samples, blocks or clusters; blocks are the same for all runs on the same samples."""
    num_samples: int
    """N, in blocks or not."""
    num_clusters: int = 0
    """Clusters of samples, each of which is one pseudovalue or whole in a block; 0 where samples are independent."""

    @property
    def is_known(self) -> bool:
        """Whether the score is also defined without each single sample, or block."""
        return len(self.pseudovalues) > 1 and bool(np.isfinite(self.pseudovalues).all())


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
        without = np.asarray(score(sums - values), dtype=np.float64)
        return scored_without(float(score(sums)), without, len(values))


def of_kinds(kinds: npt.NDArray[np.int64], score: Callable[[Floats], float | None]) -> JackknifeScore | None:
    """Return a score that depends on the number of samples of each kind, such as a label with a prediction.

    `kinds` is (N,), from 0.
    """
    counts = np.bincount(kinds).astype(np.float64)
    without = np.full(len(counts), np.nan)
    for kind in np.flatnonzero(counts):
        fewer = counts.copy()
        fewer[kind] -= 1
        without[kind] = _number(score(fewer) if fewer.any() else None)
    return scored_without(_number(score(counts)), without[kinds], len(kinds))


def of_blocks(
    num_samples: int,
    score: Callable[[npt.NDArray[np.int64]], float | None],
    clusters: npt.NDArray[np.int64] | None = None,
) -> JackknifeScore | None:
    """Return any score, with pseudovalues of `NUM_BLOCKS` blocks of samples.

    Args:
        score: From the samples that are left, in order, to a score; None where it is undefined.
        clusters: (N,), numbers from 0: samples with the same one are in one block; None: independent samples.
    """
    clusters = np.arange(num_samples) if clusters is None else clusters
    num_clusters = int(clusters.max()) + 1 if num_samples else 0
    num_blocks = min(NUM_BLOCKS, num_clusters)
    # Shuffled, because rows of a file often come sorted; the same for all runs.
    block_of = (np.random.default_rng(0).permutation(num_clusters) % num_blocks)[clusters]
    everything = np.arange(num_samples)
    without = [
        _number(score(everything[block_of != block]) if num_samples > 1 else None) for block in range(num_blocks)
    ]
    return scored_without(_number(score(everything)), np.asarray(without), num_samples)


def by_cluster(scored: JackknifeScore, clusters: npt.NDArray[np.int64]) -> JackknifeScore:
    """Return a score whose pseudovalues are of clusters of samples that are drawn together.

    The pseudovalue of a cluster is the score plus G / N times the sum of its samples' distances from the score, of G
    clusters of N samples: their variance over G is that of the score over other clusters (Liang and Zeger, Biometrika
    73(1), 1986, for a mean). Blocks are returned as they are: clusters are whole in them. `clusters` is (N,), numbers
    from 0 without gaps.
    """
    num_clusters = int(clusters.max()) + 1
    values = scored.pseudovalues
    if len(values) == scored.num_samples:
        apart = np.bincount(clusters, weights=values - scored.score, minlength=num_clusters)
        values = scored.score + apart * num_clusters / scored.num_samples
    return JackknifeScore(scored.score, values, scored.num_samples, num_clusters)


def scored_without(score: float, without: Floats, num_samples: int) -> JackknifeScore | None:
    """Return a score whose values without each sample, or block, are known, (G,); None where it is undefined."""
    pseudovalues = len(without) * score - (len(without) - 1) * without
    return JackknifeScore(score, pseudovalues, num_samples) if np.isfinite(score) else None


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
