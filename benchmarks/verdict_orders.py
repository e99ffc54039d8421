"""Simulated experiments with added runs, or with several axes.

A part of `verdicts.py`. Logarithms of rates are normal with a standard deviation of 1%.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from paratune.verdicts.estimate import ALPHA, Estimate, holm, unpaired
from paratune.verdicts.factorial import FactorCell, factor_effects
from paratune.verdicts.finding import MeasureComparison, UncorrectedComparison, with_interval
from paratune.verdicts.groups import Group
from paratune.verdicts.pooling import pool
from paratune.verdicts.sequential import last_level, sequential_p, spent_share

SPREAD = 0.01


def try_looks(
    schedule: Sequence[int], num_planned: int | None, change: float, num_others: int, num_trials: int, seed: int
) -> dict[str, float]:
    """Draw experiments in which runs are added until all configurations are "different", or the schedule ends.

    The last configuration differs by `change`; the others equal the baseline. All have the runs of the schedule
    at each look; a configuration that was "different" once stays so.

    Returns:
        Shares of the experiments: `naive` and `false`, any false "different" without and with the correction for looks
        (both with pooling and Holm); `naive_found` and `found`, of the configuration that differs; `first`, found at
        the first look; `covered`, of the intervals when the experiment ended. `runs`: mean runs of a configuration.
    """
    rng = np.random.default_rng(seed)
    means = np.array([0.0] * num_others + [change])
    looks = tuple((n / 2, spent_share(n / 2, schedule[0] / 2, num_planned)) for n in schedule)
    counts = dict.fromkeys(("naive", "false", "naive_found", "found", "first", "covered", "runs"), 0.0)
    for _ in range(num_trials):
        logs = means[:, None] + SPREAD * rng.normal(size=(len(means), schedule[-1]))
        naive, different = np.zeros(num_others, bool), np.zeros(num_others, bool)
        is_open, ended, estimates = True, schedule[-1], []
        for look, num in enumerate(schedule):
            p_values, drawn = _compared(logs[:, :num].tolist())
            naive |= np.asarray(holm(p_values)) <= ALPHA
            if is_open:
                different |= np.asarray(holm([sequential_p(p, looks[: look + 1]) for p in p_values])) <= ALPHA
                estimates, level, ended = drawn, last_level(ALPHA, looks[: look + 1]), num
                counts["first"] += look == 0 and different[-1]
                is_open = not different.all()
            if look == len(schedule) - 1 or (not is_open and change == 0 and naive.all()):
                break
        is_same = np.ones(num_others, bool)
        is_same[-1] = change == 0
        counts["naive"] += naive[is_same].any()
        counts["false"] += different[is_same].any()
        counts["naive_found"] += naive[-1] and change != 0
        counts["found"] += different[-1] and change != 0
        level = 0.05 if ended == schedule[0] else level
        ends = [estimate.interval(1 - level) for estimate in estimates]
        counts["covered"] += np.mean([low <= true <= high for (low, high), true in zip(ends, means[1:], strict=True)])
        counts["runs"] += ended
    return {name: float(count) / num_trials for name, count in counts.items()}


def _compared(logs: Sequence[Sequence[float]]) -> tuple[list[float], list[Estimate]]:
    estimates = pooled([unpaired(logs[0], other, scope="runs") for other in logs[1:]])
    return [estimate.p_different() for estimate in estimates], estimates


def pooled(estimates: Sequence[Estimate]) -> list[Estimate]:
    bare = MeasureComparison("speed", True, None, None, (2, 2), margin=1e-9)
    compared = pool([UncorrectedComparison(with_interval(bare, estimate), estimate) for estimate in estimates])
    return [comparison.estimate for comparison in compared if comparison.estimate is not None]


@dataclass(frozen=True)
class SpeedRun:
    """A run with only its speed."""

    name: str
    rate: float
    folder: Path = Path()

    def get(self, source: str | tuple[str, ...]) -> Any:
        return self.rate if source == "summary.throughput.samples_per_s" else None

    number = get


FACTORS = {"strategy": ("ddp", "zero1", "zero3"), "precision": ("fp32", "bf16"), "rate": ("high", "low")}


def try_factors(change: float, num_runs: int, num_trials: int, seed: int) -> dict[str, float]:
    """Draw a matrix of three axes (3 x 2 x 2) in which one value of one axis changes the speed.

    Returns:
        Shares of the experiments: `found`, the main effect of that value; `pair_found`, the comparison of the
        configuration that differs only in it, among all comparisons with the baseline; `false` and `pair_false`, any
        false "different" of another axis, and of a configuration without that value; `interaction`, any false one.
    """
    rng = np.random.default_rng(seed)
    base = {axis: levels[0] for axis, levels in FACTORS.items()}
    counts = dict.fromkeys(("found", "pair_found", "false", "pair_false", "interaction"), 0.0)
    combinations = [dict(zip(FACTORS, names, strict=True)) for names in product(*FACTORS.values())]
    for _ in range(num_trials):
        cells = []
        for levels in combinations:
            logs = change * (levels["strategy"] == "zero3") + SPREAD * rng.normal(size=num_runs)
            name = "_".join(levels.values())
            runs = tuple(SpeedRun(f"{name}_{place}", float(np.exp(log))) for place, log in enumerate(logs))
            cells.append(FactorCell(levels, Group(name, runs)))
        effects = {(effect.axis, effect.level): effect for effect in factor_effects(cells, base)}
        p_values = {key: effect.comparison.p_different or 0.0 for key, effect in effects.items()}
        counts["found"] += p_values["strategy", "zero3"] <= ALPHA
        counts["false"] += any(p <= ALPHA for key, p in p_values.items() if key != ("strategy", "zero3"))
        counts["interaction"] += any(effect.interaction and effect.interaction.matters for effect in effects.values())
        logs = [[float(np.log(run.rate)) for run in cell.group.runs] for cell in cells]
        adjusted = holm([sequential_p(p) for p in _compared(logs)[0]])
        different = {place for place, p_value in enumerate(adjusted, start=1) if p_value <= ALPHA}
        alone = combinations.index({**base, "strategy": "zero3"})
        counts["pair_found"] += alone in different
        counts["pair_false"] += any(combinations[place]["strategy"] != "zero3" for place in different)
    return {name: float(count) / num_trials for name, count in counts.items()}
