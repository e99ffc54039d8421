"""Simulated comparisons of speed by `paratune.verdicts.judge` itself: drifts, unequal variation, negative controls.

    python benchmarks/verdict_speeds.py [--trials 2000] [--only TEXT]

Prints Markdown; each line is a setting with random numbers of its own. Logarithms of rates are normal with a standard
deviation of 1%. "found" is the last configuration, in experiments in which it is 5% faster.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from paratune.records.finished import RunRecord
from paratune.records.typed import RecordedData, RunFile, Summary, Throughput
from paratune.verdicts import Group, finding, judge
from paratune.verdicts.estimate import Estimate

SPREAD = 0.01
Floats = npt.NDArray[np.float64]
START = datetime(2026, 11, 1, tzinfo=UTC)
CHANGE = 0.05
FIRST = "one after the other"
Make = Callable[[Floats, np.random.Generator], list[Group]]
"""Returns the configurations of an experiment with these logarithms of speeds."""
SHAPES: dict[str, Callable[[Floats], Floats]] = {
    "none": lambda x: 0 * x,
    "5%, even": lambda x: -0.05 * x,
    "5%, as it warms": lambda x: -0.05 * (1 - np.exp(-4 * x)),
    "5%, u": lambda x: 0.2 * (x - 0.5) ** 2,
    "5%, hill": lambda x: -0.2 * (x - 0.5) ** 2,
    "5%, u, lowest at 70%": lambda x: 0.05 * ((x - 0.7) / 0.7) ** 2,
    "5%, v": lambda x: 0.1 * np.abs(x - 0.5),
    "5%, one wave": lambda x: 0.025 * np.sin(2 * np.pi * x),
    "5%, at once in the middle": lambda x: -0.05 * (x > 0.5),
}
FEW = ("none", "5%, even", "5%, u", "5%, one wave", "5%, at once in the middle")
"""Drifts for two configurations, and for orders in which the configurations take turns."""
SPREADS = {
    "all vary alike": (1.0,) * 9,
    "the baseline 3 times as much": (3.0, *(1.0,) * 8),
    "the baseline 10 times as much": (10.0, *(1.0,) * 8),
    "one of the others 3 times as much": (1.0,) * 4 + (3.0,) + (1.0,) * 4,
    "one of the others 10 times as much": (1.0,) * 4 + (10.0,) + (1.0,) * 4,
    "by factors of 0.5, 1 and 2": (0.5, 1.0, 2.0) * 3,
    "three configurations": (1.0,) * 3,
    "three, the baseline 3 times as much": (3.0, 1.0, 1.0),
}
"""Standard deviations of the logarithms of rates, in per cent; the first is the baseline's."""


def timed_run(name: str, rate: float, place: int | None = None, config: dict[str, Any] | None = None) -> RunRecord:
    """Return a run with its speed, and with its time and learning rate where these are known."""
    began, ended = (
        None if place is None else (START + timedelta(minutes=10 * place + minutes)).isoformat() for minutes in (0, 9)
    )
    summary = Summary(finished=ended, throughput=Throughput(samples_per_s=rate))
    run = RunFile(created=began, config=config or {})
    if config:  # without machine and data, a record does not tell what cannot differ
        run = run.model_copy(
            update={"hardware": [{"cpu_model": "one"}], "data": {"train": RecordedData(fingerprint="1")}}
        )
    return RunRecord(name, Path(), run, summary)


def outcomes(groups: Sequence[Group], truth: Floats) -> dict[str, Any]:
    """Return whether the intervals of all others cover the truth, and which are "different"."""
    verdicts = judge(groups, groups[0].label)
    told = [(verdict.speed, true) for verdict, true in zip(verdicts, truth[1:] - truth[0], strict=True)]
    told = [(speed, true) for speed, true in told if speed.low is not None and speed.high is not None]
    return {
        "covered": np.asarray([np.log1p(one.low) <= true <= np.log1p(one.high) for one, true in told]),
        "different": np.asarray([one.outcome == "different" for one, _ in told]),
        "half_width": float(np.mean([(one.high - one.low) / 2 for one, _ in told])),
    }


def measured(make: Make, num: int, trials: int, name: str) -> str:
    """Return the figures of a setting in per cent, as cells of a table."""
    rng = np.random.default_rng(crc32(name.encode()))
    covered, widths, false, found = np.zeros(0), 0.0, 0, 0
    for trial in range(2 * trials):
        truth = np.zeros(num)
        truth[-1] = CHANGE * (trial % 2)
        groups = make(truth, rng)  # may set more of the truth
        one = outcomes(groups, truth)
        covered = covered + one["covered"] if len(covered) else one["covered"].astype(float)
        widths += one["half_width"]
        found += trial % 2 and one["different"][-1]
        false += (1 - trial % 2) and one["different"].any()
    shares = (covered.mean() / 2, covered.min() / 2, false, found)
    return " | ".join(f"{100 * share / trials:.1f}" for share in shares) + f" | {50 * widths / trials:.1f}"


