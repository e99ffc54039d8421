"""Time that a step waits for its batch, with 0, 1, 2 and 4 loader workers.

    OMP_NUM_THREADS=1 python benchmarks/loader.py --data FOLDER
    OMP_NUM_THREADS=1 python benchmarks/loader.py --data FOLDER --rounds 1 --steps 6      # a short run

First only the batches: made in this process, or taken from a worker that has already prepared them. Then whole runs of
`paratune train`, one for each number of workers, in an order that rotates from round to round. FOLDER
(default: $PARATUNE_SHARED_DATA) holds imdb/ (columns text, label) and mtsamples/ (transcription), each
with train.parquet.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from machine import machine_lines

from paratune.config.load import load_config
from paratune.console import Display
from paratune.data.loader import PackedCollator, TrainBatches
from paratune.data.workers import BatchesAhead, Workers
from paratune.engine.stop import StopRequest
from paratune.hardware import usable_cores
from paratune.processes.place import Place
from paratune.training.prepare import prepare

CASES: dict[str, dict[str, Any]] = {
    "imdb": {
        "task": {"kind": "classification", "labels": ["0", "1"]},
        "data": {"train": "imdb/train.parquet", "columns": {"text": "text", "label": "label"}, "max_rows": 2000},
    },
    "mlm": {
        "task": {"kind": "mlm", "whole_words": True},
        "data": {"train": "mtsamples/train.parquet", "columns": {"text": "transcription"}, "max_rows": 1000},
    },
}
"""Both packed; mlm hides whole words."""
NUM_WORKERS = (0, 1, 2, 4)
SAMPLES = 8
"""Samples of a step, in runs."""
LONG, SHORT = 512, 128
"""Maximum tokens of a sample: in batches alone, and in runs."""
NUM_ALONE = 60
"""Steps of the measurement of batches alone."""


def main() -> None:
    """Time both and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", default=os.environ.get("PARATUNE_SHARED_DATA"), help="folder of the data sets")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each number of workers")
    parser.add_argument("--steps", type=int, default=12, help="steps of a run; the first 2 are not counted")
    parser.add_argument("--only", choices=CASES, help="one of the cases")
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data FOLDER, or $PARATUNE_SHARED_DATA, is needed")
    print(*machine_lines(), f"- logical cores that this may use: {usable_cores()}", sep="\n")
    names = [name for name in CASES if options.only in (None, name)]
    with tempfile.TemporaryDirectory() as scratch:
        print(f"\n| batches of 32 samples, at most {LONG} tokens each | made here, ms | taken from a worker, ms |")
        print("| --- | --- | --- |")
        for name in names:
            times = _alone(_written(Path(scratch), name, options.data, options.steps, max_length=LONG))
            print(f"| {name} | {' | '.join(map(_spread, times))} |", flush=True)
        print(f"\n| steps of {SAMPLES} samples, at most {SHORT} tokens each | workers | get batch, ms | step, ms |")
        print("| --- | --- | --- | --- |")
        for name in names:
            path = _written(Path(scratch), name, options.data, options.steps, max_length=SHORT)
            for number, runs in _rounds(path, options.rounds).items():
                batch = _spread([run["phases"]["get_batch"]["median_ms"] for run in runs])
                print(f"| {name} | {number} | {batch} | {_spread([run['step_ms']['median'] for run in runs])} |")


def _rounds(path: Path, num_rounds: int) -> dict[int, list[dict[str, Any]]]:
    """Return the summaries of the runs with each number of workers."""
    summaries: dict[int, list[dict[str, Any]]] = {number: [] for number in NUM_WORKERS}
    for turn in range(num_rounds):
        at = turn % len(NUM_WORKERS)
        for number in NUM_WORKERS[at:] + NUM_WORKERS[:at]:
            summaries[number].append(_run(path, number))
    return summaries


def _written(folder: Path, name: str, data: str, num_steps: int, *, max_length: int) -> Path:
    """Write the configuration of a case and return its path."""
    case = CASES[name]
    config = {
        **case,
        "run": {"name": "loader", "folder": str(folder / "runs")},
        "data": {
            **case["data"],
            "train": str(Path(data).resolve() / case["data"]["train"]),
            "max_rows": {"train": case["data"]["max_rows"]},
            "max_length": max_length,
            "cache_dir": str(folder / "cache"),
        },
        "model": {"name": "demo:minilm"},
        "train": {"max_steps": num_steps},
        "batch": {"global": SAMPLES},
        "checkpoint": {"every": "never"},
        "measure": {"warmup_steps": 2, "noise_scale_every": None},
    }
    path = folder / f"{len(list(folder.iterdir()))}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def _alone(path: Path) -> tuple[list[float], list[float]]:
    """Return the ms of each step's batch, made in this process, and taken from a worker that has prepared it."""
    prepared = prepare(load_config(path, []), Place(0, 0, 1), StopRequest(), Display(speaks=False))
    collator = PackedCollator(prepared.recipe.collator(prepared.splits["train"], prepared.tokenizer, seed=1))
    batches = TrainBatches(collator, 1, 32, 32, 1, 0, 1)
    here, ahead = [], []
    for step in range(NUM_ALONE):
        begin = time.perf_counter()
        batches.step(step)
        here.append(1000 * (time.perf_counter() - begin))
    with closing(BatchesAhead(batches.step, range(NUM_ALONE), Workers(1))) as worker:
        for _ in range(NUM_ALONE):
            time.sleep(0.02 + 0.002 * max(here))
            begin = time.perf_counter()
            next(worker)
            ahead.append(1000 * (time.perf_counter() - begin))
    return here, ahead


def _run(path: Path, num_workers: int) -> dict[str, Any]:
    """Return the summary of a run."""
    command = [sys.executable, "-m", "paratune", "train", str(path), "--set", f"data.num_workers={num_workers}"]
    completed = subprocess.run([*command, "--overwrite", "--json"], capture_output=True, text=True, check=False)
    if completed.returncode:
        sys.exit(completed.stderr)
    summary: dict[str, Any] = json.loads(completed.stdout)
    return summary


def _spread(values: list[float]) -> str:
    return f"{np.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main()
