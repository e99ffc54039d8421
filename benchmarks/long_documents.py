"""Scores of windows of long reviews compared with their first 128 tokens.

    python benchmarks/long_documents.py --data FOLDER --out FOLDER        # about an hour of two cores

FOLDER of --data holds train.parquet and test.parquet of film reviews with the columns uid, text and label (imdb of the
optional data sets). MiniLM is trained on the same reviews with the same settings, once on the first tokens of each
review (`data.max_length`) and once on windows of it (`task.windows`). Tables are Markdown.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from machine import machine_lines

import paratune

MAX_LENGTH = 128
WINDOWS = {"first 128 tokens": None, "4 windows of 128, mean": {"pooling": "mean", "max_windows": 4}}
"""`task.windows` by the name of the variant."""


def configuration(data: Path, out: Path, way: str, seed: int, rows: int) -> dict[str, Any]:
    """Return the configuration of one run."""
    task: dict[str, Any] = {"kind": "classification", "labels": {0: "negative", 1: "positive"}}
    if WINDOWS[way] is not None:
        task["windows"] = WINDOWS[way]
    return {
        "run": {"folder": str(out), "name": f"{'windows' if WINDOWS[way] else 'first'}_{seed}", "seed": seed},
        "task": task,
        "data": {
            "train": str(data / "train.parquet"),
            "test": str(data / "test.parquet"),
            "columns": {"text": "text", "label": "label", "id": "uid"},
            "max_rows": {"train": rows, "test": 1000},
            "max_length": MAX_LENGTH,
        },
        "model": {"name": "demo:minilm"},
        "train": {"epochs": 2, "learning_rate": 5e-5, "warmup_ratio": 0.1},
        "batch": {"global": 16},
        "evaluate": {"every": "never", "batch_size": 64},
        "measure": {"plan": False},
    }


def difference_line(accuracies: dict[str, list[float]]) -> str:
    """Return the mean difference of the two variants over seeds, and its range, in points."""
    first, windows = accuracies.values()
    differences = [100 * (b - a) for a, b in zip(first, windows, strict=True)]
    return (
        f"Difference by seed: {statistics.mean(differences):+.1f} points on average, from {min(differences):+.1f} to "
        f"{max(differences):+.1f}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rows", type=int, default=2000, help="training reviews")
    arguments = parser.parse_args()
    accuracies: dict[str, list[float]] = {}
    rows = []
    for way in WINDOWS:
        runs = [
            paratune.train(configuration(arguments.data, arguments.out, way, seed, arguments.rows))
            for seed in arguments.seeds
        ]
        accuracies[way] = [run.summary["scores"]["test"]["accuracy"] for run in runs]
        times = [run.summary["time"]["train_s"] for run in runs]
        shown = ", ".join(f"{100 * value:.1f}" for value in accuracies[way])
        rows.append(
            f"| {way} | {100 * statistics.mean(accuracies[way]):.1f} | {shown} | {statistics.mean(times):.0f} |"
        )
    print("\n".join(machine_lines()))
    print("\n| input | accuracy, mean | by seed | s of a run |\n| --- | --- | --- | --- |")
    print("\n".join(rows))
    print(f"\n{difference_line(accuracies)}")


if __name__ == "__main__":
    main()
