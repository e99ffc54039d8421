"""The variances of configurations for the comparison of two of them, against written-out arithmetic."""

import pytest

from paratune.verdicts.estimate import Side
from paratune.verdicts.speeds import sides_of_pairs

RUNS, FREEDOM = 3, 8
"""Runs of each of four configurations, and degrees of freedom of their common variance of 1."""


def pairs(*squares: float) -> list[tuple[float, float]]:
    """Return mean square and pooled degrees of freedom of each configuration, the baseline first."""
    own = [Side(square, RUNS) for square in squares]
    common = [Side(1.0, RUNS, pooled_freedom=FREEDOM) for _ in squares]
    return [(side.mean_square, side.pooled_freedom) for side in sides_of_pairs(own, common)]


def test_a_smaller_variance_of_its_own_is_the_common_one():
    assert pairs(0.4, 0.5, 0.9, 1.0) == [(1.0, FREEDOM)] * 4


def test_a_larger_variance_counts_and_that_of_the_baseline_twice():
    assert pairs(0.6, 1.0, 1.0, 1.4) == [(1.2, FREEDOM), (1.0, FREEDOM), (1.0, FREEDOM), (1.4, FREEDOM)]
    assert pairs(1.5, 0.5, 1.0, 1.0)[0] == (3.0, FREEDOM)


def test_a_configuration_far_above_the_rest_has_its_own_degrees_of_freedom():
    # The 99.9% quantile of F(2, 8) is 18.49; one that pooling has set apart and is above it keeps its own.
    common = [Side(1.0, RUNS, pooled_freedom=FREEDOM)] * 3
    for square, expected in ((18.0, (18.0, FREEDOM)), (19.0, (19.0, 0))):
        apart = Side(square, RUNS)
        found = sides_of_pairs([Side(1.0, RUNS)] * 3 + [apart], [*common, apart])[-1]
        assert (found.mean_square, found.pooled_freedom) == pytest.approx(expected)


def test_without_a_common_variance_each_has_its_own():
    own = [Side(1.0, RUNS), Side(4.0, RUNS)]
    assert sides_of_pairs(own, own) == own
