"""Coverage of the intervals of `paratune compare`, and its error rates, by simulation; prints Markdown.

    python benchmarks/verdicts.py --out verdicts.jsonl [--trials 2000]

Each line of --out is a setting; existing settings are not simulated again.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from verdict_models import (
    FEW_ROWS,
    METRICS,
    SPEARMAN,
    Rates,
    Setting,
    Speeds,
    draw,
    ours,
    seed_deviation,
    true_change,
    try_family,
    try_quality,
    try_speed,
)
from verdict_orders import try_factors, try_looks

from paratune.verdicts.estimate import Estimate, holm, paired
from paratune.verdicts.jackknife import Floats, JackknifeScore
from paratune.verdicts.pooling import pool

RATIOS = (0.0, 0.5, 2.0)
SEEDS = (3, 5, 10)
FEW = 400
"""Experiments for slow procedures."""
SPEEDS = {
    "pairs": Speeds((0, 0), of_pair=0.01),
    "pairs, nothing in common": Speeds((0, 0)),
    "no pairs": Speeds((0, 0), is_paired=False),
    "no pairs, one side 3 times as wild": Speeds((0, 0), deviations=(0.01, 0.03), is_paired=False),
    "pairs, 1 run of 10 is slowed by 3%": Speeds((0, 0), slow=0.1),
    "no pairs, 1 run of 10 is slowed by 3%": Speeds((0, 0), is_paired=False, slow=0.1),
}
FAMILIES = {
    "all vary alike": (0.01,) * 9,
    "one of the others 3 times as much": (0.01,) * 4 + (0.03,) + (0.01,) * 4,
    "the baseline 3 times as much": (0.03,) + (0.01,) * 8,
    "by factors of 0.5, 1 and 2": (0.005, 0.01, 0.02) * 3,
    "three configurations": (0.01,) * 3,
    "three configurations, the baseline 3 times as much": (0.03, 0.01, 0.01),
}
"""Standard deviations of the logarithms of rates: of the baseline, of others like it, and of one that is 5% faster."""
LOOKS: dict[str, tuple[tuple[int, ...], int | None]] = {
    "3, then 6 runs": ((3, 6), None),
    "3, 5, 8 runs": ((3, 5, 8), None),
    "2, 3, 4, 5 runs": ((2, 3, 4, 5), None),
    "3, then 10 runs": ((3, 10), None),
    "--until, 3 to 10 runs": (tuple(range(3, 11)), 10),
    "--until, 3 to 20 runs": (tuple(range(3, 21)), 20),
}
"""Runs of a configuration at each look, and the planned number of runs."""
UNEQUAL = ((2, 3), (2, 5), (2, 10), (3, 5), (3, 10))
"""Runs a side."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("verdicts.jsonl"))
    parser.add_argument("--trials", type=int, default=2000, help="experiments with a change, and as many without")
    parser.add_argument("--only", default="", help="only settings whose name contains this text, such as Pearson")
    options = parser.parse_args()
    existing = read(options.out)
    for number, (name, simulate) in enumerate(everything(options.trials)):
        if name in existing or options.only not in name:
            continue
        began = time.perf_counter()
        existing[name] = simulate(number)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, **existing[name], "took_s": time.perf_counter() - began}) + "\n")
    print(tables(existing, options.trials))


