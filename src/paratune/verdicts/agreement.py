"""Compares which words two models give the largest effects: rank correlation of the effects."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def rank_correlation(first: Floats, second: Floats) -> float | None:
    """Return Spearman's correlation of two effects of the same words, (W,) each; None where one is constant."""
    from scipy.stats import spearmanr

    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(spearmanr(first, second).statistic)