def run_order(order: str, num: int, num_runs: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return the configuration of each run, in time order."""
    if order == "blocks":
        return np.concatenate([rng.permutation(num) for _ in range(num_runs)])
    names = np.repeat(np.arange(num), num_runs)
    return rng.permutation(names) if order == "shuffled" else names


def drifting(order: str, kind: str, num_runs: int) -> Make:
    def make(truth: Floats, rng: np.random.Generator) -> list[Group]:
        names = run_order(order, len(truth), num_runs, rng)
        shape = SHAPES[kind](np.linspace(0, 1, len(names)))
        rates = np.exp(truth[names] + SPREAD * rng.normal(size=len(names)) + shape)
        runs = [timed_run(f"{name}-{at}", rate, at) for at, (name, rate) in enumerate(zip(names, rates, strict=True))]
        return [Group(str(own), tuple(runs[at] for at in np.flatnonzero(names == own))) for own in range(len(truth))]

    return make


def varying(spreads: Sequence[float], num_runs: int) -> Make:
    def make(truth: Floats, rng: np.random.Generator) -> list[Group]:
        logs = truth[:, None] + SPREAD * np.asarray(spreads)[:, None] * rng.normal(size=(len(truth), num_runs))
        return [
            Group(str(at), tuple(timed_run(f"{at}-{n}", r) for n, r in enumerate(np.exp(logs[at]))))
            for at in range(len(truth))
        ]

    return make


def controlled(of_machine: float, num_rates: int, *, knows: bool) -> Make:
    """Return experiments in which the machine changes the speed of each configuration; each way has learning rates."""

    def make(truth: Floats, rng: np.random.Generator) -> list[Group]:
        truth[-num_rates:] = truth[-1]
        own = np.exp(truth + of_machine * rng.normal(size=len(truth)))
        groups = []
        for at, rate in enumerate(own):
            way = at // num_rates
            config = {"strategy": {"kind": str(way)}, "train": {"learning_rate": float(at % num_rates)}}
            rates = rate * np.exp(SPREAD * rng.normal(size=3))
            runs = (timed_run(f"{at}-{n}", r, config=config if knows else None) for n, r in enumerate(rates))
            groups.append(Group(str(at), tuple(runs)))
        assert groups[0].cannot_differ(groups[1]) == knows  # or both lines of the table would be the same
        return groups

    return make


def lines() -> Iterator[tuple[str, str, int, Make]]:
    """Yield the section, the first cells, the number of configurations and the experiments of each line."""
    for num, runs, order in ((9, 3, FIRST), (9, 3, "blocks"), (9, 3, "shuffled"), (2, 3, FIRST), (2, 5, FIRST)):
        for kind in SHAPES if (num, order) == (9, FIRST) else FEW:
            yield "order", f"{order} | {kind} | {num} x {runs}", num, drifting(order, kind, runs)
    for kind, spreads in SPREADS.items():
        for runs in (2, 3, 5) if kind in tuple(SPREADS)[:2] else (3, 5):
            yield "spread", f"{kind} | {runs}", len(spreads), varying(spreads, runs)
    for of_machine in (0.0, 0.01, 0.03):
        for ways, rates in ((3, 3), (2, 2)):
            for knows in (False, True):
                name = f"{of_machine:.0%} | {ways} x {rates} | {'with' if knows else 'without'}"
                yield "control", name, ways * rates, controlled(of_machine, rates, knows=knows)


HEADS = {
    "order": "order | drift | configurations x runs",
    "spread": "spread of runs | runs each",
    "control": "the machine changes each configuration by | ways x learning rates, 3 runs each | negative control",
}
FIGURES = "covered | least covered | any false | found | half width"


def main() -> None:
    # The number of runs that would be needed takes most of the time, and changes no outcome.
    nothing = finding.plan(Estimate(0.0, (), 0.0, 0, "runs"), CHANGE)
    finding.plan = lambda *_: nothing
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000, help="experiments with a change, and as many without")
    parser.add_argument("--only", default="", help="only lines that contain this text, such as u or control")
    options = parser.parse_args()
    last = ""
    for section, name, num, make in lines():
        if options.only not in f"{section} | {name}":
            continue
        if section != last:
            head = HEADS[section]
            print(f"\n| {head} | {FIGURES} |", f"|{'---|' * (head.count('|') + 1)}{'---:|' * 5}", sep="\n")
            last = section
        print(f"| {name} | {measured(make, num, options.trials, name)} |", flush=True)


if __name__ == "__main__":
    main()
