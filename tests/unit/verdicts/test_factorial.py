"""Main effects of the axes of a matrix: against least squares, Welch's formula written out, and simulations."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from fake_run import make_run

from paratune.verdicts import Group
from paratune.verdicts.judge import factor_effects
from paratune.verdicts.sequential import FIRST_SHARE

AXES = {"strategy": ("ddp", "zero1", "zero3"), "precision": ("fp32", "bf16"), "rate": ("high", "low")}
BASE = {axis: levels[0] for axis, levels in AXES.items()}


def cells(log, *, num=3, noise=0.01, seed=0, axes=AXES, scores=None, batch=None):
    """Return a cell for each combination; `log` gives the mean logarithm of its rates."""
    rng = np.random.default_rng(seed)
    made = []
    for names in itertools.product(*axes.values()):
        levels = dict(zip(axes, names, strict=True))
        runs = []
        for number in range(num):
            values = {} if batch is None else {"run__batch__global_batch_size": batch(levels)}
            if scores is not None:
                score = scores(levels, number)
                values |= {"summary__scores__test": {"accuracy": score}, "summary__scores__test__accuracy": score}
            scale = noise(levels) if callable(noise) else noise
            rate = 100 * np.exp(log(levels) + scale * rng.normal())
            runs.append(make_run("_".join((*names, str(number))), number, rate, **values))
        made.append(Group("_".join(names), tuple(runs), levels=levels))
    return made


def speeds(found):
    return {(effect.axis, effect.level): effect for effect in found if effect.comparison.measure == "speed"}


def additive(levels):
    return 0.1 * (levels["strategy"] == "zero3") + 0.3 * (levels["precision"] == "bf16")


def test_of_a_balanced_matrix_they_are_the_least_squares_effects():
    made = cells(additive)
    found = speeds(factor_effects(made, BASE))
    rows, y = [], []
    for cell in made:
        for run in cell.runs:
            levels = cell.levels
            rows.append([1, levels["strategy"] == "zero1", levels["strategy"] == "zero3",
                         levels["precision"] == "bf16", levels["rate"] == "low"])  # fmt: skip
            y.append(np.log(run.summary.throughput.samples_per_s))
    solution = np.linalg.lstsq(np.asarray(rows, float), np.asarray(y), rcond=None)[0]
    effects = [("strategy", "zero1"), ("strategy", "zero3"), ("precision", "bf16"), ("rate", "low")]
    assert [np.log1p(found[key].comparison.change) for key in effects] == pytest.approx(solution[1:])
    # 12 cells of 3 runs: a pooled variance with 24 degrees of freedom; 18 runs against 18, and 12 against 12.
    squares = sum(
        np.var([np.log(run.summary.throughput.samples_per_s) for run in cell.runs], ddof=1)
        for cell in made
    ) / 12  # fmt: skip
    for key, num in ((effects[0], 12), (effects[2], 18)):
        assert found[key].comparison.estimate.standard_error == pytest.approx(np.sqrt(2 * squares / num))
        assert found[key].comparison.estimate.degrees_of_freedom == pytest.approx(24)
    assert found["precision", "bf16"].comparison.outcome == "different"
    assert found["rate", "low"].comparison.outcome == "equal"
    assert [found[key].num_combinations for key in effects] == [4, 4, 6, 6]


def test_a_lost_run_does_not_count_its_combination_on_one_side_alone():
    # bf16 costs 0.1 and zero3 nothing: with one lost run, its seed would be 0.05 apart for ddp and zero3.
    axes = {"strategy": ("ddp", "zero3"), "precision": ("fp32", "bf16")}
    made = cells(additive, axes=axes, scores=lambda levels, seed: 0.9 - 0.1 * (levels["precision"] == "bf16"))
    made[1] = replace(made[1], runs=made[1].runs[1:])  # ddp, bf16
    found = factor_effects(made, {axis: levels[0] for axis, levels in axes.items()})
    changes = {effect.level: effect.comparison.change for effect in found if effect.comparison.measure == "accuracy"}
    assert changes == {"zero3": pytest.approx(0), "bf16": pytest.approx(-0.1)}


def test_a_cell_that_varies_more_keeps_its_variance():
    made = cells(additive, num=6, noise=lambda levels: 0.2 if levels == {**BASE, "strategy": "zero3"} else 0.01)
    found = speeds(factor_effects(made, BASE))
    logs = [
        [np.log(run.summary.throughput.samples_per_s) for run in cell.runs]
        for cell in made
        if cell.levels["strategy"] in ("ddp", "zero3")
    ]
    wild = max(np.var(some, ddof=1) for some in logs) / 6 / 16
    zero3 = found["strategy", "zero3"].comparison
    assert zero3.estimate.standard_error == pytest.approx(np.sqrt(wild), rel=0.02)
    assert zero3.estimate.degrees_of_freedom < 6
    assert found["strategy", "zero1"].comparison.estimate.standard_error < zero3.estimate.standard_error / 5


def test_effects_that_are_not_there_are_rarely_found():
    trials, effects = 150, 0
    for seed in range(trials):
        found = speeds(factor_effects(cells(lambda levels: 0.0, seed=seed, noise=0.03), BASE))
        effects += any(found[key].comparison.p_different <= 0.05 for key in (("precision", "bf16"), ("rate", "low")))
    assert effects / trials <= 0.14  # two axes of 5% each


def test_scores_are_compared_over_seeds_with_all_combinations_of_a_seed():
    def score(levels, seed):
        return 0.8 + 0.05 * (levels["rate"] == "low") + 0.01 * seed * (1 + (levels["rate"] == "low"))

    found = factor_effects(cells(additive, scores=score), BASE)
    (rate,) = [effect for effect in found if effect.axis == "rate" and effect.comparison.measure == "accuracy"]
    # Differences of the seeds 0, 1 and 2: 0.05, 0.06 and 0.07.
    assert rate.comparison.change == pytest.approx(0.06)
    assert (rate.comparison.num_runs, rate.comparison.scope) == ((3, 3), "seeds")
    assert (rate.comparison.estimate.is_paired, rate.comparison.estimate.standard_error) == (
        True, pytest.approx(0.01 / np.sqrt(3))
    )  # fmt: skip


def test_a_combination_without_a_value_is_left_out():
    made = [cell for cell in cells(additive) if cell.levels != {**BASE, "precision": "bf16"}]
    found = speeds(factor_effects(made, BASE))
    assert found["precision", "bf16"].num_combinations == 5
    assert found["precision", "bf16"].comparison.num_runs == (15, 15)


def test_an_axis_that_changes_the_batch_has_no_effect_on_speed():
    axes = {"strategy": ("ddp", "zero1"), "batch": ("small", "large")}
    base = {"strategy": "ddp", "batch": "small"}
    made = cells(lambda levels: 0.0, axes=axes, batch=lambda levels: {"small": 16, "large": 32}[levels["batch"]])
    found = speeds(factor_effects(made, base))
    assert found["batch", "large"].comparison.code == "not_same_experiment"
    assert found["batch", "large"].comparison.change is None
    assert found["strategy", "zero1"].comparison.outcome != "n/a"  # within each batch size


def test_one_run_of_a_combination_has_no_interval():
    found = speeds(factor_effects(cells(additive, num=1), BASE))
    assert found["precision", "bf16"].comparison.code == "one_run"
    assert found["precision", "bf16"].comparison.change is not None


def test_effects_are_at_the_level_of_their_look():
    found = speeds(factor_effects(cells(additive), BASE))
    assert found["rate", "low"].comparison.level == pytest.approx(0.05 * FIRST_SHARE)
