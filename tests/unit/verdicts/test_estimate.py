import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from paratune.verdicts.estimate import Estimate, Side, change_of_means, dunnett, holm

FIRST = [0.912, 0.905, 0.921, 0.899]
SECOND = [0.918, 0.915, 0.920, 0.911]


def test_pairs_are_those_of_scipys_paired_t_test():
    found = change_of_means(FIRST, SECOND, scope="seeds", is_paired=True)
    test = stats.ttest_rel(SECOND, FIRST)
    assert found.p_different() == pytest.approx(test.pvalue)
    assert found.interval() == pytest.approx(tuple(test.confidence_interval(0.95)))


def test_runs_without_partners_are_those_of_scipys_welch_test():
    found = change_of_means(FIRST, SECOND, scope="seeds")
    test = stats.ttest_ind(SECOND, FIRST, equal_var=False)
    assert found.degrees_of_freedom == pytest.approx(test.df)
    assert found.p_different() == pytest.approx(test.pvalue)
    assert found.interval() == pytest.approx(tuple(test.confidence_interval(0.95)))


def test_the_side_with_fewer_runs_counts_for_more_degrees_of_freedom():
    # Variances 0.08 / 2 of 1 degree of freedom, and 0.12 / 6 of 5, of which ((1/3) (7/5))^3 counts: k of 2 and 6 runs.
    found = Estimate(0.0, (Side(0.08, 2, 1), Side(0.12, 6, 5)), shared=0.0, num_samples=0, scope="runs")
    large = 0.02 * (7 / 15) ** 3
    assert found.standard_error == pytest.approx(math.sqrt(0.06))
    assert found.degrees_of_freedom == pytest.approx((0.04 + large) ** 2 / (0.04**2 / 1 + large**2 / 5))


def test_two_one_sided_tests_are_those_of_scipy():
    # The change is above -0.02, and below 0.02: the larger of the two p-values.
    found = change_of_means(FIRST, SECOND, scope="seeds", is_paired=True)
    differences = np.subtract(SECOND, FIRST)
    low = stats.ttest_1samp(differences, -0.02, alternative="greater").pvalue
    high = stats.ttest_1samp(differences, 0.02, alternative="less").pvalue
    assert found.p_equal(-0.02, 0.02) == pytest.approx(max(low, high))
    # ... and are passed at 5% exactly when the 90% interval lies inside.
    edge = max(abs(end) for end in found.interval(0.90))
    assert found.p_equal(-edge * 1.001, edge * 1.001) < 0.05 < found.p_equal(-edge * 0.999, edge * 0.999)


PARTS = Estimate(0.3, (Side(0.04, 4, 3, is_pooled=True),), shared=0.02, num_samples=100, scope="seeds and samples")
"""Variance 0.04 / 4 of 3 degrees of freedom, and 0.02 of 99."""


def test_each_variance_has_its_own_quantile():
    half = math.sqrt(0.01 * stats.t.ppf(0.975, 3) ** 2 + 0.02 * stats.t.ppf(0.975, 99) ** 2)  # Banerjee 1960
    assert PARTS.interval() == pytest.approx((0.3 - half, 0.3 + half))
    # The p-value is the level whose interval ends at 0; of a t test with these degrees of freedom it is the same at 5%.
    assert PARTS.interval(1 - PARTS.p_different())[0] == pytest.approx(0.0, abs=1e-6)
    assert half == pytest.approx(stats.t.ppf(0.975, PARTS.degrees_of_freedom) * math.sqrt(0.03))


def test_a_change_of_almost_nothing_has_a_p_value_of_one():
    assert replace(PARTS, value=1e-7).p_different() == pytest.approx(1)


def test_comparisons_that_share_all_their_variance_are_corrected_without_a_warning():
    assert all(0.01 <= p_value <= 1 for p_value in dunnett([0.01, 0.02], [1.0, 1.0], 8.0))


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.3, 5.0, 1e6])
def test_a_p_value_is_between_those_of_either_number_of_degrees_of_freedom(value):
    found = replace(PARTS, value=value)
    few, many = (2 * stats.t.sf(value / math.sqrt(0.03), freedom) for freedom in (3, 99))
    assert many * (1 - 1e-6) <= found.p_different() <= few * (1 + 1e-6)
    assert 0.5 <= found.p_equal(-value - 1, value) <= 1


