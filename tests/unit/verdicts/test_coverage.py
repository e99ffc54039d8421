"""Whether intervals cover and outcomes are right as often as they say, in experiments whose truth is known.

The larger simulation is benchmarks/verdicts.py; its results are in benchmarks/verdicts_202611.md.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paratune.verdicts import finding, scores

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import verdicts as simulation
from verdict_models import (
    FEW_ROWS,
    METRICS,
    SPEARMAN,
    Setting,
    Speeds,
    draw,
    seed_deviation,
    true_change,
    try_quality,
    try_speed,
)

BAND = (0.93, 0.99)
"""Intervals that add the variances of few seeds and of samples cover more than 95%: docs/explanation/verdicts.md."""
MOST_FALSE = 0.06


def check(changed, same):
    """Hold rates to the band, with two standard errors of the simulation to either side."""
    assert is_in_band(changed, same, slack=2 * changed.error(0.05)), (changed, same)


def is_in_band(changed, same, slack):
    covered = BAND[0] - slack <= changed.covered <= BAND[1] + slack
    return covered and max(changed.equal, same.different) <= MOST_FALSE + slack


@pytest.mark.parametrize("num_runs", [3, 5, 10])
def test_intervals_of_speed(num_runs):
    speeds = Speeds((num_runs, num_runs))
    check(try_speed(speeds, 2000, 1), try_speed(replace(speeds, change=0.0), 2000, 2))


@pytest.mark.parametrize("deviations", [(0.01, 0.01), (0.03, 0.01)])
@pytest.mark.parametrize("num_runs", [(2, 5), (2, 10), (3, 10)])
def test_intervals_of_speed_of_sides_with_unequal_numbers_of_runs(num_runs, deviations):
    # Welch's degrees of freedom cover as little as 88% here.
    speeds = Speeds(num_runs, deviations)
    check(try_speed(speeds, 4000, 3), try_speed(replace(speeds, change=0.0), 4000, 4))


@pytest.mark.parametrize(("num_seeds", "ratio"), [(2, 0.5), (3, 1.0), (5, 0.0)])
def test_intervals_of_quality(num_seeds, ratio):
    setting = Setting(METRICS[0], num_seeds, ratio)
    check(try_quality(setting, 600, 13), try_quality(replace(setting, differ=False), 600, 14))


@pytest.mark.parametrize("num_seeds", [2, 3])
def test_intervals_of_scores_that_are_often_the_same(num_seeds):
    # Two seeds are 15% of the time; without the variance of their answers, false "different" are 8%. Wider is allowed.
    setting = Setting(FEW_ROWS, num_seeds, 0.0)
    changed, same = try_both(setting, 2000, (num_seeds, 15))
    assert changed.covered > BAND[0]
    assert max(changed.equal, same.different) < MOST_FALSE


@pytest.mark.slow
@pytest.mark.timeout(3600)  # 8,000 more experiments, of 20 runs each, where the first ones are out of the band
@pytest.mark.parametrize("is_paired", [True, False])
@pytest.mark.parametrize("ratio", [0.0, 2.0])  # 0.5: in benchmarks/verdicts.py
@pytest.mark.parametrize("num_seeds", [3, 10])
@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_intervals_of_all_scores(metric, num_seeds, ratio, is_paired):
    setting = Setting(metric, num_seeds, ratio, is_paired=is_paired)
    # No two settings from the same random numbers: what one of them draws badly, its neighbours would, too.
    own = METRICS.index(metric), num_seeds, int(2 * ratio), int(is_paired)
    rates = try_both(setting, 1000, own)
    if not is_in_band(*rates, slack=0.0):
        # Of 120 experiments by the thousand some are far off by chance: others, and more, decide.
        rates = try_both(setting, 4000, (*own, 1))
    check(*rates)


def try_both(setting, num_trials, seed):
    changed = try_quality(setting, num_trials, (*seed, 5))
    return changed, try_quality(replace(setting, differ=False), num_trials, (*seed, 6))


@pytest.mark.slow
@pytest.mark.parametrize("speeds", [
    Speeds((3, 5)),
    Speeds((3, 3), deviations=(0.01, 0.03)),
    Speeds((5, 5), slow=0.1),
])  # fmt: skip
def test_intervals_of_rates_that_vary_otherwise(speeds):
    check(try_speed(speeds, 8000, 7), try_speed(replace(speeds, change=0.0), 8000, 8))


@pytest.mark.parametrize(
    "metric", [*METRICS, pytest.param(SPEARMAN, marks=pytest.mark.slow)], ids=lambda metric: metric.name
)
def test_the_truth_is_what_many_experiments_come_to(metric):
    setting = Setting(metric, 3, 1.0)
    deviation = seed_deviation(setting)
    rng = np.random.default_rng(8)
    changes = [
        np.mean([b.score - a.score for a, b in zip(*drawn, strict=True)])
        for drawn in (draw(setting, deviation, rng) for _ in range(400))
        if drawn is not None
    ]
    assert np.mean(changes) == pytest.approx(true_change(setting, deviation), abs=4 * np.std(changes) / 20)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("setting", [
    simulation.Setting(9, 2, 3000), simulation.Setting(9, 3, 3000), simulation.Setting(9, 3, 500, 20),
], ids=lambda each: f"{each.num_configurations} x {each.num_seeds}, {each.num_rows} rows")  # fmt: skip
def test_families_of_equal_and_better_configurations_by_judge(setting, monkeypatch):
    monkeypatch.setattr(scores, "read_rows", simulation.rows_of)
    monkeypatch.setattr(finding, "plan", simulation.no_plan)
    found = simulation.simulate(setting, 400, 21)
    assert found["false"] <= 0.05 + 2 * (0.05 * 0.95 / 400) ** 0.5
    assert found["covered"] >= BAND[0]
