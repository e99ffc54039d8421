"""Simulated experiments with a known true answer, and the estimates of `paratune.verdicts` on them.

For `tests/unit/verdicts/test_coverage.py`. Each run has an effect of its seed; each sample has an effect shared by all
models, one shared by the models of a configuration, and noise. Scores are computed on the drawn samples; the true
change is the mean over seeds of the score on infinitely many samples.

Dimensions: `R` seeds, `N` samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from paratune.verdicts.estimate import ALPHA, Estimate, change_of_means
from paratune.verdicts.jackknife import Floats, JackknifeScore, of_blocks, of_mean, of_sums
from paratune.verdicts.scores import over_seeds_and_samples

SHARED, OWN, NOISE = 1.0, 0.3, 0.8
"""Standard deviations of a sample's effects: of all models, of a configuration's, of one run's."""
SPREAD = float(np.sqrt(SHARED**2 + OWN**2 + NOISE**2))
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(41)


@dataclass(frozen=True)
class Metric:
    """A score, and its model of samples and seeds."""

    name: str
    num_samples: int
    score: Callable[[Floats, Floats], JackknifeScore | None]
    """Computes a score from the samples, (N,), and the model's outputs, (N,)."""
    true: Callable[[npt.ArrayLike], Floats]
    """The score on infinitely many samples, by the level of the model."""
    samples: Callable[[np.random.Generator, int], Floats]
    outputs: Callable[[Floats, npt.ArrayLike, Floats], Floats]
    """Computes the model's outputs from samples, its level, and effects of standard deviation `SPREAD`."""
    level: float
    step: float
    """Difference of level between the second and the first configuration, if they differ."""
    heavy: bool = False
    """Whether the noise has heavy tails: Student's t of 5 degrees of freedom, of the same variance."""


def _accuracy(_: Floats, right: Floats) -> JackknifeScore:
    return of_mean(right)


def _f1(labels: Floats, predicted: Floats) -> JackknifeScore | None:
    sums = np.stack([labels * predicted, labels + predicted], axis=1)
    return of_sums(sums, lambda sample_sums: 2 * sample_sums[..., 0] / sample_sums[..., 1])


def _pearson(x: Floats, y: Floats) -> JackknifeScore | None:
    sums = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1)

    def score(moments: Floats) -> Floats:
        n, a, b, aa, bb, ab = np.moveaxis(moments, -1, 0)
        return (ab - a * b / n) / np.sqrt((aa - a * a / n) * (bb - b * b / n))

    return of_sums(sums, score)


def _spearman(x: Floats, y: Floats) -> JackknifeScore | None:
    """Return Spearman's rho of values without ties, as in `paratune.verdicts`: without blocks of samples."""

    def score(kept: npt.NDArray[np.int64]) -> float:
        num, ranks = len(kept), np.empty((2, len(kept)))
        ranks[0, x[kept].argsort()] = ranks[1, y[kept].argsort()] = np.arange(num)
        return float(1 - 6 * np.square(ranks[0] - ranks[1]).sum() / (num * (num**2 - 1)))

    return of_blocks(len(x), score)


def _rmse(x: Floats, y: Floats) -> JackknifeScore | None:
    sums = np.stack([np.ones_like(x), (x - y) ** 2], axis=1)
    return of_sums(sums, lambda sample_sums: np.sqrt(sample_sums[..., 1] / sample_sums[..., 0]))


def _true_f1(share: float) -> Callable[[npt.ArrayLike], Floats]:
    def true(level: npt.ArrayLike) -> Floats:
        hit, false = share * ndtr(np.asarray(level) / SPREAD), (1 - share) * ndtr(-np.asarray(level) / SPREAD)
        return 2 * hit / (hit + false + share)

    return true


def _labels(share: float) -> Callable[[np.random.Generator, int], Floats]:
    return lambda rng, num: (rng.random(num) < share).astype(float)


def _classify(labels: Floats, level: npt.ArrayLike, effects: Floats) -> Floats:
    return np.where(labels == 1, level + effects > 0, effects - level > 0).astype(float)