@pytest.mark.parametrize("freedom", [1, 2, 4])
@pytest.mark.parametrize("shared", [0.1, 1.0, 10.0])
def test_intervals_cover_however_the_variance_divides_into_runs_and_samples(shared, freedom):
    # 20,000 draws of a variance of 1 with few degrees of freedom, and of a shared one: the error of 97.5% is 0.11%.
    rng = np.random.default_rng(int(10 * shared) + freedom)
    squares = rng.chisquare(freedom, 20_000) / freedom
    values = rng.normal(size=20_000) * math.sqrt(1 + shared)
    for level in (0.95, 0.995):
        t, z = stats.t.ppf((1 + level) / 2, freedom), stats.norm.ppf((1 + level) / 2)
        estimate = Estimate(0.0, (Side(1.0, 1, freedom, is_pooled=True),), shared, 1_000_000, "seeds and samples")
        assert estimate.quantile((1 - level) / 2) == pytest.approx(math.sqrt(t**2 + shared * z**2), rel=1e-4)
        covered = np.mean(np.abs(values) <= np.sqrt(squares * t**2 + shared * z**2))
        assert covered > level - 3 * math.sqrt(level * (1 - level) / 20_000)


def test_a_score_changes_by_no_more_than_its_range():
    wide = Estimate(0.1, (Side(1.0, 2, 1), Side(1.0, 2, 1)), 0.0, 0, "seeds", reach=1.0)
    assert wide.interval() == (-1.0, 1.0)


def test_samples_alone_have_as_many_degrees_of_freedom_as_samples():
    assert Estimate(0.0, (), 0.01, 400, "samples").degrees_of_freedom == 399


def test_what_never_varies_is_known():
    found = change_of_means([0.9, 0.8, 0.7], [0.9, 0.8, 0.7], scope="seeds", is_paired=True)
    assert found.interval() == (0.0, 0.0)
    assert (found.p_different(), found.p_equal(-0.005, 0.005)) == (1.0, 0.0)
    moved = change_of_means([0.9, 0.8, 0.7], [0.91, 0.81, 0.71], scope="seeds", is_paired=True)
    assert (moved.p_different(), moved.p_equal(-0.005, 0.005)) == (0.0, 1.0)


def test_differences_that_are_the_same_to_rounding_do_not_vary():
    # One of 277 rows each: the differences are apart by half an ulp of the scores.
    first, second = [112 / 277, 100 / 277], [113 / 277, 101 / 277]
    assert len({b - a for a, b in zip(first, second, strict=True)}) > 1
    assert change_of_means(first, second, scope="seeds", is_paired=True).variance == 0


def test_holm():
    # 0.01 x 4; 0.02 x 3; 0.03 x 2 = 0.06, no less than the one before; 0.04 x 1 = 0.04, likewise 0.06.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(("num_groups", "num_runs"), [(3, 2), (5, 3), (9, 3), (9, 10), (24, 5)])
def test_many_to_one_is_scipys_dunnett_test(num_groups, num_runs):
    rng = np.random.default_rng(num_groups)
    base, *others = rng.normal(size=(num_groups, num_runs)) + np.arange(num_groups)[:, None] / num_groups
    freedom = num_groups * (num_runs - 1)
    error = math.sqrt(np.mean([np.var(values, ddof=1) for values in (base, *others)]) * 2 / num_runs)
    p_values = [2 * stats.t.sf(abs(other.mean() - base.mean()) / error, freedom) for other in others]
    found = dunnett(p_values, [0.5] * len(others), freedom)
    smallest = int(np.argmin(p_values))
    expected = stats.dunnett(*others, control=base, rng=np.random.default_rng(0)).pvalue
    assert found[smallest] == pytest.approx(expected[smallest], rel=0.03, abs=1e-4)
    assert p_values[smallest] <= found[smallest] <= holm(p_values)[smallest] + 1e-4


def test_the_last_step_of_many_to_one_is_the_test_alone():
    found = dunnett([0.2, 1e-9, 0.03], [0.5] * 3, 12)
    assert found[0] == 0.2
    assert found[1] < found[2] < 0.06
    assert dunnett([1.0, 0.0], [0.5] * 2, 4) == pytest.approx([1.0, 0.0], abs=1e-12)


def test_comparisons_with_variances_of_their_own_count_as_independent():
    # Sidak 1967: 1 - (1 - 0.01)^3, then 1 - (1 - 0.02)^2, then alone.
    found = dunnett([0.03, 0.01, 0.02], [None] * 3, math.inf)
    assert found == pytest.approx([1 - 0.98**2, 1 - 0.99**3, 1 - 0.98**2])
    mixed = dunnett([0.01, 0.01, 0.01], [0.5, 0.5, None], 12)[0]
    assert dunnett([0.01, 0.01, 0.01], [0.5] * 3, 12)[0] < mixed < 1 - 0.99**3
    assert dunnett([], [], math.inf) == []
