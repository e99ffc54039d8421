from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from paratune.verdicts.estimate import Estimate, Side
from paratune.verdicts.finding import plan, power_different, power_equal


def of_pairs(num_runs, deviation=0.004, shared=0.0, num_samples=0, value=0.0):
    return Estimate(value, (Side(deviation**2, num_runs, num_runs - 1),), shared, num_samples, "seeds", num_samples)


@pytest.mark.parametrize("num_runs", [4, 8, 15])
def test_power_is_what_a_simulation_finds(num_runs):
    rng = np.random.default_rng(num_runs)
    there = rng.normal(0.0, 0.004, (20_000, num_runs))
    error = stats.sem(there, axis=1)
    critical = stats.t.ppf(0.95, num_runs - 1)
    inside = np.abs(there.mean(axis=1)) + critical * error < 0.005
    assert power_equal(of_pairs(num_runs), 0.005) == pytest.approx(inside.mean(), abs=0.015)
    found = (there.mean(axis=1) + 0.005) / error > stats.t.ppf(0.975, num_runs - 1)
    assert power_different(of_pairs(num_runs), 0.005) == pytest.approx(found.mean(), abs=0.015)


def scaled(estimate, share):
    """Return the estimate with a variance at an end of its 80% interval: s^2 f / chi^2_f."""
    side = estimate.sides[0]
    freedom = side.num_runs - 1
    square = side.mean_square * freedom / stats.chi2.isf(share, freedom)
    return replace(estimate, sides=(Side(square, side.num_runs, side.freedom),))


@pytest.mark.parametrize(("share", "end"), [(0.1, "low"), (0.5, "middle"), (0.9, "high")])
def test_an_end_of_a_range_is_the_first_number_of_runs_with_enough_power(share, end):
    estimate = of_pairs(6, value=0.006)
    to_tell, to_equal, _ = plan(estimate, 0.004)
    there = scaled(estimate, share)
    equal, different = getattr(to_equal, end), getattr(to_tell, end)
    assert power_equal(there.with_runs(equal), 0.004) >= 0.8 > power_equal(there.with_runs(equal - 1), 0.004)
    assert power_different(there.with_runs(different), 0.006) >= 0.8
    assert different == 7 or power_different(there.with_runs(different - 1), 0.006) < 0.8


def test_a_large_change_needs_few_runs_to_be_told_and_many_to_be_equal():
    # Issue: +28.2 points [+0.1, +56.4] was answered with "more seeds will not tell".
    to_tell, to_equal, num_samples = plan(of_pairs(3, deviation=0.11, value=0.282), 0.005)
    assert (to_tell.low, to_equal, num_samples) == (4, None, None)
    assert to_tell.low <= to_tell.middle < to_tell.high < 20


def test_a_change_inside_of_the_margin_is_not_to_be_told():
    to_tell, to_equal, _ = plan(of_pairs(6, value=0.003), 0.004)
    assert (to_tell, to_equal is None) == (None, False)


def test_a_side_that_has_more_runs_keeps_them():
    # Of 3 and 12 runs, the 3 are to become more; that 12 and 12 would be too many does not matter.
    sides = Side(0.004**2, 3, 2), Side(0.002**2, 12, 11)
    needed = plan(Estimate(0.0, sides, 0.0, 0, "runs"), 0.005)[1].low
    factor = 2 / stats.chi2.isf(0.1, 2)
    there = [Estimate(0.0, (Side(0.004**2 * factor, count, count - 1), Side(0.002**2 * factor, 12, 11)), 0.0, 0, "runs")
             for count in (needed, needed - 1)]  # fmt: skip
    assert power_equal(there[0], 0.005) >= 0.8
    assert needed == 4 or power_equal(there[1], 0.005) < 0.8


def test_a_plan_is_near_the_known_arithmetic():
    # Known variance: (1.645 + 1.282)^2 sd^2 / d^2 = 8.57 x (0.01 / 0.005)^2 = 34.3 pairs, and with 1000 pairs at hand
    # a range is narrow: a side that has so many needs one more.
    estimate = of_pairs(30, deviation=0.01)
    needed = plan(estimate, 0.005)[1]
    assert needed.low in range(31, 33)  # 34.3 x 29 / 39.1 = 25.4, below the 30 at hand
    assert needed.high in range(49, 54)  # 34.3 x 29 / 19.8 = 50.3


def test_too_few_samples_are_said_to_be_the_trouble():
    # Standard error 0.01 from 400 samples: 8.57 x 0.01^2 x 400 / 0.005^2 = 13,702 samples, with seeds without end.
    found = plan(of_pairs(3, shared=0.01**2, num_samples=400), 0.005)
    assert found[:2] == (None, None)
    assert found[2] == pytest.approx(8.5639 * 16 * 100, rel=1e-3)
    # Of 400 blocks of 5 rows each, as many times as many rows are needed.
    blocks = replace(of_pairs(3, shared=0.01**2, num_samples=400), num_rows=2000)
    assert plan(blocks, 0.005)[2] == pytest.approx(5 * 8.5639 * 16 * 100, rel=1e-3)


def test_wild_runs_ask_for_more_than_a_plan_can_say():
    assert plan(of_pairs(3, deviation=0.6), 0.005) == (None, None, None)
    assert plan(Estimate(0.0, (), 0.01, 400, "samples"), 0.005) == (None, None, None)
