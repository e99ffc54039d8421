"""Documents as the extraction writes them, for tests of the later stages."""

import hashlib
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from paratune.console import Display
from paratune.corpus.shard import DOCUMENT_SCHEMA, write_shard
from paratune.corpus.stage import Stage, begin, finish, run_stage, stage_tables

EXTRACTED = "3_extract"
STOP_AFTER_TWO_SHARDS = """
import time
from paratune.corpus import stage

make_shards = stage._make_shards

def stop_after_two(*arguments):
    made = make_shards(*arguments)
    for _ in range(2):
        yield next(made)
    time.sleep(1000)

stage._make_shards = stop_after_two
"""
"""Start of a script in which each stage stops after two shards, so that a test can kill it before the stage ends."""


def document(text, number=0, **more):
    """Return a row with this text; its id is `d` followed by the number."""
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    row = dict.fromkeys(DOCUMENT_SCHEMA.names) | {"url": f"http://a.pt/{number}", "timestamp": "20140103030321"}
    return row | {"id": f"d{number}", "text": text, "sha256": sha256} | more


def extracted(work, *shards):
    """Write a finished stage of these texts or rows, one list per shard; return its folder."""
    folder = Path(work) / EXTRACTED
    stage = Stage("extract", folder, DOCUMENT_SCHEMA, list, {}, [])
    begin(stage)
    number = 0
    for position, shard in enumerate(shards):
        rows = []
        for item in shard:
            rows.append(document(item, number) if isinstance(item, str) else item)
            number += 1
        write_shard(folder, position, DOCUMENT_SCHEMA, rows)
    finish(stage, len(shards))
    return folder


def runner(workers=1):
    """Return `run_stage` with a number of processes, and without a display."""
    return partial(run_stage, workers=workers, display=Display(speaks=False))


def kept(folder):
    """Return the rows that a finished stage kept, one list per shard."""
    return [pq.read_table(path).to_pylist() for path in stage_tables(Path(folder))]


def dropped(folder):
    """Return the rows that a stage dropped, in its order."""
    return [row for path in sorted(Path(folder).glob("dropped-*")) for row in pq.read_table(path).to_pylist()]


def content(folder):
    """Return the content of all files below a folder, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
