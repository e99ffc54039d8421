"""Smaller forms of a trained model, by `paratune quantize`: size, memory, latency, throughput and accuracy.

    OMP_NUM_THREADS=1 python benchmarks/compress.py runs/NAME

The run is a classification of demo:sentences; its validation rows are compared and scored. Each form is measured in a
separate process, from rows that are already tokenized: latency of a batch of one text, and texts per second in
batches of 32, sorted by length and padded; for the original model also packed, as `paratune predict` computes it. The
forms are measured in turn, --rounds times; a cell has the median of the rounds and their range. The table is Markdown.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import torch
from machine import machine_lines
from scipy.stats import binomtest

from paratune.base.units import MIB
from paratune.compress.measure import time_batches
from paratune.data.loader import PackedCollator, eval_batches
from paratune.data.read import read_table
from paratune.infer.trained import NamedColumns, load_trained
from paratune.records.predictions import write_table

FORMS = ("float32", "bf16", "onnx", "int8")


def main() -> None:
    """Make the forms, measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", metavar="ROWS", help="only measure the given model on these rows")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.run, options.measure)))
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.parquet"
        kept = parquet.read_table(options.run / "predictions.validation.parquet")["index"]
        write_table(rows, read_table("demo:sentences").take(kept))
        folders = {form: make(options.run, form, Path(folder), rows) for form in FORMS}
        results: dict[str, list[dict[str, Any]]] = {form: [] for form in FORMS}
        for _ in range(options.rounds):
            for form in FORMS:
                words = [sys.executable, __file__, str(folders[form]), "--measure", str(rows)]
                output = subprocess.run(words, check=True, capture_output=True, text=True).stdout
                results[form].append(json.loads(output.splitlines()[-1]))
        records = {form: record(folders[form]) for form in FORMS}
        print("\n".join([*machine_lines(), "", *table(results, records)]))


def make(run: Path, form: str, folder: Path, rows: Path) -> Path:
    """Return the folder of a form."""
    if form == "float32":
        return run
    words = ["quantize", str(run), "--to", form, "--out", str(folder / form), "--data", str(rows), "--rows", "100000"]
    subprocess.run([sys.executable, "-m", "paratune", *words], check=True, capture_output=True)
    return folder / form


def record(folder: Path) -> dict[str, Any] | None:
    """Return the record of `paratune quantize`; None for the original."""
    path = folder / "quantized.json"
    return json.loads(path.read_text()) if path.is_file() else None


def measure(target: Path, source: str) -> dict[str, Any]:
    """Return the figures of a model."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    trained = load_trained(str(target), NamedColumns(), "cpu")
    split = trained.read(source, read_table(source), require_labels=True)
    collator = trained.recipe.collator(split, trained.tokenizer)
    entry, trained.model.entry = trained.model.entry, None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = trained.model.eval()
    singles = [collator(np.asarray([row]), 1.0) for row in range(split.num_samples)]
    seconds = time_batches(model, singles)
    result = {
        "p50_ms": 1000 * statistics.median(seconds),
        "p95_ms": 1000 * float(np.quantile(seconds, 0.95)),
        "texts_per_s": split.num_samples / sum(time_batches(model, list(eval_batches(collator, batch_size=32)))),
        "rss_mib": before / 1024,
    }
    if entry is not None:
        model.entry = entry
        packed = list(eval_batches(PackedCollator(collator), batch_size=32))
        result["packed_texts_per_s"] = split.num_samples / sum(time_batches(model, packed))
    outputs = trained.apply(split, 32, lambda done, total: None).outputs
    result["num_correct"] = int((outputs.argmax(axis=1) == split.labels).sum())
    result["num_rows"] = split.num_rows
    return result


def table(results: dict[str, list[dict[str, Any]]], records: dict[str, Any]) -> list[str]:
    """Return the lines of the table."""
    original = next(record["size"]["original_float32_bytes"] for record in records.values() if record)
    names = [
        "form",
        "weights, MiB",
        "resident, MiB",
        "p50, ms",
        "p95, ms",
        "texts/s",
        "packed texts/s",
        "accuracy (95%)",
    ]
    names += ["same decisions", "largest difference"]
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    for form, rounds in results.items():
        record = records[form]
        size = original if record is None else record["size"]["weights_bytes"]
        correct, count = rounds[0]["num_correct"], rounds[0]["num_rows"]
        interval = binomtest(correct, count).proportion_ci(method="wilson")
        cells = [form, f"{size / MIB:.1f}"]
        cells += [_cell(rounds, "rss_mib", 0), _cell(rounds, "p50_ms", 1), _cell(rounds, "p95_ms", 1)]
        cells += [_cell(rounds, "texts_per_s", 0), _cell(rounds, "packed_texts_per_s", 0)]
        cells.append(f"{correct / count:.3f} ({interval.low:.3f} to {interval.high:.3f})")
        check = None if record is None else record["check"]
        cells += ["", ""] if check is None else [f"{check['agreement']:.1%}", f"{check['max_abs']:.2g}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _cell(rounds: list[dict[str, Any]], name: str, digits: int) -> str:
    """Return the median of the rounds and their range; empty if it was not measured."""
    values = [entry[name] for entry in rounds if name in entry]
    if not values:
        return ""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    main()
