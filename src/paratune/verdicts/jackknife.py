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
    """The score of a run and how its samples bear on it."""

    score: float
    pseudovalues: Floats
    """(G,), in the order of the samples, or of blocks that are the same for all runs of so many samples."""
    num_samples: int
    """N, in blocks or not."""

    @property
    def is_known(self) -> bool:
        """Whether the score is defined without each sample, or block of them, too."""
        return len(self.pseudovalues) > 1 and bool(np.isfinite(self.pseudovalues).all())


def of_mean(values: npt.ArrayLike) -> JackknifeScore:
    """Return the mean of a value of each sample, (N,)."""
    found = np.asarray(values, dtype=np.float64)
    return JackknifeScore(float(found.mean()), found, len(found))


def of_sums(values: Floats, score: Callable[[Floats], Floats]) -> JackknifeScore | None:
    """Return a score that is a function of sums over samples; None where it is undefined.

    Args:
        values: (N, K), what each sample adds to each sum.
        score: From sums, (..., K), to scores, (...,).
    """
    sums = values.sum(axis=0)
    with np.errstate(all="ignore"):
        without = np.asarray(score(sums - values), dtype=np.float64)
        return _scored(float(score(sums)), without, len(values))


def of_kinds(kinds: npt.NDArray[np.int64], score: Callable[[Floats], float | None]) -> JackknifeScore | None:
    """Return a score that takes each sample for one of a few kinds, such as a label with a prediction.

    Args:
        kinds: (N,), kinds from 0.
        score: From the number of samples of each kind to a score; None where it is undefined.
    """
    counts = np.bincount(kinds).astype(np.float64)
    without = np.full(len(counts), np.nan)
    for kind in np.flatnonzero(counts):
        fewer = counts.copy()
        fewer[kind] -= 1
        without[kind] = _number(score(fewer) if fewer.any() else None)
    return _scored(_number(score(counts)), without[kinds], len(kinds))


def of_blocks(num_samples: int, score: Callable[[npt.NDArray[np.int64]], float | None]) -> JackknifeScore | None:
    """Return any score, from what it is without each of `NUM_BLOCKS` blocks of samples.

    Args:
        num_samples: N.
        score: From the samples that are left, in order, to a score; None where it is undefined.
    """
    num_blocks = min(NUM_BLOCKS, num_samples)
    # Shuffled, because rows of a file often come sorted; the same for all runs.
    block_of = np.random.default_rng(0).permutation(num_samples) % num_blocks
    everything = np.arange(num_samples)
    without = [
        _number(score(everything[block_of != block]) if num_samples > 1 else None) for block in range(num_blocks)
    ]
    return _scored(_number(score(everything)), np.asarray(without), num_samples)


def _scored(score: float, without: Floats, num_samples: int) -> JackknifeScore | None:
    pseudovalues = len(without) * score - (len(without) - 1) * without
    return JackknifeScore(score, pseudovalues, num_samples) if np.isfinite(score) else None


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
