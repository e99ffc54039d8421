"""Documents as the extraction leaves them, for tests of the stages after it."""

import hashlib
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from paratune.console import Display
from paratune.corpus.rows import DOCUMENT_SCHEMA
from paratune.corpus.shard import write_shard
from paratune.corpus.stage import Stage, begin, finish, run_stage, stage_tables

EXTRACTED = "3_extract"
STOP_AFTER_TWO_SHARDS = """
import time
from paratune.corpus import stage

make_shards = stage._make_shards

def held(*arguments):
    made = make_shards(*arguments)
    for _ in range(2):
        yield next(made)
    time.sleep(1000)

stage._make_shards = held
"""
"""Start of a script in which each stage stops after two shards, so that it can be killed before the stage ends."""


def document(text, number=0, **more):
    """Return a row with this text; the id is `d` and the number."""
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    row = dict.fromkeys(DOCUMENT_SCHEMA.names) | {"url": f"http://a.pt/{number}", "timestamp": "20140103030321"}
    return row | {"id": f"d{number}", "text": text, "sha256": sha256} | more


def extracted(work, *shards):
    """Write a finished stage of these texts (or rows), a list for each shard; return its folder."""
    folder = Path(work) / EXTRACTED
    stage = Stage("extract", folder, DOCUMENT_SCHEMA, list, {}, [])
    begin(stage)
    number = 0
    for position, shard in enumerate(shards):
        rows = []
        for each in shard:
            rows.append(document(each, number) if isinstance(each, str) else each)
            number += 1
        write_shard(folder, position, DOCUMENT_SCHEMA, rows)
    finish(stage, len(shards))
    return folder


def runner(workers=1):
    """Return `run_stage` with a number of processes, and without a display."""
    return partial(run_stage, workers=workers, display=Display(speaks=False))


def kept(folder):
    """Return the rows that a finished stage kept, a list for each shard."""
    return [pq.read_table(path).to_pylist() for path in stage_tables(Path(folder))]


def dropped(folder):
    """Return what a stage dropped, in its order."""
    return [row for path in sorted(Path(folder).glob("dropped-*")) for row in pq.read_table(path).to_pylist()]


def content(folder):
    """Return all files below a folder, by their path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
