"""Rows of the steps before the last: sentences as they were split, and their perplexities."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_AT_ONCE = 2_000
SPLIT_FOLDER, REPEATED_FOLDER, MODEL_FOLDER, SCORED_FOLDER = "split", "repeated", "model", "scored"

SPLIT_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("document_id", "url")),
        ("language_score", pa.float32()),
        ("position", pa.int32()),
        ("num_words", pa.int32()),
        *((name, pa.string()) for name in ("text", "sha256")),
    ]
)
"""Sentences of a document, as SENTENCE_SCHEMA has them, with what is known of the document; words by white space."""
SCORED_SCHEMA = pa.schema([("row", pa.int64()), ("perplexity", pa.float32())])
"""Of each sentence that is the first of its kind: its row in the shard of `split`, and its perplexity."""


def read_rows(path: Path, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, a few at a time in memory."""
    with pq.ParquetFile(path) as table:
        for batch in table.iter_batches(batch_size=ROWS_AT_ONCE, columns=columns):
            yield from batch.to_pylist()
