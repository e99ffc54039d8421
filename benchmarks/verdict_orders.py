"""Simulated experiments with several axes.

A part of `verdicts.py`. Logarithms of rates are normal with a standard deviation of 1%.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from paratune.records.finished import RunRecord
from paratune.records.typed import RunFile, Summary, Throughput
from paratune.verdicts.estimate import ALPHA, change_of_means, holm
from paratune.verdicts.groups import Group
from paratune.verdicts.judge import factor_effects
from paratune.verdicts.scores import with_family_variance
from paratune.verdicts.sequential import sequential_p

SPREAD = 0.01


def _compared(logs: Sequence[Sequence[float]]) -> list[float]:
    estimates = [change_of_means(logs[0], other, scope="runs") for other in logs[1:]]
    return [estimate.p_different() for estimate in with_family_variance({}, [{}] * len(estimates), estimates)]


def speed_run(name: str, rate: float) -> RunRecord:
    """Return a run with only its speed."""
    return RunRecord(name, Path(), RunFile(), Summary(throughput=Throughput(samples_per_s=rate)))


FACTORS = {"strategy": ("ddp", "zero1", "zero3"), "precision": ("fp32", "bf16"), "rate": ("high", "low")}


def try_factors(change: float, num_runs: int, num_trials: int, seed: int) -> dict[str, float]:
    """Draw a matrix of three axes (3 x 2 x 2) in which one value of one axis changes the speed.

    Returns:
        Shares of the experiments: `found`, the main effect of that value; `pair_found`, the comparison of the
        configuration that differs only in it, among all comparisons with the baseline; `false` and `pair_false`, any
        false "different" of another axis, and of a configuration without that value.
    """
    rng = np.random.default_rng(seed)
    base = {axis: levels[0] for axis, levels in FACTORS.items()}
    counts = dict.fromkeys(("found", "pair_found", "false", "pair_false"), 0.0)
    combinations = [dict(zip(FACTORS, names, strict=True)) for names in product(*FACTORS.values())]
    for _ in range(num_trials):
        cells = []
        for levels in combinations:
            logs = change * (levels["strategy"] == "zero3") + SPREAD * rng.normal(size=num_runs)
            name = "_".join(levels.values())
            runs = tuple(speed_run(f"{name}_{place}", float(np.exp(log))) for place, log in enumerate(logs))
            cells.append(Group(name, runs, levels=levels))
        effects = {(effect.axis, effect.level): effect for effect in factor_effects(cells, base)}
        p_values = {key: effect.comparison.p_different or 0.0 for key, effect in effects.items()}
        counts["found"] += p_values["strategy", "zero3"] <= ALPHA
        counts["false"] += any(p <= ALPHA for key, p in p_values.items() if key != ("strategy", "zero3"))
        logs = [[float(np.log(run.summary.throughput.samples_per_s)) for run in cell.runs] for cell in cells]
        adjusted = holm([sequential_p(p) for p in _compared(logs)])
        different = {place for place, p_value in enumerate(adjusted, start=1) if p_value <= ALPHA}
        alone = combinations.index({**base, "strategy": "zero3"})
        counts["pair_found"] += alone in different
        counts["pair_false"] += any(combinations[place]["strategy"] != "zero3" for place in different)
    return {name: float(count) / num_trials for name, count in counts.items()}
