"""Cost of commands over the records of 1,000 runs: CPU seconds of the whole process, with imports.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/report.py
    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/report.py --rounds 5 --num-runs 500
    python benchmarks/report.py --page   # the page of matrices of 36 and of 198 runs, in headless Chromium

The records are those of the tests (tests/unit/reports/make_matrix.py): 25 models, 1, 2, 4 and 8 processes, 10 seeds,
225 steps each. Commands take turns.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from machine import machine_lines

sys.path.append(str(Path(__file__).parents[1] / "tests"))
sys.path.append(str(Path(__file__).parents[1] / "tests" / "unit" / "reports"))
from browser import browser
from make_matrix import NPROC, STRATEGY, Axis, Made, make_matrix

SWEEP = """
base:
  extends: {base}
axes:
  nproc: [1, 2]
  train.learning_rate: [1.0e-5, 2.0e-5]
  run.seed: {seeds}
"""


def write_records(folder: Path, num_runs: int) -> None:
    """Write a matrix of finished runs."""
    models = Axis(
        "model", "model", {f"model-{at}": f"model-{at}" for at in range(num_runs // 40)}, keys=("model.name",)
    )
    sizes = Axis("nproc", "nproc", {f"nproc-{size}": str(size) for size in (1, 2, 4, 8)}, keys=("nproc",))
    names = {f"seed-{seed}": str(seed) for seed in range(1, 11)}
    seeds = Axis("run.seed", "seed", names, is_seed=True, keys=("run.seed",))

    def made(values: Mapping[str, str]) -> Made:
        size, at, seed = (int(values[label].rpartition("-")[2]) for label in ("nproc", "model", "seed"))
        step_ms = (60 + 6 * at) * (1 / size + 0.08) * (1 + 0.002 * seed)
        kind = "ddp" if size > 1 else "single"
        return Made(step_ms=step_ms, world_size=size, kind=kind, run={"config.model.name": f"model-{at}"})

    make_matrix(folder, (models, sizes, seeds), made)


def write_page(folder: Path, num_rates: int) -> tuple[int, Path]:
    """Write the report of two strategies, three numbers of processes and three seeds; return its runs and its page."""
    names = {f"lr-{at}": f"{at}e-5" for at in range(1, num_rates + 1)}
    rates = Axis("train.learning_rate", "learning_rate", names, keys=("train.learning_rate",))
    seeds = Axis("run.seed", "seed", {f"seed-{at}": str(at) for at in (1, 2, 3)}, is_seed=True, keys=("run.seed",))

    def made(values: Mapping[str, str]) -> Made:
        size, rate, seed = (int(values[label].rpartition("-")[2]) for label in ("nproc", "learning_rate", "seed"))
        step_ms = (90 if values["strategy"] == "ddp" else 110) / size**0.8 * (1 + 0.002 * seed)
        score = 0.80 - 0.005 * (rate - 3) ** 2 / num_rates + 0.002 * seed
        scores = {
            f"scores.{split}.{metric}": score for split in ("validation", "test") for metric in ("accuracy", "f1")
        }
        run = {"config.train.learning_rate": float(f"{rate}e-5")}
        return Made(step_ms=step_ms, world_size=size, kind=values["strategy"], run=run, summary=scores)

    make_matrix(folder / "m", (STRATEGY, NPROC, rates, seeds), made)
    cpu_s(["report", f"{folder}/m", "--out", f"{folder}/out"])
    return 18 * num_rates, folder / "out" / "index.html"


def print_pages(folder: Path, rounds: int) -> None:
    """Print size, elements and heights of pages, and the time that Chromium takes to load them."""
    print("| runs | MB | elements | window, px | height, px | s until loaded: median (range) |")
    print("| --- | --- | --- | --- | --- | --- |")
    with browser(folder) as opened:
        for num_rates in (2, 11):
            num_runs, page = write_page(folder / str(num_rates), num_rates)
            for width in (1400, 400):
                opened.look(width=width)
                seconds = []
                for _ in range(rounds):
                    opened.events.clear()
                    opened.open(page)
                    seconds.append(opened.js("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000)
                elements = opened.js("document.querySelectorAll('*').length")
                height = opened.js("document.documentElement.scrollHeight")
                duration = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
                size = page.stat().st_size / 1e6
                print(f"| {num_runs} | {size:.2f} | {elements:,} | {width} | {height:,} | {duration} |")


def cpu_s(words: Sequence[str]) -> float:
    """Run a command; return its CPU seconds, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "paratune", *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num-runs", type=int, default=1000, help="a multiple of 40")
    parser.add_argument("--page", action="store_true", help="only open pages in Chromium")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.page:
            print("\n".join(machine_lines()) + "\n")
            print_pages(folder, options.rounds)
            return
        write_records(folder / "m", options.num_runs)
        base = Path(__file__).parents[1] / "configs" / "quickstart" / "single.yaml"
        matrix = SWEEP.format(base=base, seeds=list(range(options.num_runs // 4)))
        (folder / "s.yaml").write_text(matrix, encoding="utf-8")
        runs = [str(path) for path in sorted((folder / "m" / "runs").iterdir())]
        commands = {
            "report MATRIX --out (all files)": ["report", f"{folder}/m", "--out", f"{folder}/out"],
            "report MATRIX (terminal)": ["report", f"{folder}/m"],
            "report RUNS --out (all files)": ["report", *runs, "--out", f"{folder}/out-runs"],
            "report RUNS (terminal)": ["report", *runs],
            "compare MATRIX": ["compare", f"{folder}/m"],
            "compare RUNS": ["compare", *runs],
            "watch --once MATRIX": ["watch", "--once", f"{folder}/m"],
            "jobs": ["jobs", f"{folder}/m"],
            "sweep --dry-run": ["sweep", f"{folder}/s.yaml", "--dry-run"],
        }
        seconds_by_command: dict[str, list[float]] = {command: [] for command in commands}
        for _ in range(options.rounds):
            for command, words in commands.items():
                seconds_by_command[command].append(cpu_s(words))
    print("\n".join(machine_lines()))
    print(f"\n| paratune, {options.num_runs:,} runs | CPU s: median (range) of {options.rounds} |\n| --- | --- |")
    for command, seconds in seconds_by_command.items():
        print(f"| `{command}` | {statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f}) |")


if __name__ == "__main__":
    main()
