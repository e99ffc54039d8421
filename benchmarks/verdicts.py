"""False alarms, coverage and power of `paratune compare`, and of "best in quality", by simulation; prints Markdown.

    OMP_NUM_THREADS=1 python benchmarks/verdicts.py --out verdicts.jsonl [--trials 2000] [--only quality]

Each experiment goes through `paratune.verdicts.judge` and the selection of `paratune.reports.matrix`, as those of the
commands do. Only the reading of prediction files is replaced, and the plan of further runs left out. Each line of --out
is a setting; existing settings are not simulated again. The random seed of a setting follows from its name.
"""

import argparse
import itertools
import json
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from verdict_orders import try_factors

from paratune.records.finished import RunRecord
from paratune.records.sweep import Axis, CellRecord, Look, SweepRecord
from paratune.records.typed import BatchSizes, RunFile, Summary, TaskFacts, Throughput
from paratune.reports.outcomes import CandidateGroup, candidate_groups
from paratune.reports.systems.model import CellRun
from paratune.verdicts import Group, LookHistory, Margin, MeasureComparison, Verdict, finding, judge, scores
from paratune.verdicts.estimate import ALPHA
from paratune.verdicts.scoring import PredictionRows

SHARED, OWN, NOISE = 1.0, 0.3, 0.8
"""Standard deviations of a row's effects: on all models, on those of a configuration, on one run."""
SPREAD = float(np.sqrt(SHARED**2 + OWN**2 + NOISE**2))
LEVEL = 85.0
"""Mean score in per cent."""


@dataclass(frozen=True)
class Setting:
    """Configurations that are equal, or of which the last one is better and faster."""

    num_configurations: int
    num_seeds: int
    num_rows: int
    cluster_size: int = 1
    """Rows that belong together: half of the variance of each effect of a row is that of its cluster."""
    deviation: float = 1.0
    """Of the score over seeds, in points."""
    common: float = 0.0
    """Part of that variance that the runs of a seed share over all configurations."""
    better: float = 2.0
    """By how many points the last configuration is better."""
    faster: float = 0.03
    """By how much, in logarithms of samples/s, which vary by 1% from run to run."""
    spreads: tuple[float, float] = (1.0, 1.0)
    """How much more scores and rates of the baseline, and of the last configuration, vary."""
    looks: tuple[int, ...] = ()
    """Seeds at each look; empty for one look."""
    is_planned: bool = False
    """Whether the largest number of seeds is known, as by `--until`."""


QUALITY = [
    *(Setting(k, seeds, 3000) for k in (2, 9, 24) for seeds in (2, 3, 5, 10)),
    *(Setting(k, 3, 500) for k in (2, 9, 24)),
    *(Setting(9, seeds, 500) for seeds in (2, 5)),
    *(Setting(k, seeds, 10_000) for k, seeds in ((2, 3), (9, 3), (9, 5))),
    *(Setting(k, seeds, 500, 20) for k, seeds in ((2, 3), (9, 3), (9, 5), (24, 2))),
    *(Setting(k, 3, 3000, common=0.5) for k in (2, 9)),
]
UNEQUAL = [Setting(9, seeds, 3000, spreads=spreads) for spreads in ((3.0, 1.0), (1.0, 3.0)) for seeds in (3, 5)]
LOOKS = [
    Setting(k, 10, 3000, common=0.5, looks=looks, is_planned=planned)
    for k in (2, 9)
    for looks, planned in (((3, 6), False), ((2, 3, 4, 5), False), (tuple(range(3, 11)), True))
]


RUN = RunFile(task=TaskFacts(kind="qa", metrics=["exact"]), batch=BatchSizes(global_batch_size=32))


def simulated_run(name: str, seed: int, score: float, rate: float) -> RunRecord:
    """Return a run of question answering with a score and a speed; copies are faster than checked records."""
    values = {"scores": {"test": {"exact": score}}, "throughput": Throughput.model_construct(samples_per_s=rate)}
    return RunRecord(name, Path(), RUN.model_copy(update={"seed": seed}), Summary.model_construct(**values))


ROWS: dict[str, PredictionRows] = {}
"""Predictions by the name of the run, in place of files."""


def rows_of(run: RunRecord, _: str) -> PredictionRows:
    """Return the predictions of a run, in place of `scores.read_rows`."""
    return ROWS[run.name]


def no_plan(*_: object) -> tuple[None, None, None]:
    """Replace `finding.plan`, which decides nothing and takes most of the time."""
    return None, None, None


