"""Iterates over the texts of files, for code that reads each text once: Parquet in parts, other files whole.

Imports no torch.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from paratune.config.sections import Columns
from paratune.data.columns import TableReader
from paratune.data.read import read_table
from paratune.errors import DataError

_ROWS = 10_000
"""Rows of a Parquet file that are in memory at a time."""


def iterate_texts(sources: Sequence[str], column: str) -> Iterator[str]:
    """Yield the texts of a column of files (as for `read_table`), in order, without rows that have no text.

    Raises:
        DataError: A file is absent or damaged, or the column is absent or does not contain text.
    """
    for source in sources:
        for table in _tables(source):
            texts = TableReader(table, Columns(text=column), "drop", source, require_labels=False).texts("text")
            yield from (text for text in texts or () if text is not None)


def _tables(source: str) -> Iterator[pa.Table]:
    if not source.endswith(".parquet") or not Path(source).is_file():
        yield read_table(source)
        return
    try:
        with pq.ParquetFile(source) as file:
            for batch in file.iter_batches(batch_size=_ROWS):
                batch.validate(full=True)  # otherwise invalid UTF-8 raises only where a text is used
                yield pa.Table.from_batches([batch])
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{source} is damaged or not Parquet: {error}", code="data.damaged", source=source) from error