def _regress(targets: Floats, level: npt.ArrayLike, effects: Floats) -> Floats:
    return targets + np.exp(-np.asarray(level)) * effects / SPREAD


METRICS = (
    Metric("accuracy, 1,000 rows", 1000, _accuracy, lambda level: ndtr(np.asarray(level) / SPREAD),
           lambda rng, num: np.zeros(num), lambda _, level, effects: (level + effects > 0).astype(float), 1.2, 0.1),
    Metric("F1, 400 rows", 400, _f1, _true_f1(0.3), _labels(0.3),
           _classify, 1.2, 0.15),
    Metric("F1, 400 rows, 10% positive", 400, _f1, _true_f1(0.1), _labels(0.1),
           _classify, 1.6, 0.2),
    Metric("Pearson r, 500 rows", 500, _pearson, lambda level: 1 / np.sqrt(1 + np.exp(-2 * np.asarray(level))),
           lambda rng, num: rng.normal(size=num), _regress, 0.7, 0.1),
    Metric("RMSE, 500 rows, heavy tails", 500, _rmse, lambda level: np.exp(-np.asarray(level)),
           lambda rng, num: rng.normal(size=num), _regress, 0.7, 0.05, heavy=True),
)  # fmt: skip

FEW_ROWS = replace(METRICS[0], name="accuracy of 96%, 100 rows", num_samples=100, level=2.3, step=0.3)
"""Scores of two seeds are often equal."""
SPEARMAN = replace(
    METRICS[3],
    name="Spearman rho, 500 rows",
    score=_spearman,
    # Pearson, Philosophical Transactions A 1907: of two normal variables.
    true=lambda level: 6 / np.pi * np.arcsin(METRICS[3].true(level) / 2),
)
"""Leaves out blocks of samples instead of single samples."""


@dataclass(frozen=True)
class Setting:
    """An experiment: the score, the number of seeds, and their variation."""

    metric: Metric
    num_seeds: int
    ratio: float
    """Standard deviation of a score over seeds, divided by that over samples."""
    is_paired: bool = True
    differ: bool = True
    """Whether the configurations differ at all."""
    cluster_size: int = 1
    """Samples per cluster: half of the variance of each effect of a sample is that of its cluster."""
    knows_clusters: bool = True
    """Whether the procedure uses the clusters."""


def seed_deviation(setting: Setting) -> float:
    """Return the standard deviation of a run's level that gives the setting's ratio."""
    metric = setting.metric
    if not setting.ratio:
        return 0.0
    rng = np.random.default_rng(0)
    samples = metric.samples(rng, 40_000)
    scored = metric.score(
        samples, metric.outputs(samples, metric.level, _effects(rng, (40_000,), metric.heavy) * SPREAD)
    )
    assert scored is not None
    # Pseudovalues of single samples or of blocks.
    error = float(scored.pseudovalues.std()) * np.sqrt(40_000 / len(scored.pseudovalues) / metric.num_samples)
    slope = (metric.true(metric.level + 0.01) - metric.true(metric.level - 0.01)) / 0.02
    return abs(setting.ratio * error / float(slope))


def true_change(setting: Setting, deviation: float) -> float:
    """Return the difference of the mean scores over seeds, second minus first, on infinitely many samples."""
    if not setting.differ:
        return 0.0
    low, high = (
        float(WEIGHTS @ setting.metric.true(level + deviation * NODES) / WEIGHTS.sum())
        for level in (setting.metric.level, setting.metric.level + setting.metric.step)
    )
    return high - low


