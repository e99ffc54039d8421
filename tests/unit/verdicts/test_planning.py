from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from paratune.verdicts.estimate import Estimate, Side
from paratune.verdicts.planning import ComparisonPlan, plan, power_different, power_equal


def of_pairs(num_runs, deviation=0.004, shared=0.0, num_samples=0, value=0.0):
    return Estimate(value, (Side(deviation**2, num_runs),), shared, num_samples, "seeds")


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


def test_a_plan_is_the_first_number_of_runs_with_enough_power():
    needed = plan(of_pairs(3), 0.005).num_runs
    assert power_equal(of_pairs(needed), 0.005) >= 0.8
    assert power_different(of_pairs(needed), 0.005) >= 0.8
    assert min(power_equal(of_pairs(needed - 1), 0.005), power_different(of_pairs(needed - 1), 0.005)) < 0.8


def test_a_side_that_has_more_runs_keeps_them():
    # Of 3 and 12 runs, the 3 are to become more; that 12 and 12 would be too many does not matter.
    estimate = Estimate(0.0, (Side(0.004**2, 3), Side(0.002**2, 12)), 0.0, 0, "runs")
    needed = plan(estimate, 0.005).num_runs
    assert 3 < needed < 12
    there = replace(estimate, sides=(Side(0.004**2, needed), estimate.sides[1]))
    assert min(power_equal(there, 0.005), power_different(there, 0.005)) >= 0.8
    fewer = replace(estimate, sides=(Side(0.004**2, needed - 1), estimate.sides[1]))
    assert min(power_equal(fewer, 0.005), power_different(fewer, 0.005)) < 0.8


def test_a_plan_is_near_the_known_arithmetic():
    # Known variance: (1.645 + 1.282)^2 sd^2 / d^2 = 8.57 x (0.01 / 0.005)^2 = 34.3 pairs.
    assert plan(of_pairs(3, deviation=0.01), 0.005).num_runs in range(35, 38)


def test_a_change_near_the_margin_asks_for_what_decides_it():
    enough = plan(of_pairs(3), 0.005).num_runs
    found = plan(of_pairs(enough + 3, value=0.002), 0.005).num_runs
    assert power_different(of_pairs(found), 0.002) >= 0.8 > power_different(of_pairs(found - 1), 0.002)


def test_too_few_samples_are_said_to_be_the_trouble():
    # Standard error 0.01 from 400 samples: 8.57 x 0.01^2 x 400 / 0.005^2 = 13,702 samples, with seeds without end.
    found = plan(of_pairs(3, shared=0.01**2, num_samples=400), 0.005)
    assert found.num_runs is None
    assert found.num_samples == pytest.approx(8.5639 * 16 * 100, rel=1e-3)
    # Of 400 blocks of 5 rows each, as many times as many rows are needed.
    blocks = replace(of_pairs(3, shared=0.01**2, num_samples=400), num_rows=2000)
    assert plan(blocks, 0.005).num_samples == pytest.approx(5 * 8.5639 * 16 * 100, rel=1e-3)


def test_wild_runs_ask_for_more_than_a_plan_can_say():
    assert plan(of_pairs(3, deviation=0.2), 0.005) == ComparisonPlan(None, None)
    assert plan(Estimate(0.0, (), 0.01, 400, "samples"), 0.005) == ComparisonPlan(None)
