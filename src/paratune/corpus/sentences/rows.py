"""Schemas and folders of the steps before the last: split sentences and their perplexities."""

from functools import partial

import pyarrow as pa

from paratune.corpus.rows import text_columns
from paratune.corpus.shard import read_rows

SPLIT_FOLDER, REPEATED_FOLDER, MODEL_FOLDER, SCORED_FOLDER = "split", "repeated", "model", "scored"

SPLIT_SCHEMA = pa.schema(
    text_columns("document_id", "url")
    | {"language_score": pa.float32(), "position": pa.int32(), "num_words": pa.int32()}
    | text_columns("text", "sha256")
)
"""Sentences as in SENTENCE_SCHEMA, with columns of their document; `num_words` counts words between white space."""
SCORED_SCHEMA = pa.schema([("row", pa.int64()), ("perplexity", pa.float32())])
"""Row of each sentence that repeats no earlier one in its shard of `split`, and its perplexity."""

read_sentences = partial(read_rows, batch_size=2_000)
"""Yields the rows of a table of sentences."""
