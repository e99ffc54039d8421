"""One setting of `verdicts.py`, from its definition: r of 500 rows, 10 seeds that vary half as much as samples.

    python benchmarks/verdict_check.py [--trials 60000] [--seed 20261122]

It shares no code with paratune or with `verdict_models.py`, so that it does not repeat their mistakes: r, and r without
each row, are computed around the means, the true value is an average over 4 million seeds, and quantiles are those of
`scipy.stats`. The values of an Edgeworth expansion of the moments are printed beside the rates.

Dimensions: `B` experiments, `R` seeds, `N` rows.
"""

import argparse

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
N, R, LEVEL, STEP = 500, 10, 0.7, 0.1
BATCH = 20
"""Experiments at a time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=20261122)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    # The standard error of r is (1 - r^2) / sqrt(N); seeds vary half as much.
    slope = (correlation(LEVEL + 1e-4) - correlation(LEVEL - 1e-4)) / 2e-4
    deviation = float(0.5 * (1 - correlation(LEVEL) ** 2) / np.sqrt(N) / slope)
    of_seed = deviation * rng.normal(size=4_000_000)
    truth = float((correlation(LEVEL + STEP + of_seed) - correlation(LEVEL + of_seed)).mean())
    for is_paired in (True, False):
        results = [experiments(rng, deviation, is_paired=is_paired) for _ in range(options.trials // BATCH)]
        error, standard_error, freedom = np.concatenate(results, axis=1)
        print("paired:  " if is_paired else "unpaired:", describe(error - truth, standard_error, freedom))


def correlation(level: npt.ArrayLike) -> Floats:
    """Return the correlation of x with x plus noise of standard deviation exp(-level)."""
    return np.asarray(1 / np.sqrt(1 + np.exp(-2 * np.asarray(level))))


def experiments(rng: np.random.Generator, deviation: float, *, is_paired: bool) -> Floats:
    """Return the difference of mean scores, its standard error and its degrees of freedom, (3, B)."""
    targets, of_row = rng.normal(size=(2, BATCH, 1, N))
    common = rng.normal(size=(BATCH, R))
    sides = []
    for step in (0.0, STEP):
        common = common if is_paired or not step else rng.normal(size=(BATCH, R))
        level = LEVEL + step + deviation * np.sqrt(0.5) * (common + rng.normal(size=(BATCH, R)))
        noise = of_row + 0.3 * rng.normal(size=(BATCH, 1, N)) + 0.8 * rng.normal(size=(BATCH, R, N))
        sides.append(scored(targets, targets + np.exp(-level)[..., None] * noise / np.sqrt(1 + 0.09 + 0.64)))
    (first, p), (second, q) = sides
    if is_paired:
        per_side = [(second - first).var(axis=1, ddof=1) / R]
        shared = covariance(q - p)
    else:
        per_side = [one.var(axis=1, ddof=1) / R for one in (first, second)]
        p_mean, q_mean = (one.mean(axis=1) - one.mean(axis=(1, 2))[:, None] for one in (p, q))
        shared = covariance(p) + covariance(q) - 2 * (p_mean * q_mean).sum(axis=1) / (N - 1) / N
    shared = np.maximum(shared, 0)
    counted = ((R - 1) / (R + 1)) ** 2 * shared
    below = sum(one**2 / (R - 1) for one in per_side) + counted**2 / (N - 1)
    variance = sum(per_side) + shared
    freedom = (variance - shared + counted) ** 2 / below
    return np.stack([(second - first).mean(axis=1), np.sqrt(variance), freedom])


def scored(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return r of each run, (B, R), and pseudovalues of its rows, (B, R, N)."""
    x, y = x - x.mean(axis=-1, keepdims=True), y - y.mean(axis=-1, keepdims=True)
    xx, yy, xy = (one.sum(axis=-1, keepdims=True) for one in (x * x, y * y, x * y))
    # Leaving out a row removes its square, and changes the mean.
    more = N / (N - 1)
    without = (xy - more * x * y) / np.sqrt((xx - more * x * x) * (yy - more * y * y))
    whole = xy / np.sqrt(xx * yy)
    return whole[..., 0], N * whole - (N - 1) * without


def covariance(values: Floats) -> Floats:
    """Return the mean covariance of two runs' means over rows, (B,), from (B, R, N)."""
    centred = values - values.mean(axis=-1, keepdims=True)
    table = centred @ centred.transpose(0, 2, 1) / (N - 1) / N
    return np.asarray((table.sum(axis=(1, 2)) - np.trace(table, axis1=1, axis2=2)) / (R * (R - 1)))


def describe(error: Floats, standard_error: Floats, freedom: Floats) -> str:
    """Return coverage and false "equal" at both ends of the margin, with the values from their moments."""
    t, critical = error / standard_error, stats.t.ppf(0.95, freedom)
    covered = float((abs(t) <= stats.t.ppf(0.975, freedom)).mean())
    upper, lower = float((t <= -critical).mean()), float((t >= critical).mean())
    # t = u / sqrt(v), v a variance that goes with u: mean -cov(u, v) / 2, third cumulant that of u less 3 cov(u, v).
    u, v = error / error.std(), standard_error**2 / error.var()
    together = float(np.cov(u, v)[0, 1])
    mean, third = float(u.mean()) - together / 2, float(stats.skew(u)) - 3 * together
    at = float(stats.t.ppf(0.95, np.median(freedom)))
    shift = -stats.norm.pdf(stats.norm.ppf(0.95)) * (mean + (at * at - 1) * third / 6)
    chance = (0.05 * 0.95 / len(t)) ** 0.5
    return (
        f"covered {covered:.2%}; false equal {upper:.2%} at the upper end, {lower:.2%} at the lower "
        f"(Monte-Carlo error {chance:.2%}; from moments {0.05 + shift:.2%} and {0.05 - shift:.2%})"
    )


if __name__ == "__main__":
    main()
