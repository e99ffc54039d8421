"""A student of three layers with and without a teacher, and with Hugging Face's recipe, on demo:sentences.

    OMP_NUM_THREADS=1 python benchmarks/distil.py FOLDER

Trains the teacher (MiniLM, 6 layers), and for each seed the student (layers 0, 2 and 4 of the pre-trained model): with
the labels alone, with the teacher, and with the teacher in `peers/hf_distil.py`, with the same rows and settings. Runs
in FOLDER that are finished are not trained again. The table and the verdicts are Markdown.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from machine import machine_lines

import paratune
from paratune.data.read import read_table
from paratune.models.locate import locate
from paratune.records import SUMMARY_FILE, read_json
from paratune.records.predictions import write_table

EPOCHS, BATCH, RATE, WARMUP, DECAY, MAX_LENGTH = 1, 32, 2e-4, 7, 0.01, 128
KEPT = [0, 2, 4]
LABELS = ["negative", "positive"]
TEMPERATURE, WEIGHT = 2.0, 0.5
FORMS = ("labels", "distilled", "hf")
HEADS = {"teacher": "teacher, 6 layers", "labels": "student, labels only", "distilled": "student, with the teacher"}
HEADS["hf"] = "student, with the teacher, Hugging Face Trainer"


def main() -> None:
    """Train what is missing, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    runs = options.folder
    train(runs, "teacher", seed=1)
    write_rows(runs)
    for seed in range(1, options.seeds + 1):
        train(runs, f"labels_seed{seed}", seed, {"model.keep_layers": KEPT})
        distil = {"teacher": str(runs / "teacher"), "temperature": TEMPERATURE, "weight": WEIGHT}
        train(runs, f"distilled_seed{seed}", seed, {"model.keep_layers": KEPT, "distil": distil})
        peer(runs, seed)
    print("\n".join([*machine_lines(), "", *table(figures(runs, options.seeds))]))
    comparison = paratune.compare(str(runs / "labels_seed*"), str(runs / "distilled_seed*"), allow=["distil"])
    sentences = [verdict["sentence"] for verdict in comparison.as_dict()["verdicts"]]
    print("\n".join(["", *sentences]))


def train(runs: Path, name: str, seed: int, more: dict[str, Any] | None = None) -> None:
    """Train a run, if it is not finished."""
    values: dict[str, Any] = {
        "run": {"name": name, "folder": str(runs), "seed": seed},
        "task": {"kind": "classification", "labels": LABELS},
        "data": {
            "train": "demo:sentences",
            "columns": {"text": "sentence", "label": "label"},
            "split": {"test": 0.3, "stratify": True},
            "max_length": MAX_LENGTH,
        },
        "model": {"name": "demo:minilm"},
        "train": {"epochs": EPOCHS, "learning_rate": RATE, "warmup_steps": WARMUP, "weight_decay": DECAY},
        "batch": {"global": BATCH},
        "evaluate": {"every": "never"},
        "checkpoint": {"every": "never"},
    }
    paratune.train(values, more, resume=True)


def write_rows(runs: Path) -> None:
    """Write the rows of both splits for the peer, as in the teacher's run."""
    rows = read_table("demo:sentences")
    test = set(pq.read_table(runs / "teacher" / "predictions.test.parquet")["index"].to_pylist())
    write_table(runs / "test.parquet", rows.take(sorted(test)))
    write_table(runs / "train.parquet", rows.take([row for row in range(rows.num_rows) if row not in test]))


def peer(runs: Path, seed: int) -> None:
    """Run the peer, if its result is missing."""
    result = runs / f"hf_seed{seed}.json"
    if result.is_file():
        return
    settings = {
        "model": locate("demo:minilm"),
        "teacher": str(runs / "teacher" / "model"),
        "files": {split: str(runs / f"{split}.parquet") for split in ("train", "test")},
        "folder": str(runs / "hf"),
        "labels": LABELS,
        "keep_layers": KEPT,
        "seed": seed,
        "epochs": EPOCHS,
        "batch_size": BATCH,
        "learning_rate": RATE,
        "warmup_steps": WARMUP,
        "weight_decay": DECAY,
        "max_length": MAX_LENGTH,
        "temperature": TEMPERATURE,
        "weight": WEIGHT,
    }
    path = runs / "settings.json"
    path.write_text(json.dumps(settings))
    words = [sys.executable, str(Path(__file__).parent / "peers" / "hf_distil.py"), str(path)]
    output = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    result.write_text(output.splitlines()[-1])


def figures(runs: Path, num_seeds: int) -> dict[str, list[float]]:
    """Return the accuracy of each run on the test rows, by form."""
    values = {"teacher": [read_json(runs / "teacher" / SUMMARY_FILE)["scores"]["test"]["accuracy"]]}
    for form in FORMS:
        for seed in range(1, num_seeds + 1):
            if form == "hf":
                accuracy = json.loads((runs / f"hf_seed{seed}.json").read_text())["accuracy"]
            else:
                accuracy = read_json(runs / f"{form}_seed{seed}" / SUMMARY_FILE)["scores"]["test"]["accuracy"]
            values.setdefault(form, []).append(accuracy)
    return values


def table(values: dict[str, list[float]]) -> list[str]:
    """Return the lines of the table: the accuracy of each seed, mean and range."""
    lines = ["| model | accuracy of each seed | mean | range |", "| --- | --- | --- | --- |"]
    for form, accuracies in values.items():
        seeds = ", ".join(f"{value:.4f}" for value in accuracies)
        spread = f"{min(accuracies):.4f} to {max(accuracies):.4f}" if len(accuracies) > 1 else ""
        lines.append(f"| {HEADS[form]} | {seeds} | {statistics.fmean(accuracies):.4f} | {spread} |")
    return lines


if __name__ == "__main__":
    main()