def draw(
    setting: Setting, deviation: float, rng: np.random.Generator
) -> tuple[list[JackknifeScore], list[JackknifeScore]] | None:
    """Return the scores of all runs of both configurations; None where one is undefined.

    If runs are paired, those of one seed share half of the variance of a seed.
    """
    metric, num = setting.metric, setting.num_seeds
    samples = metric.samples(rng, metric.num_samples)
    size = setting.cluster_size
    clusters = np.arange(metric.num_samples) // size

    def effects_of_samples(heavy: bool = False) -> Floats:
        own = _effects(rng, (metric.num_samples,), heavy)
        if size == 1:
            return own
        return np.asarray(np.sqrt(0.5) * (own + rng.normal(size=clusters[-1] + 1)[clusters]))

    of_all = SHARED * effects_of_samples()
    of_seed = deviation * np.sqrt(0.5) * rng.normal(size=(2, num))
    if setting.is_paired:
        of_seed[1] = of_seed[0]
    scores: tuple[list[JackknifeScore], list[JackknifeScore]] = ([], [])
    for side in (0, 1):
        of_side = OWN * effects_of_samples()
        level = metric.level + (metric.step if side and setting.differ else 0.0)
        for seed in range(num):
            effects = of_all + of_side + NOISE * effects_of_samples(metric.heavy)
            own = level + of_seed[side, seed] + deviation * np.sqrt(0.5) * rng.normal()
            scored = metric.score(samples, metric.outputs(samples, own, effects))
            if scored is None:
                return None
            scores[side].append(scored.by_cluster(clusters) if size > 1 and setting.knows_clusters else scored)
    return scores


def _effects(rng: np.random.Generator, shape: tuple[int, ...], heavy: bool) -> Floats:
    """Return effects of standard deviation 1."""
    return rng.standard_t(5, shape) / np.sqrt(5 / 3) if heavy else rng.normal(size=shape)


@dataclass(frozen=True)
class Rates:
    """Shares of the trials in which an interval covered the true change, and in which an outcome was found."""

    num_trials: int
    covered: float
    different: float
    equal: float
    """At the edge of a wide margin: each end of the margin is used as the true change, and the worse one counts."""
    half_width: float

    def error(self, share: float) -> float:
        """Return the standard error of a share of the trials."""
        return float(np.sqrt(share * (1 - share) / self.num_trials))


def try_quality(setting: Setting, num_trials: int, seed: int | Sequence[int]) -> Rates:
    """Draw experiments, and count the outcomes of paratune's interval."""
    rng = np.random.default_rng(seed)
    deviation = seed_deviation(setting)

    def trial() -> Estimate | None:
        drawn = draw(setting, deviation, rng)
        return None if drawn is None else over_seeds_and_samples(*drawn, is_paired=setting.is_paired)

    return _count(trial, true_change(setting, deviation), num_trials)


@dataclass(frozen=True)
class Speeds:
    """Runs of two configurations: logarithms of their rates."""

    num_runs: tuple[int, int]
    deviations: tuple[float, float] = (0.01, 0.01)
    slow: float = 0.0
    """Chance that a run is slowed down by 3%, independently of its configuration."""
    change: float = 0.05


def try_speed(speeds: Speeds, num_trials: int, seed: int) -> Rates:
    """Draw experiments, and count the outcomes of paratune's interval."""
    rng = np.random.default_rng(seed)

    def trial() -> Estimate:
        sides = [
            change + deviation * rng.normal(size=num) - 0.03 * (rng.random(num) < speeds.slow)
            for num, deviation, change in zip(speeds.num_runs, speeds.deviations, (0.0, speeds.change), strict=True)
        ]
        return change_of_means(sides[0].tolist(), sides[1].tolist(), scope="runs")

    return _count(trial, speeds.change, num_trials)


FAR = 1e9


def _count(trial: Callable[[], Estimate | None], true: float, num_trials: int) -> Rates:
    covered, different, below, above, widths, num = 0, 0, 0, 0, 0.0, 0
    while num < num_trials:
        estimate = trial()
        if estimate is None:
            continue
        num += 1
        low, high = estimate.interval()
        covered += low <= true <= high
        different += estimate.p_different() <= ALPHA
        below += estimate.p_equal(-FAR, true) <= ALPHA
        above += estimate.p_equal(true, FAR) <= ALPHA
        widths += (high - low) / 2
    return Rates(num, covered / num, different / num, max(below, above) / num, widths / num)
