"""Does `paratune sweep --parallel 2` on two cores make more runs an hour than in turn, with the same results?

    python benchmarks/sweep_parallel.py --json sweep_parallel.json
    python benchmarks/sweep_parallel.py --configurations 2 --seeds 1 --rounds 1 --steps 5 --kills 3    # a trial

Part speed: a matrix of short runs of the demo model is made in turn with two threads for each run (1 x 2), and with
`--parallel 2`, which gives each of two runs a core and a thread (2 x 1). The two take turns, and every second round
begins with the other one. After the rounds the matrix is made in turn with one thread (1 x 1): weights, predictions,
steps and scores of each run with `--parallel 2` must be equal to it bit for bit. With two threads the last digits may
differ; the largest difference of a score is printed.

Part kills: `soak.py --only parallel` kills `sweep --parallel 2` of four tiny runs at random file operations and at
random times (two of three signals are SIGKILL), repeats the command until it finishes, and compares the results with an
undisturbed sweep. Exit code 1 if anything differs.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from machine import machine_lines  # noqa: E402
from soak_parts.results import Result, first_difference, run_result  # noqa: E402

from paratune.records import read_json  # noqa: E402
from paratune.records.sweep import read_sweep  # noqa: E402

THREADS = {"1 x 2": 2, "2 x 1": 1, "1 x 1": 1}
"""Threads of each run by way: runs at a time x threads of each."""
ROWS = 100  # of validation
MATRIX = """\
name: m
base:
  extends: {quickstart}
  device: cpu
  data: {{max_rows: {{validation: {rows}}}}}
  train: {{epochs: null, max_steps: {steps}}}
  checkpoint: {{every: never}}
axes:
  train.learning_rate: {rates}
  run.seed: {seeds}
"""


def main() -> int:
    """Run both parts; return 1 if a result differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--configurations", type=int, default=9)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps of a run")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way makes the matrix; 0: no part speed")
    parser.add_argument("--kills", type=int, default=100, help="signals that reach a process; 0: no part kills")
    parser.add_argument("--seed", type=int, default=1, help="seed of the kills")
    parser.add_argument("--folder", type=Path, help="folder for runs; needs 100 MB for each run of the matrix")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for all figures")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sweep-parallel-", dir=options.folder))
    found: dict[str, Any] = {"machine": machine_lines(), "load_at_start": os.getloadavg()[0]}
    print("\n".join(found["machine"]), flush=True)

    def save() -> None:
        if options.json is not None:
            options.json.write_text(json.dumps(found, indent=1))

    if options.rounds:
        found["speed"] = speed(folder, options.configurations, options.seeds, options.steps, options.rounds)
        save()
        print(speed_line(found["speed"]), flush=True)
    if options.kills:
        found["kills"] = kills(folder / "soak", options.kills, options.seed)
        save()
        print(kills_line(found["kills"]), flush=True)
    num_different = len(found.get("speed", {}).get("different", ())) + len(found.get("kills", {}).get("findings", ()))
    if not num_different:
        shutil.rmtree(folder)
    return int(bool(num_different))


def speed(folder: Path, num_configurations: int, num_seeds: int, steps: int, num_rounds: int) -> dict[str, Any]:
    """Make the matrix in the two ways in turn, then with one thread; return times, results that differ, and scores."""
    rates = [round(1e-5 * (1 + number), 7) for number in range(num_configurations)]
    quickstart = HERE.parent / "configs" / "quickstart" / "single.yaml"
    text = MATRIX.format(quickstart=quickstart, steps=steps, rows=ROWS, rates=rates, seeds=[*range(1, num_seeds + 1)])
    (folder / "m.yaml").write_text(text)
    make(folder, "1 x 1", only_first=True)  # reads and encodes the data for all others
    passes = []
    results: dict[str, list[dict[str, Result]]] = {way: [] for way in THREADS}
    for number in range(num_rounds):
        ways = ["1 x 2", "2 x 1"]
        for way in ways if number % 2 == 0 else reversed(ways):
            seconds, runs_s, result = make(folder, way)
            passes.append({"round": number + 1, "way": way, "seconds": seconds, "runs_s": runs_s})
            results[way].append(result)
            print(f"round {number + 1}, {way}: {len(result)} runs in {seconds:.1f} s", flush=True)
    seconds, runs_s, whole = make(folder, "1 x 1")
    passes.append({"round": None, "way": "1 x 1", "seconds": seconds, "runs_s": runs_s})
    pairs = [(f"round {at + 1}: {name}", whole[name], own) for at, one in enumerate(results["2 x 1"])
             for name, own in one.items()]  # fmt: skip
    different = [f"{name}: {found}" for name, *pair in pairs if (found := first_difference(*pair))]
    gaps = [
        abs(score - results["1 x 2"][0][name]["scores"][split][metric])
        for name, run in whole.items()
        for split, scores in run["scores"].items()
        for metric, score in scores.items()
        if score is not None
    ]
    return {
        "num_configurations": num_configurations, "num_seeds": num_seeds, "steps": steps, "passes": passes,
        "num_compared": len(pairs), "different": different, "largest_score_difference": max(gaps),
    }  # fmt: skip


