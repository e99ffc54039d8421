"""Simulated experiments with a drift of the machine, or with several axes.

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
from paratune.verdicts.jackknife import Floats
from paratune.verdicts.order import RunTime, has_to_adjust, order_model
from paratune.verdicts.pooling import pool
from paratune.verdicts.sequential import sequential_p

SPREAD = 0.01


def _compared(logs: Sequence[Sequence[float]]) -> tuple[list[float], list[Estimate]]:
    estimates = pooled([unpaired(logs[0], other, scope="runs") for other in logs[1:]])
    return [estimate.p_different() for estimate in estimates], estimates


def pooled(estimates: Sequence[Estimate]) -> list[Estimate]:
    bare = MeasureComparison("speed", True, None, None, (2, 2), margin=1e-9)
    compared = pool([UncorrectedComparison(with_interval(bare, estimate), estimate) for estimate in estimates])
    return [comparison.estimate for comparison in compared if comparison.estimate is not None]


ORDERS = ("one after the other", "shuffled", "blocks")
DRIFTS = ("none", "5%, even", "5%, as it warms", "5%, at once in the middle", "random walk, 1% a run")


def run_order(order: str, num_configurations: int, num_runs: int, rng: np.random.Generator) -> Floats:
    """Return the configuration of each run, in time order."""
    names = np.repeat(np.arange(num_configurations), num_runs)
    if order == "shuffled":
        return rng.permutation(names)
    if order == "blocks":
        return np.concatenate([rng.permutation(num_configurations) for _ in range(num_runs)])
    return names


def drift(kind: str, num_runs: int, rng: np.random.Generator) -> Floats:
    """Return the machine's change of the logarithm of each run's rate."""
    place = np.linspace(0, 1, num_runs)
    return {
        "none": lambda: np.zeros(num_runs),
        "5%, even": lambda: -0.05 * place,
        "5%, as it warms": lambda: -0.05 * (1 - np.exp(-4 * place)),
        "5%, at once in the middle": lambda: -0.05 * (place > 0.5),
        "random walk, 1% a run": lambda: 0.01 * np.cumsum(rng.normal(size=num_runs)),
    }[kind]()


def try_order(
    order: str, kind: str, num_configurations: int, num_runs: int, num_trials: int, seed: int, change: float = 0.05
) -> dict[str, float]:
    """Draw experiments under a drift, and compare the outcomes without and with the adjustment for the order.

    Returns:
        Shares: `covered`, `false` (any false "different" with Holm, all configurations the baseline in truth) and
        `found` (the last one, which then differs by `change`), and each as `plain_...` without the adjustment.
    """
    rng = np.random.default_rng(seed)
    counts = dict.fromkeys(
        (f"{way}{measure}" for way in ("plain_", "") for measure in ("covered", "false", "found")), 0.0
    )
    for trial in range(2 * num_trials):
        differs = trial % 2 == 1
        means = np.zeros(num_configurations)
        means[-1] = change * differs
        names = run_order(order, num_configurations, num_runs, rng)
        values = SPREAD * rng.normal(size=len(names)) + drift(kind, len(names), rng) + means[names]
        logs = [values[names == name].tolist() for name in range(num_configurations)]
        times = [
            [RunTime(place, place + 0.9, None) for place in np.flatnonzero(names == name)]
            for name in range(num_configurations)
        ]
        plain = [unpaired(logs[0], other, scope="runs") for other in logs[1:]]
        model = order_model(logs, times)
        adjusted = plain
        if model is not None and has_to_adjust(model, times):
            adjusted = [model.estimate(logs, place) for place in range(1, num_configurations)]
        for way, estimates in (("plain_", pooled(plain)), ("", pooled(adjusted))):
            ends = [estimate.interval() for estimate in estimates]
            different = np.asarray(holm([estimate.p_different() for estimate in estimates])) <= ALPHA
            counts[f"{way}covered"] += np.mean([a <= m <= b for (a, b), m in zip(ends, means[1:], strict=True)]) / 2
            counts[f"{way}{'found' if differs else 'false'}"] += different[-1] if differs else different.any()
    return {name: float(count) / num_trials for name, count in counts.items()}


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
