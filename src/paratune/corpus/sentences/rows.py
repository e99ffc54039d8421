"""Schemas and folders of the steps before the last: split sentences, repeated ones, perplexities."""

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from paratune.corpus.rows import text_columns
from paratune.corpus.shard import read_rows
from paratune.corpus.stage import stage_tables

SPLIT_FOLDER, REPEATED_FOLDER, MODEL_FOLDER, SCORED_FOLDER = "split", "repeated", "model", "scored"

SPLIT_SCHEMA = pa.schema(
    text_columns("document_id", "url")
    | {"language_score": pa.float32(), "position": pa.int32(), "num_words": pa.int32()}
    | text_columns("text", "sha256")
)
"""Sentences as in SENTENCE_SCHEMA, with columns of their document; `num_words` counts words between white space."""
REPEATED_SCHEMA = pa.schema([("shard", pa.int64()), ("row", pa.int64())])
"""Shard of `split` and row in it of each sentence that repeats an earlier one, in order."""
SCORED_SCHEMA = pa.schema([("row", pa.int64()), ("perplexity", pa.float32())])
"""Row of each sentence that repeats no earlier one in its shard of `split`, and its perplexity."""

read_sentences = partial(read_rows, batch_size=2_000)
"""Yields the rows of a table of sentences."""


def repeated_in(folder: Path, shard: int) -> set[int]:
    """Return the rows of a shard of `split` that repeat an earlier sentence; `folder` is that of the stage."""
    (path,) = stage_tables(folder / REPEATED_FOLDER)
    table = pq.read_table(path, columns=["row"], filters=[("shard", "=", shard)], partitioning=None)
    return set(table["row"].to_pylist())
