"""Cohen's kappa with quadratic weights, from sums: the matrix of all pairs of grades grows with their square."""

from typing import Any

import numpy as np
import numpy.typing as npt


def quadratic_kappa(
    true: npt.NDArray[Any], given: npt.NDArray[Any], weights: npt.NDArray[Any] | None = None
) -> float | None:
    """Return kappa of two gradings, (N,) integers of one scale; None where all grades are equal.

    With the weights (i - j)^2, the observed disagreement is the mean of (x - y)^2. The one expected by chance is that
    of independent x and y: E(x^2) + E(y^2) - 2 E(x) E(y). Kappa is 1 - observed / expected.

    Args:
        true: Grades on one side, (N,).
        given: Grades on the other side, (N,).
        weights: Weights of the samples, (N,); None for 1 each.

    Source: Cohen, Psychological Bulletin 70(4), 1968; equal to sklearn.metrics.cohen_kappa_score.
    """
    lowest = min(true.min(), given.min())
    x_N, y_N = (np.asarray(grades - lowest, dtype=np.float64) for grades in (true, given))
    w_N = np.ones(len(x_N)) if weights is None else np.asarray(weights, dtype=np.float64) / np.mean(weights)
    used = w_N > 0
    if np.ptp(np.concatenate([x_N[used], y_N[used]])) == 0:
        return None
    expected = (w_N @ (x_N**2 + y_N**2) - 2 * (w_N @ x_N) * (w_N @ y_N) / len(x_N)) / len(x_N)
    return float(1 - np.average((x_N - y_N) ** 2, weights=w_N) / expected)
