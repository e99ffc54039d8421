"""The texts of files one after the other, for what reads them once: Parquet piece by piece, others as tables.

Floor 3, without torch.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from paratune.config.sections import Columns
from paratune.data.columns import joined_texts, require_columns
from paratune.data.read import read_table
from paratune.errors import DataError

_ROWS = 10_000
"""Of a Parquet file that are in memory at a time."""


def iterate_texts(sources: Sequence[str], column: str) -> Iterator[str]:
    """Yield the texts of a column of files, in order; rows without text are passed over.

    Args:
        sources: As `read_table` takes them.
        column: The same of all; text files call theirs `text`.

    Raises:
        DataError: A file is absent or damaged, has no such column, or it holds no text.
    """
    for source in sources:
        for table in _tables(source):
            require_columns(table, Columns(text=column), source, None, False)
            texts = joined_texts(table, column, "", source, "text", refuse_numbers=False)
            yield from (text for text in texts if text is not None)


def _tables(source: str) -> Iterator[pa.Table]:
    if not source.endswith(".parquet") or not Path(source).is_file():
        yield read_table(source)
        return
    try:
        with pq.ParquetFile(source) as file:
            for batch in file.iter_batches(batch_size=_ROWS):
                yield pa.Table.from_batches([batch])
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{source} is damaged or not Parquet: {error}", code="data.damaged", source=source) from error
