"""Documents per CPU-second of the steps of the cleaning, memory at ten times the input, and variety accuracy.

python benchmarks/corpus_clean.py steps --data DATA   # DATA/pt_raw_text/train.parquet: documents in a column `text`
python benchmarks/corpus_clean.py variety CORPUS.yaml # trains on clean.variety.sources and prints its evaluation
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from paratune.console import Display
from paratune.corpus.clean.run import BEFORE, STEPS
from paratune.corpus.settings import Corpus, read_settings
from paratune.corpus.shard import DOCUMENT_SCHEMA, write_shard
from paratune.corpus.stage import Stage, begin, finish, run_stage
from paratune.hardware import peak_memory_bytes

NAMES = ("language", "quality", "personal")
NUM_DOCUMENTS = 300


def extracted(work: Path, texts: list[str]) -> None:
    stage = Stage("extract", work / BEFORE, DOCUMENT_SCHEMA, list, {}, [])
    begin(stage)
    rows = (dict.fromkeys(DOCUMENT_SCHEMA.names) | {"id": str(n), "url": "u", "text": t} for n, t in enumerate(texts))
    write_shard(stage.folder, 0, DOCUMENT_SCHEMA, rows)
    finish(stage, 1)


def one(name: str, table: Path, times: int) -> None:
    """Run one step on `times` copies of the documents; print CPU seconds, peak memory and the number kept."""
    texts = pq.read_table(table, columns=["text"])["text"].to_pylist()[:NUM_DOCUMENTS] * times
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        num_bytes = sum(len(text.encode()) for text in texts)
        num = len(texts)
        extracted(work, texts)
        del texts
        # Loading of models counts once per process, not per document.
        began = time.process_time()
        empty = work / "empty"
        extracted(empty, [])
        run = partial(run_stage, workers=1, display=Display(speaks=False))
        dict(STEPS)[name](Corpus(work=str(empty)), empty / BEFORE, empty / f"1_{name}", run)
        started = time.process_time()
        totals = dict(STEPS)[name](Corpus(work=folder), work / BEFORE, work / f"1_{name}", run)
        taken = time.process_time() - started
    peak = (peak_memory_bytes() or 0) / 2**20
    figures = {"documents": num, "mb": num_bytes / 1e6, "start_s": started - began, "cpu_s": taken, "peak_mib": peak}
    print(json.dumps(figures | {"kept": totals["kept"]}))


def steps(table: Path) -> None:
    print("| step | documents | documents per CPU-second | MB per CPU-second | start, CPU s | kept | peak MiB |")
    print("|---|---|---|---|---|---|---|")
    for name in NAMES:
        for times in (1, 10):
            command = [sys.executable, __file__, "one", name, str(table), str(times)]
            figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            rates = f"{figures['documents'] / figures['cpu_s']:.0f} | {figures['mb'] / figures['cpu_s']:.2f}"
            rest = f"{figures['start_s']:.1f} | {figures['kept']} | {figures['peak_mib']:.0f}"
            print(f"| {name} | {figures['documents']} | {rates} | {rest} |", flush=True)


def variety(path: Path) -> None:
    from paratune.corpus.clean.language import read_sources, train

    options = read_settings(path).clean.variety
    started = time.process_time()
    _, evaluation = train(read_sources(options.sources))
    print(f"{time.process_time() - started:.0f} CPU seconds")
    show(evaluation)


def show(evaluation: dict) -> None:
    print("| source | length | texts pt-PT, pt-BR | recall of pt-PT, pt-BR | balanced accuracy |")
    print("|---|---|---|---|---|")
    for source, lengths in evaluation.items():
        for length, scores in lengths.items():
            num = f"{scores['num_european']}, {scores['num_brazilian']}"
            recalls = f"{scores['european']:.2f}, {scores['brazilian']:.2f}"
            print(f"| {source} | {length} | {num} | {recalls} | {scores['balanced_accuracy']:.2f} |")


if __name__ == "__main__":
    os.environ.setdefault(
        "ARROW_DEFAULT_MEMORY_POOL", "system"
    )  # as the command does; the measured processes are started by this one
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("steps").add_argument("--data", type=Path, required=True)
    commands.add_parser("variety").add_argument("settings", type=Path)
    single = commands.add_parser("one")
    single.add_argument("name")
    single.add_argument("table", type=Path)
    single.add_argument("times", type=int)
    arguments = parser.parse_args()
    if arguments.command == "steps":
        steps(arguments.data / "pt_raw_text" / "train.parquet")
    elif arguments.command == "variety":
        variety(arguments.settings)
    else:
        one(arguments.name, arguments.table, arguments.times)
