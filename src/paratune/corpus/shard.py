"""One shard of a stage: its rows, what it dropped, and its counts; each file is whole or absent.

part-00000.parquet      what was kept
dropped-00000.parquet   id, url, reason and detail of what was not
counts-00000.json       numbers of both; written last: its presence means that the shard is done
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paratune.base.atomic import replace_file
from paratune.corpus.rows import DROPPED_SCHEMA, Lost
from paratune.errors import CheckpointError, os_error_as
from paratune.records import file_sha256, write_json

ROWS_OF_PYTHON = 250
BYTES_OF_PYTHON = 1 << 20
"""Rows that are held as dicts, or bytes in them; Arrow holds the others, in a fraction of the memory."""
ROWS_AT_ONCE = 10_000
BYTES_AT_ONCE = 4 << 20
"""Rows of a row group, or bytes of texts and payloads in them, which is what a shard takes of memory."""


def writing(failed: str = "written", **place: Path) -> AbstractContextManager[None]:
    """Raise CheckpointError in place of an OSError of the block, which writes to a `path` or `folder` below `work`."""
    (path,) = place.values()
    return os_error_as(
        CheckpointError, f"{path} cannot be {failed}", "change work", code="corpus.not_writable", **place
    )


def part_file(number: int) -> str:
    return f"part-{number:05d}.parquet"


def dropped_file(number: int) -> str:
    return f"dropped-{number:05d}.parquet"


def counts_file(number: int) -> str:
    return f"counts-{number:05d}.json"


def write_shard(folder: Path, number: int, schema: pa.Schema, found: Iterable[Any]) -> dict[str, Any]:
    """Write a shard and return its counts.

    Args:
        folder: That of the stage.
        number: Of the shard.
        schema: Of the rows that are kept.
        found: Rows in their order, as mappings or dataclasses with a field for each column, and `Lost` among them.

    Returns:
        kept, dropped (by reason, in the order of the alphabet), and the SHA-256 of both tables.

    Raises:
        CheckpointError: It cannot be written.
    """
    reasons: Counter[str] = Counter()
    num_kept = 0
    tables = (folder / part_file(number), folder / dropped_file(number))
    with writing(folder=folder):
        with (
            replace_file(tables[0]) as kept_path,
            replace_file(tables[1]) as dropped_path,
            ShardWriter(kept_path, schema) as kept,
            ShardWriter(dropped_path, DROPPED_SCHEMA) as dropped,
        ):
            for result in found:
                if isinstance(result, Lost):
                    reasons[result.reason] += 1
                    dropped.add(vars(result))
                else:
                    num_kept += 1
                    kept.add(result if isinstance(result, Mapping) else vars(result))
        sha256 = [file_sha256(path) for path in tables]
    counts = {"kept": num_kept, "dropped": dict(sorted(reasons.items())), "sha256": sha256}
    write_json(folder / counts_file(number), counts)
    return counts


class ShardWriter:
    """A Parquet file, written a row group at a time."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows: list[Mapping[str, Any]] = []
        self._batches: list[pa.RecordBatch] = []
        self._num_rows = self._num_bytes = self._packed_bytes = 0
        self._writer = pq.ParquetWriter(path, schema, compression="zstd", write_batch_size=64)

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            self._flush()
        self._writer.close()

    def add(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        self._num_rows += 1
        self._num_bytes += sum(len(value) for value in row.values() if isinstance(value, bytes | str))
        if self._num_rows == ROWS_AT_ONCE or self._num_bytes >= BYTES_AT_ONCE:
            self._flush()
        elif len(self._rows) == ROWS_OF_PYTHON or self._num_bytes - self._packed_bytes >= BYTES_OF_PYTHON:
            self._pack()

    def _pack(self) -> None:
        try:
            batch = pa.RecordBatch.from_pylist(self._rows, schema=self._schema)
        except UnicodeEncodeError:  # of names and JSON that came from outside
            batch = pa.RecordBatch.from_pylist([_writable(row) for row in self._rows], schema=self._schema)
        self._batches.append(batch)
        self._rows, self._packed_bytes = [], self._num_bytes

    def _flush(self) -> None:
        if self._rows:
            self._pack()
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches).combine_chunks())
            self._batches = []
            self._num_rows = self._num_bytes = self._packed_bytes = 0


def _writable(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with "?" for halves of surrogate pairs, which UTF-8 does not have."""
    return {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in row.items()
    }
