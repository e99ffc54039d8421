import math

import numpy as np
import pytest
from scipy import stats

from paratune.verdicts.estimate import Estimate, Side, holm, paired, unpaired

FIRST = [0.912, 0.905, 0.921, 0.899]
SECOND = [0.918, 0.915, 0.920, 0.911]


def test_pairs_are_those_of_scipys_paired_t_test():
    found = paired(FIRST, SECOND, scope="seeds")
    test = stats.ttest_rel(SECOND, FIRST)
    assert found.p_different() == pytest.approx(test.pvalue)
    assert found.interval() == pytest.approx(tuple(test.confidence_interval(0.95)))


def test_runs_without_partners_are_those_of_scipys_welch_test():
    found = unpaired(FIRST, SECOND, scope="seeds")
    test = stats.ttest_ind(SECOND, FIRST, equal_var=False)
    assert found.degrees_of_freedom == pytest.approx(test.df)
    assert found.p_different() == pytest.approx(test.pvalue)
    assert found.interval() == pytest.approx(tuple(test.confidence_interval(0.95)))


def test_the_side_with_fewer_runs_counts_for_more_degrees_of_freedom():
    # Variances 0.08 / 2 of 1 degree of freedom, and 0.12 / 6 of 5, of which ((1/3) (7/5))^3 counts: k of 2 and 6 runs.
    found = Estimate(0.0, (Side(0.08, 2), Side(0.12, 6)), shared=0.0, num_samples=0, scope="runs")
    large = 0.02 * (7 / 15) ** 3
    assert found.standard_error == pytest.approx(math.sqrt(0.06))
    assert found.degrees_of_freedom == pytest.approx((0.04 + large) ** 2 / (0.04**2 / 1 + large**2 / 5))


def test_two_one_sided_tests_are_those_of_scipy():
    # The change is above -0.02, and below 0.02: the larger of the two p-values.
    found = paired(FIRST, SECOND, scope="seeds")
    differences = np.subtract(SECOND, FIRST)
    low = stats.ttest_1samp(differences, -0.02, alternative="greater").pvalue
    high = stats.ttest_1samp(differences, 0.02, alternative="less").pvalue
    assert found.p_equal(-0.02, 0.02) == pytest.approx(max(low, high))
    # ... and are passed at 5% exactly when the 90% interval lies inside.
    edge = max(abs(end) for end in found.interval(0.90))
    assert found.p_equal(-edge * 1.001, edge * 1.001) < 0.05 < found.p_equal(-edge * 0.999, edge * 0.999)


def test_the_shared_variance_counts_in_the_degrees_of_freedom():
    # Variance 0.04 / 4 = 0.01 of 3 degrees of freedom, and 0.02 shared, of which (3/5)^2 count: (0.01 + 0.0072)^2 over
    # 0.01^2 / 3 + 0.0072^2 / 99.
    found = Estimate(0.0, (Side(0.04, 4),), shared=0.02, num_samples=100, scope="seeds and samples")
    assert found.standard_error == pytest.approx(math.sqrt(0.03))
    assert found.degrees_of_freedom == pytest.approx(0.0172**2 / (0.01**2 / 3 + 0.0072**2 / 99))


def test_samples_alone_have_as_many_degrees_of_freedom_as_samples():
    assert Estimate(0.0, (), 0.01, 400, "samples").degrees_of_freedom == 399


def test_what_never_varies_is_known():
    found = paired([0.9, 0.8, 0.7], [0.9, 0.8, 0.7], scope="seeds")
    assert found.interval() == (0.0, 0.0)
    assert (found.p_different(), found.p_equal(-0.005, 0.005)) == (1.0, 0.0)
    moved = paired([0.9, 0.8, 0.7], [0.91, 0.81, 0.71], scope="seeds")
    assert (moved.p_different(), moved.p_equal(-0.005, 0.005)) == (0.0, 1.0)


def test_differences_that_are_the_same_to_rounding_do_not_vary():
    # One of 277 rows each: the differences are apart by half an ulp of the scores.
    first, second = [112 / 277, 100 / 277], [113 / 277, 101 / 277]
    assert len({b - a for a, b in zip(first, second, strict=True)}) > 1
    assert paired(first, second, scope="seeds").sides == (Side(0.0, 2),)


def test_holm():
    # 0.01 x 4; 0.02 x 3; 0.03 x 2 = 0.06, no less than the one before; 0.04 x 1 = 0.04, likewise 0.06.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