def make(folder: Path, way: str, *, only_first: bool = False) -> tuple[float, float, dict[str, Result]]:
    """Make the matrix in a new folder, which is deleted again.

    Returns:
        Seconds of the command with its report, seconds from the start of the first run to the end of the last one, and
        the result of each run.
    """
    words = ["sweep", str(folder / "m.yaml"), *(["--parallel", "2"] if way == "2 x 1" else [])]
    words += ["--only", "seed=1", "--only", "*learning_rate-1e-05*"] if only_first else []
    environment = {**os.environ, "PARATUNE_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[1], os.environ.get("PYTHONPATH")]))
    environment.pop("OMP_NUM_THREADS", None)
    if way != "2 x 1":  # there each run gets as many threads as it has cores
        environment["OMP_NUM_THREADS"] = str(THREADS[way])
    began = time.monotonic()
    command = [sys.executable, "-P", "-m", "paratune", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"{way}: paratune {' '.join(words)} exited with {done.returncode}:\n{done.stderr[-3000:]}")
    matrix = folder / "runs" / "m"
    runs = sorted((matrix / "runs").glob("*/summary.json"))
    for path in runs:
        if (threads := read_json(path.with_name("run.json"))["num_threads"]) != THREADS[way]:
            raise SystemExit(f"{way}: {path.parent.name} has {threads} threads; expected: {THREADS[way]}")
    attempts = [attempt for cell in read_sweep(matrix).cells for attempt in cell.attempts]
    times = [[datetime.fromisoformat(attempt[key]) for attempt in attempts] for key in ("began", "ended")]
    results = {path.parent.name: run_result(path.parent) for path in runs}
    shutil.rmtree(matrix)
    return seconds, (max(times[1]) - min(times[0])).total_seconds(), results


def speed_line(found: dict[str, Any]) -> str:
    """Return runs an hour in both ways, their ratio in each round, and how equal the results are."""
    num_runs = found["num_configurations"] * found["num_seeds"]
    by_way = {way: [one["seconds"] for one in found["passes"] if one["way"] == way] for way in ("1 x 2", "2 x 1")}
    hourly = {way: [3600 * num_runs / seconds for seconds in all_s] for way, all_s in by_way.items()}
    ratios = [after / before for before, after in zip(*hourly.values(), strict=True)]
    rates = "; ".join(f"{way}: {spread(values, '.0f')} runs an hour" for way, values in hourly.items())
    num_equal = found["num_compared"] - len(found["different"])
    return (
        f"speed: {num_runs} runs ({found['num_configurations']} x {found['num_seeds']}) of {found['steps']} steps, "
        f"{len(ratios)} rounds: {rates}; ratio {spread(ratios, '.2f')}; {num_equal} of {found['num_compared']} runs of "
        f"2 x 1 equal to 1 x 1 bit for bit; scores of 1 x 2 differ by at most {found['largest_score_difference']:.2g}"
    )


def spread(values: Sequence[float], form: str) -> str:
    """Return the median, with the smallest and the largest value."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def kills(folder: Path, num_kills: int, seed: int) -> dict[str, Any]:
    """Run the soak of parallel sweeps; return the counts of its kind."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    output = folder.with_suffix(".json")
    options = ["--only", "parallel", "--kills", str(num_kills), "--seed", str(seed)]
    command = [sys.executable, str(HERE / "soak.py"), *options, "--folder", str(folder), "--json", str(output)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not output.exists():
        raise SystemExit(f"soak.py exited with {done.returncode}:\n{done.stderr[-3000:]}")
    (count,) = json.loads(output.read_text())["counts"]
    return {**count, "seed": seed, "seconds": time.monotonic() - began}


def kills_line(found: dict[str, Any]) -> str:
    """Return the number of kills and of results that differ."""
    return (
        f"kills: {found['kills']} signals in {found['trials']} sweeps with --parallel 2 (seed {found['seed']}), "
        f"{found['seconds'] / 60:.1f} minutes: {len(found['findings'])} differences"
    )


if __name__ == "__main__":
    sys.exit(main())
