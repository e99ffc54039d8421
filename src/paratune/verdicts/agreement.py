"""Compares which words two models give the largest effects: rank correlation of the effects."""

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import numpy.typing as npt

from paratune.verdicts.estimate import mean_interval

Floats = npt.NDArray[np.float64]


def rank_correlation(first: Floats, second: Floats) -> float | None:
    """Return Spearman's correlation of two effects of the same words, (W,) each; None where one is constant."""
    from scipy.stats import spearmanr

    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(spearmanr(first, second).statistic)


def mean_correlation(
    rows: Sequence[Sequence[tuple[Floats, Floats]]],
) -> tuple[float, tuple[float, float] | None, int] | None:
    """Return the mean rank correlation over rows, its 95% interval over rows, and the number of rows.

    A row has the effects of its words by both models, once for each pair of models; their mean is that of the row.

    Returns:
        None without a row with a correlation; no interval for a single row.
    """
    values = []
    for pairs in rows:
        known = [value for first, second in pairs if (value := rank_correlation(first, second)) is not None]
        if known:
            values.append(float(np.mean(known)))
    if not values:
        return None
    return fmean(values), mean_interval(values, (-1.0, 1.0)), len(values)
