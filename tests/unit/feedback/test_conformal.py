"""Intervals by split conformal prediction."""

import numpy as np
import pytest
from scipy.stats import binom

from paratune.feedback.feedback import check_coverage, half_width


def test_half_width_is_the_ranked_residual():
    residuals = np.asarray([-1.0, 0.5, 0.2, -0.3, 0.8, 0.1, 0.9, -0.4, 0.6])
    # 9 rows, 80%: rank ceil(10 * 0.8) = 8 of 0.1 0.2 0.3 0.4 0.5 0.6 0.8 0.9 1.0; 90% has rank 9.
    assert half_width(residuals, 0.8) == 0.9
    assert half_width(residuals, 0.9) == 1.0
    assert half_width(residuals, 0.95) is None  # rank 10


@pytest.mark.parametrize("level", [0.8, 0.9])
def test_coverage_over_200_resamplings_is_as_promised(level: float):
    rng = np.random.default_rng(7)
    inside = 0
    for _ in range(200):
        residuals = rng.standard_t(3, 220) * rng.uniform(0.2, 2, 220)
        half = half_width(residuals[:120], level)
        assert half is not None
        inside += int((np.abs(residuals[120:]) <= half).sum())
    # The expected coverage is k / (n + 1): 97 / 121 and 109 / 121. Rows of one calibration share its error, so that
    # the variance is that of 200 beta-binomial numbers: more than binomial by the factor 1 + (m - 1) / (n + 2).
    rank = {0.8: 97, 0.9: 109}[level]
    share = rank / 121
    low, high = binom.interval(0.99, 200 * 100, share)
    spread = (1 + 99 / 122) ** 0.5
    assert abs(inside - 20_000 * share) <= spread * (high - low) / 2
    assert inside / 20_000 >= level - 0.01


def test_a_check_counts_labels_inside():
    found = check_coverage(np.asarray([0.1, -0.2, 0.3, 2.0]), 0.3, 99, 0.9)
    assert (found.num_inside, found.num_rows, found.share) == (3, 4, 0.75)
    assert found.is_kept


def test_too_few_labels_inside_are_noticed():
    found = check_coverage(np.concatenate([np.zeros(60), np.full(40, 5.0)]), 1.0, 199, 0.9)
    assert found.p_value < 1e-6
    assert not found.is_kept