def read(path: Path) -> dict[str, dict[str, float]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {one.pop("name"): one for one in map(json.loads, lines)}


Simulate = Callable[[int], dict[str, float]]


def everything(trials: int) -> Iterator[tuple[str, Simulate]]:
    """Yield every setting by name, with a function that simulates it from a random seed."""
    for kind, speeds in SPEEDS.items():
        for num in SEEDS:
            yield f"speed|{kind}|{num}", speed_of(replace(speeds, num_runs=(num, num)), trials)
    for metric in METRICS:
        for num in SEEDS:
            for ratio in RATIOS:
                yield f"quality|{metric.name}|{num}|{ratio}", quality_of(Setting(metric, num, ratio), trials)
    for metric in METRICS[:2]:
        for num in SEEDS:
            for ratio in RATIOS:
                setting = Setting(metric, num, ratio, is_paired=False)
                yield f"unpaired|{metric.name}|{num}|{ratio}", quality_of(setting, trials)
    for metric in METRICS:
        yield f"samples|{metric.name}", quality_of(Setting(metric, 1, 0.0), trials)
    for name in OTHERS:
        for num in SEEDS:
            for ratio in RATIOS[1:]:
                of_name = min(trials, FEW) if "bootstrap" in name else trials
                yield f"other|{name}|{num}|{ratio}", other_of(name, Setting(METRICS[0], num, ratio), of_name)
    for num in (2, 4, 9):
        yield f"several|{num}", lambda seed, num=num: several(num, trials, seed)
    # New settings come last: the random numbers of a setting depend on its position.
    for wild, deviations in (("", (0.01, 0.01)), (", the smaller side 3 times as wild", (0.03, 0.01))):
        for few, many in UNEQUAL:
            speeds = Speeds((few, many), deviations=deviations, is_paired=False)
            yield f"speed|no pairs{wild}|{few}, {many}", speed_of(speeds, trials)
    for metric in METRICS:
        for ratio in RATIOS:
            yield f"quality|{metric.name}|2|{ratio}", quality_of(Setting(metric, 2, ratio), trials)
    for num in (2, 3, 5):
        for ratio in RATIOS:
            yield f"quality|{FEW_ROWS.name}|{num}|{ratio}", quality_of(Setting(FEW_ROWS, num, ratio), trials)
    for metric in (METRICS[0], FEW_ROWS):
        for ratio in RATIOS:
            setting = Setting(metric, 2, ratio, is_paired=False)
            yield f"unpaired|{metric.name}|2|{ratio}", quality_of(setting, trials)
    for ratio in RATIOS:
        yield f"quality|{SPEARMAN.name}|3|{ratio}", quality_of(Setting(SPEARMAN, 3, ratio), min(trials, FEW))
    for name, deviations in FAMILIES.items():
        for num in (3, 5):
            yield f"family|{name}|{num}", family_of(deviations, num, trials)

    for name, (schedule, planned) in LOOKS.items():
        for num_others in (1, 8):
            yield f"looks|{name}|{num_others}", looks_of(schedule, planned, num_others, trials)
    for metric, num, ratio in ((METRICS[0], 3, 0.5), (METRICS[0], 5, 0.5), (METRICS[1], 3, 0.5), (METRICS[0], 1, 0.0)):
        for size in (5, 20):
            for knows in (False, True):
                setting = Setting(metric, num, ratio, cluster_size=size, knows_clusters=knows)
                description = "by cluster" if knows else "rows as independent"
                yield f"clusters|{metric.name}|{num}|{size}|{description}", quality_of(setting, trials)
    for change in (0.01, 0.02):
        for num in (2, 3):
            yield f"factors|{change:.0%}|{num}", factors_of(change, num, trials)


def factors_of(change: float, num_runs: int, trials: int) -> Simulate:
    return lambda seed: try_factors(change, num_runs, trials, seed)


def looks_of(schedule: Sequence[int], planned: int | None, num_others: int, trials: int) -> Simulate:
    """Return false alarms without a change, and the detection of a change of two standard deviations."""

    def simulate(seed: int) -> dict[str, float]:
        same = try_looks(schedule, planned, 0.0, num_others, trials, 2 * seed)
        changed = try_looks(schedule, planned, 0.02, num_others, trials, 2 * seed + 1)
        kept = {name: same[name] for name in ("naive", "false")}
        return kept | {name: changed[name] for name in ("naive_found", "found", "first", "covered", "runs")}

    return simulate


def speed_of(speeds: Speeds, trials: int) -> Simulate:
    return lambda seed: both(
        try_speed(speeds, trials, 2 * seed), try_speed(replace(speeds, change=0.0), trials, 2 * seed + 1)
    )


def family_of(deviations: Sequence[float], num_runs: int, trials: int) -> Simulate:
    return lambda seed: {
        f"{name}_{figure}": share
        for name, way in (("pooled", pool), ("each", list))
        for figure, share in try_family(deviations, num_runs, trials, seed, way).items()
    }


def quality_of(setting: Setting, trials: int) -> Simulate:
    same = replace(setting, differ=False)
    return lambda seed: both(try_quality(setting, trials, 2 * seed), try_quality(same, trials, 2 * seed + 1))


def both(changed: Rates, same: Rates) -> dict[str, float]:
    """Return coverage over all experiments, false "different" without a change, false "equal" with one."""
    covered = (changed.covered + same.covered) / 2
    return {"covered": covered, "different": same.different, "equal": changed.equal, "half_width": changed.half_width}


def several(num_others: int, trials: int, seed: int) -> dict[str, float]:
    """Return how often any of several configurations equal to the baseline is reported as different."""
    rng = np.random.default_rng(seed)
    plain = adjusted = 0
    for _ in range(trials):
        base = rng.normal(size=5).tolist()
        p_values = [paired(base, rng.normal(size=5).tolist(), scope="runs").p_different() for _ in range(num_others)]
        plain += min(p_values) <= 0.05
        adjusted += min(holm(p_values)) <= 0.05
    return {"plain": plain / trials, "holm": adjusted / trials}


def percentile_bootstrap(values: Floats, rng: np.random.Generator, *, over_seeds: bool) -> tuple[float, float]:
    """Return the 95% interval of the mean of (R, N) values: seeds, then samples, are drawn with replacement."""
    num_seeds, num_samples = values.shape
    means = np.empty(200)
    for place in range(len(means)):
        rows = rng.integers(0, num_seeds, num_seeds) if over_seeds else np.arange(num_seeds)
        counts = np.bincount(rng.integers(0, num_samples, num_samples), minlength=num_samples)
        means[place] = values[rows].mean(axis=0) @ counts / num_samples
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def _of_seeds(first: Sequence[JackknifeScore], second: Sequence[JackknifeScore]) -> Estimate:
    return paired([one.score for one in first], [one.score for one in second], scope="seeds")


def _of_hillis(first: list[JackknifeScore], second: list[JackknifeScore]) -> tuple[float, float]:
    from scipy import special

    estimate = ours(first, second, True)
    side = estimate.sides[0]
    freedom = (estimate.variance / side.variance) ** 2 * (side.num_runs - 1) if side.variance else np.inf
    half = float(special.stdtrit(freedom, 0.975)) * estimate.standard_error
    return estimate.value - half, estimate.value + half


OTHERS = {
    "what is shipped": lambda first, second, _: ours(first, second, True).interval(),
    "percentile bootstrap over seeds and samples": lambda first, second, rng: percentile_bootstrap(
        np.stack([b.pseudovalues - a.pseudovalues for a, b in zip(first, second, strict=True)]), rng, over_seeds=True
    ),
    "percentile bootstrap over samples, seeds averaged": lambda first, second, rng: percentile_bootstrap(
        np.stack([b.pseudovalues - a.pseudovalues for a, b in zip(first, second, strict=True)]), rng, over_seeds=False
    ),
    "paired t test over seeds": lambda first, second, _: _of_seeds(first, second).interval(),
    "Hillis's degrees of freedom (κ = 1)": lambda first, second, _: _of_hillis(first, second),
}


def other_of(name: str, setting: Setting, trials: int) -> Simulate:
    def simulate(seed: int) -> dict[str, float]:
        rng = np.random.default_rng(seed)
        deviation = seed_deviation(setting)
        true, covered = true_change(setting, deviation), 0
        for _ in range(trials):
            drawn = draw(setting, deviation, rng)
            assert drawn is not None
            low, high = OTHERS[name](*drawn, rng)
            covered += low <= true <= high
        return {"covered": covered / trials}

    return simulate


def tables(results: dict[str, dict[str, float]], trials: int) -> str:
    lines = [
        f"{trials:,} experiments with a change, {trials:,} without, in each line. Monte-Carlo error of a coverage "
        f"of 95%: {_error(0.95, 2 * trials)}; of a false alarm of 5%: {_error(0.05, trials)}. All in per cent.",
        "",
    ]
    for kind, title in (
        ("speed", "Speed"),
        ("quality", "Quality, runs paired by seed"),
        ("unpaired", "Quality, other seeds on both sides"),
        ("samples", "Quality over samples alone, one model each"),
        ("clusters", "Quality on rows that belong together"),
    ):
        rows = {name: one for name, one in results.items() if name.startswith(f"{kind}|")}
        if not rows:
            continue
        worst = [min(one["covered"] for one in rows.values()), max(one["covered"] for one in rows.values())]
        lines += [f"## {title}", "", f"Coverage from {_share(worst[0])} to {_share(worst[1])}.", ""]
        names = {
            "speed": "experiment | runs a side",
            "samples": "score",
            "clusters": "score | seeds | rows of a cluster | intervals",
        }.get(kind, "score | seeds | seeds / samples")
        lines += [f"| {names} | covered | false different | false equal | half width |"]
        lines += ["|---" * (names.count("|") + 1) + "|---:|---:|---:|---:|"]
        for name, one in rows.items():
            cells = " | ".join(name.split("|")[1:])
            figures = " | ".join(_share(one[key]) for key in ("covered", "different", "equal"))
            lines += [f"| {cells} | {figures} | {100 * one['half_width']:.2f} |"]
        lines += [""]
    return "\n".join(
        [
            *lines,
            *_of_others(results, trials),
            *_of_several(results),
            *_of_families(results),
            *_of_looks(results),
            *_of_factors(results),
        ]
    )


def _of_others(results: dict[str, dict[str, float]], trials: int) -> Iterator[str]:
    if not any(name.startswith("other|") for name in results):
        return
    columns = [(num, ratio) for ratio in RATIOS[1:] for num in SEEDS]
    yield from ("## Other procedures", "")
    yield (
        f"Coverage; accuracy on 1,000 rows; {trials:,} experiments, of "
        f"bootstraps {min(trials, FEW)} with 200 resamples (Monte-Carlo error {_error(0.95, min(trials, FEW))})."
    )
    yield ""
    yield "| procedure | " + " | ".join(f"{num} seeds, {ratio}" for num, ratio in columns) + " |"
    yield "|---" + "|---:" * len(columns) + "|"
    for name in OTHERS:
        covered = [results[f"other|{name}|{num}|{ratio}"]["covered"] for num, ratio in columns]
        yield f"| {name} | " + " | ".join(map(_share, covered)) + " |"
    yield ""


def _of_several(results: dict[str, dict[str, float]]) -> Iterator[str]:
    if not any(name.startswith("several|") for name in results):
        return
    yield from ("## Several configurations that are the baseline in truth", "", "5 runs of each.", "")
    yield from (
        "| configurations beside the baseline | any false different | the same without Holm |",
        "|---|---:|---:|",
    )
    for num in (2, 4, 9):
        one = results[f"several|{num}"]
        yield f"| {num} | {_share(one['holm'])} | {_share(one['plain'])} |"


def _of_families(results: dict[str, dict[str, float]]) -> Iterator[str]:
    families = {name: one for name, one in results.items() if name.startswith("family|")}
    if not families:
        return
    yield from ("", "## Speed of several configurations, one of them 5% faster", "")
    columns = ("found", "false, by itself", "any false, Holm")
    ways = ("pooled", "each pair by itself")
    yield (
        "| spread of runs | runs each | " + " | ".join(f"{way}: {column}" for way in ways for column in columns) + " |"
    )
    yield "|---|---:|" + "---:|" * 6
    for name, one in families.items():
        keys = [f"{way}_{figure}" for way in ("pooled", "each") for figure in ("found", "plain", "holm")]
        yield f"| {' | '.join(name.split('|')[1:])} | " + " | ".join(_share(one[key]) for key in keys) + " |"


def _of_looks(results: dict[str, dict[str, float]]) -> Iterator[str]:
    lines = {name: one for name, one in results.items() if name.startswith("looks|")}
    if not lines:
        return
    yield from ("", "## Runs that are added until there is a verdict", "")
    keys = ("naive", "false", "naive_found", "found", "first", "covered")
    titles = (
        "any false, each look at 5%", "any false, corrected", "found, each look at 5%", "found, corrected",
        "found at the first look", "covered at the end",
    )  # fmt: skip
    yield f"| looks | configurations beside the baseline | {' | '.join(titles)} | runs each |"
    yield "|---|---:|" + "---:|" * (len(titles) + 1)
    for name, one in lines.items():
        figures = " | ".join(_share(one[key]) for key in keys)
        yield f"| {' | '.join(name.split('|')[1:])} | {figures} | {one['runs']:.1f} |"


def _of_factors(results: dict[str, dict[str, float]]) -> Iterator[str]:
    lines = {name: one for name, one in results.items() if name.startswith("factors|")}
    if not lines:
        return
    yield from ("", "## Main effects of a matrix of 3 x 2 x 2", "")
    keys = ("found", "pair_found", "false", "pair_false", "interaction")
    titles = (
        "found: main effect",
        "found: pair",
        "any false: main effects",
        "any false: pairs",
        "any false interaction",
    )
    yield f"| true change | runs each | {' | '.join(titles)} |"
    yield "|---|---:|" + "---:|" * len(titles)
    for name, one in lines.items():
        yield f"| {' | '.join(name.split('|')[1:])} | " + " | ".join(_share(one[key]) for key in keys) + " |"


def _share(value: float) -> str:
    return f"{100 * value:.1f}"


def _error(share: float, trials: int) -> str:
    return f"{100 * (share * (1 - share) / trials) ** 0.5:.2f}"


if __name__ == "__main__":
    main()
