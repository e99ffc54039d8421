"""Cost of the stage `store` of a corpus and of its report: documents per CPU-second, and memory at ten times the input.

python benchmarks/corpus_store.py --data DATA   # DATA/pt_raw_text/train.parquet: documents in a column `text`

Each size runs in two separate processes, one for the store and one for the report.
"""

import argparse
import hashlib
import itertools
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq

from paratune.commands.corpus_run import write_report
from paratune.console import Display
from paratune.corpus.settings import Corpus, StepName
from paratune.corpus.shard import DOCUMENT_SCHEMA, SENTENCE_SCHEMA, write_shard
from paratune.corpus.stage import Stage, begin, finish
from paratune.corpus.store import run_store
from paratune.hardware import peak_memory_bytes

PER_SHARD = 2000
STEPS = list(get_args(StepName))


def document(number: int, text: str) -> dict[str, Any]:
    text = f"{text}\n{number}"
    return dict.fromkeys(DOCUMENT_SCHEMA.names) | {
        "id": f"{number:016x}",
        "url": f"http://www.site{number % 5000}.pt/{number}",
        "digest": f"{number:032d}",
        "timestamp": f"{2000 + number % 20}0101000000",
        "language": "pt",
        "mime": "text/html",
        "num_masked": 0,
        "text": text,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "language_score": 0.9,
    }


def sentences(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for position, text in enumerate(row["text"].split("\n")):
        perplexity = 10 + int(row["sha256"][:4], 16) % 1000
        yield {"document_id": row["id"], "position": position, "text": text, "sha256": "", "perplexity": perplexity}


def write(work: Path, table: Path, number: int, longer: int) -> None:
    """Write finished stages `extract` and `sentences` with `number` documents of `longer` copies of a text each."""
    texts = itertools.cycle(
        "\n".join([text] * longer) for text in pq.read_table(table, columns=["text"])["text"].to_pylist()
    )
    extract = Stage("extract", work / "3_extract", DOCUMENT_SCHEMA, list, {}, [])
    begin(extract)
    for shard, start in enumerate(range(0, number, PER_SHARD)):
        some = itertools.islice(texts, min(PER_SHARD, number - start))
        rows = (document(index, text) for index, text in enumerate(some, start=start))
        write_shard(extract.folder, shard, DOCUMENT_SCHEMA, rows)
    num_shards = shard + 1
    source = finish(extract, num_shards)["output"]
    split = Stage("sentences", work / "5_sentences", SENTENCE_SCHEMA, list, {}, source)
    begin(split)
    for shard in range(num_shards):
        with pq.ParquetFile(extract.folder / f"part-{shard:05d}.parquet") as file:
            rows = (row for batch in file.iter_batches(100) for row in batch.to_pylist())
            write_shard(split.folder, shard, SENTENCE_SCHEMA, (sentence for row in rows for sentence in sentences(row)))
    finish(split, num_shards)


def one(work: str, part: str) -> None:
    """Make the store or the report in this process; print the number of sentences, CPU-seconds and the peak in KiB."""
    count = 0
    if part == "store":
        corpus = Corpus.model_validate({"work": work, "clean": {"skip": STEPS}})
        count = run_store(corpus, 1, Display(speaks=False))["sentences"]
    else:
        write_report(Path(work))
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(count, used.ru_utime + used.ru_stime, (peak_memory_bytes() or 0) // 1024)


def main() -> None:
    os.environ.setdefault(
        "ARROW_DEFAULT_MEMORY_POOL", "system"
    )  # as the command does; the measured processes are started by this one
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder that holds pt_raw_text")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4000, 40_000])
    parser.add_argument("--longer", type=int, default=1, help="copies of a text in each document")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        one(*chosen.one)
        return
    print(f"duckdb {version('duckdb')}, pyarrow {version('pyarrow')}\n")
    print("| documents | sentences | part | CPU-seconds | documents per CPU-second | peak MiB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for number in chosen.sizes:
        with tempfile.TemporaryDirectory() as work:
            write(Path(work), chosen.data / "pt_raw_text" / "train.parquet", number, chosen.longer)
            for part in ("store", "report"):
                command = [sys.executable, __file__, "--one", work, part]
                figures = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
                num, cpu_s, peak = int(figures[0]), float(figures[1]), int(figures[2]) / 1024
                print(
                    f"| {number} | {num or 'n/a'} | {part} | {cpu_s:.1f} | {number / cpu_s:.0f} | {peak:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