def draw(setting: Setting, *, differs: bool, rng: np.random.Generator) -> list[Group]:
    """Draw the runs of all configurations; the true score is the mean over seeds on infinitely many rows."""
    num, size = setting.num_rows, setting.cluster_size

    def effects(deviation: float) -> npt.NDArray[np.float32]:
        own = rng.standard_normal(num, dtype=np.float32)
        if size > 1:
            of_clusters = rng.standard_normal(-(-num // size), dtype=np.float32).repeat(size)[:num]
            own = (own + of_clusters) * np.float32(np.sqrt(0.5))
        return own * np.float32(deviation)

    of_rows, clusters = effects(SHARED), np.arange(num) // size
    of_seeds = np.sqrt(setting.common) * rng.normal(size=setting.num_seeds)
    groups = []
    for place in range(setting.num_configurations):
        is_last = place == setting.num_configurations - 1
        of_rows_here = of_rows + effects(OWN)
        spread = setting.spreads[0] if place == 0 else setting.spreads[1] if is_last else 1.0
        runs = []
        for seed in range(setting.num_seeds):
            own = spread * setting.deviation * (of_seeds[seed] + np.sqrt(1 - setting.common) * rng.normal())
            true = LEVEL + own + setting.better * (is_last and differs)
            level = float(ndtri(np.clip(true / 100, 0.01, 0.99))) * SPREAD
            is_right = of_rows_here + effects(NOISE) > np.float32(-level)
            rate = float(np.exp(0.01 * spread * rng.normal() + setting.faster * (is_last and differs)))
            run = simulated_run(f"{place}_{seed}", seed, 100 * float(is_right.mean()), rate)
            columns = {"exact": is_right} | ({"cluster": clusters} if size > 1 else {})
            ROWS[run.name] = PredictionRows(run.name, columns)
            runs.append(run)
        groups.append(Group(str(place), tuple(runs)))
    return groups


def select(groups: Sequence[Group]) -> CandidateGroup:
    """Return what a matrix of these runs selects on validation."""
    axes = (
        Axis("train.learning_rate", "rate", {group.label: group.label for group in groups}),
        Axis("run.seed", "seed", {str(run.run.seed): str(run.run.seed) for run in groups[0].runs}, is_seed=True),
    )
    cell_runs = []
    for label, run in ((group.label, run) for group in groups for run in group.runs):
        values = {"rate": label, "seed": str(run.run.seed)}
        cell = CellRecord(run.name, values, 1, "qa", "exact", ("exact",), run.name, "finished")
        summary = run.summary.model_copy(update={"scores": {"validation": run.summary.scores["test"]}})
        cell_runs.append(CellRun(cell, run.folder, replace(run, summary=summary)))
    record = SweepRecord("m", "2026-11-28", "m.yaml", (), axes, (), tuple(item.cell for item in cell_runs), ())
    return candidate_groups(record, cell_runs)[0]


def is_claimed(group: CandidateGroup) -> bool:
    """Return whether the report claims, with a tick, that the chosen candidate is best in quality."""
    return bool(group.compared) and all(found.is_shown and found.outcome == "different" for _, found in group.compared)


def judge_looks(setting: Setting, groups: Sequence[Group], margins: Mapping[str, Margin]) -> list[list[Verdict]]:
    """Return the verdicts of each look; the last one is when all scores are decided, or all runs are made."""
    planned = setting.num_seeds if setting.is_planned else None
    verdicts: list[list[Verdict]] = []
    looks: list[Look] = []
    for num in setting.looks or (setting.num_seeds,):
        some = [Group(group.label, group.runs[:num]) for group in groups]
        history = LookHistory(tuple(looks), planned)
        verdicts.append(judge(some, "0", margins, history=history if setting.looks else None))
        if all(verdict.quality[0].outcome in ("different", "equal") for verdict in verdicts[-1]):
            break
        looks.append(Look("", tuple(run.name for group in some for run in group.runs), planned))
    return verdicts


def simulate(setting: Setting, num_trials: int, seed: int) -> dict[str, float]:
    """Draw experiments without a difference, and a quarter as many with one; return the shares of the outcomes.

    Returns:
        Of quality, and as `speed_...` of speed: `false`, any false "different" without a difference; `covered`, of the
        intervals at the last look; `found`, the configuration that is better. Of quality alone: `equal`, it is "equal"
        with a margin as large as its difference; `best_false` and `best_found`, "best in quality" with a tick, of two
        without a difference, and with one.
    """
    rng = np.random.default_rng(seed)
    names = ("false", "covered", "found", "equal", "speed_false", "speed_covered", "speed_found")
    counts = dict.fromkeys((*names, "best_false", "best_found"), 0.0)
    margins = {"exact": Margin(setting.better), "speed": Margin(0.02, is_share=True)}
    with_difference = num_trials // 4
    for differs, num in ((False, num_trials), (True, with_difference)):
        for _ in range(num):
            groups = draw(setting, differs=differs, rng=rng)
            looks = judge_looks(setting, groups, margins if differs else {})
            for prefix, true in (("", setting.better * differs), ("speed_", float(np.expm1(setting.faster * differs)))):
                by_look = [[verdict.speed if prefix else verdict.quality[0] for verdict in look] for look in looks]
                is_false = any(is_different(one) for look in by_look for one in look)
                counts[f"{prefix}false"] += is_false and not differs
                counts[f"{prefix}found"] += differs and any(is_different(look[-1]) for look in by_look)
                truths = [0.0] * (len(groups) - 2) + [true]
                covered = [covers(one, truth) for one, truth in zip(by_look[-1], truths, strict=True)]
                counts[f"{prefix}covered"] += float(np.mean(covered))
                counts["equal"] += differs and not prefix and by_look[-1][-1].outcome == "equal"
            if not setting.looks and (differs or len(groups) == 2):
                group = select(groups)
                counts[f"best_{'found' if differs else 'false'}"] += is_claimed(group)
    # Of more than two equal configurations none is ever better than all others.
    ends = {"false": num_trials, "found": with_difference, "equal": with_difference}
    return {
        name: float(count) / ends.get(name.rpartition("_")[2], num_trials + with_difference)
        for name, count in counts.items()
    }


def is_different(one: MeasureComparison) -> bool:
    """Return whether a test finds a difference, also one inside of the margin."""
    return one.p_different is not None and one.p_different <= ALPHA


def covers(one: MeasureComparison, truth: float) -> bool:
    return one.low is not None and one.high is not None and one.low <= truth <= one.high


def everything(trials: int) -> Iterator[tuple[str, Any]]:
    """Yield the settings by name, each with a function from a random seed to its figures."""
    for kind, settings in (("quality", QUALITY), ("unequal", UNEQUAL), ("looks", LOOKS)):
        for setting in settings:
            own = {key: value for key, value in asdict(setting).items() if value != getattr(Setting(0, 0, 0), key)}
            name = f"{kind}|" + ", ".join(f"{key} {value}" for key, value in own.items())
            yield name, lambda seed, setting=setting: simulate(setting, trials, seed)
    for change, runs in itertools.product((0.01, 0.02), (2, 3)):
        yield f"factors|{change:.0%}|{runs}", lambda seed, a=(change, runs): try_factors(*a, trials, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("verdicts.jsonl"))
    parser.add_argument("--trials", type=int, default=2000, help="experiments without a difference; a quarter with one")
    parser.add_argument("--only", default="", help="only settings whose name contains this text")
    options = parser.parse_args()
    scores.read_rows, finding.plan = rows_of, no_plan
    lines = options.out.read_text(encoding="utf-8").splitlines() if options.out.is_file() else []
    results = {line.pop("name"): line for line in map(json.loads, lines)}
    for name, of_seed in everything(options.trials):
        if name in results or options.only not in name:
            continue
        began, seed = time.perf_counter(), zlib.crc32(name.encode())
        results[name] = {"trials": options.trials, "seed": seed, **of_seed(seed)}
        results[name]["took_s"] = time.perf_counter() - began
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, **results[name]}) + "\n")
    print(table(results))


def table(results: Mapping[str, Mapping[str, float]]) -> str:
    """Return the results in per cent, a table for each kind of setting."""
    lines: list[str] = []
    for kind in dict.fromkeys(name.partition("|")[0] for name in results):
        rows = {name: row for name, row in results.items() if name.startswith(f"{kind}|")}
        keys = [key for key in next(iter(rows.values())) if key not in ("seed", "trials", "took_s")]
        lines += [f"## {kind}", "", f"| setting | experiments | {' | '.join(keys)} |", "|---" * (len(keys) + 2) + "|"]
        for name, row in rows.items():
            cells = [f"{100 * row[key]:.1f}" for key in keys]
            lines.append(f"| {name.partition('|')[2].replace('|', ', ')} | {row['trials']} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
