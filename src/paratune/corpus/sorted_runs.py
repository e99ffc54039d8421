"""Sorts records on disk: writes runs, each sorted in memory, and merges them block by block.

Memory holds a block, not all records. A record has a key of 128 bits (`high`, `low`) and a value of 64; records are
sorted by the three numbers, without duplicates.

run-00000-000.bin   sorted records of one shard: three little-endian unsigned integers of 8 bytes each
"""

import hashlib
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paratune.base.atomic import replace_file
from paratune.corpus.shard import reading, writing
from paratune.corpus.stage import stage_tables

RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("value", "<u8")])
BLOCK = 1 << 17
"""Records in memory: 3 MiB, and some copies of them."""
PER_SPAN = 1 << 21
"""Records of a span, a range of keys that one process merges."""
NAMES_SCHEMA = pa.schema([("name", pa.string())])
"""Rows of a stage whose shards write runs: the names of the runs."""
END = 1 << 64
"""Larger than all keys."""


def hash_64(text: bytes) -> int:
    """Return a 64-bit BLAKE2b hash."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def shard_runs(folder: Path) -> list[list[Path]]:
    """Return the runs of each shard of a finished stage.

    Raises:
        CheckpointError: The stage is not finished.
    """
    return [[folder / name for name in pq.read_table(path)["name"].to_pylist()] for path in stage_tables(folder)]


def all_runs(folder: Path) -> tuple[Path, ...]:
    """Return the runs of all shards of a finished stage.

    Raises:
        CheckpointError: The stage is not finished.
    """
    return tuple(chain.from_iterable(shard_runs(folder)))


class RunWriter(AbstractContextManager["RunWriter"]):
    """Writes records, added in any order, as sorted runs `run-<number>-...`, each complete or absent."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number = folder, number
        self._waiting: list[np.ndarray] = []
        self._num_waiting = 0
        self.names: list[str] = []
        """File names of the runs."""

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            self._flush()

    def add(self, high: Any, low: Any, value: Any) -> None:
        """Add records, given as columns: integers or arrays that NumPy can broadcast."""
        block = np.empty(np.broadcast(high, low, value).shape, RECORD)
        block["high"], block["low"], block["value"] = high, low, value
        self._waiting.append(block.reshape(-1))
        self._num_waiting += block.size
        if self._num_waiting >= BLOCK:
            self._flush()

    def _flush(self) -> None:
        if not self._num_waiting:
            return
        name = f"run-{self._number:05d}-{len(self.names):03d}.bin"
        with writing(folder=self._folder), replace_file(self._folder / name) as temporary:
            sort_unique(np.concatenate(self._waiting)).tofile(temporary)
        self.names.append(name)
        self._waiting, self._num_waiting = [], 0


def run_names(writer: RunWriter) -> Iterator[dict[str, str]]:
    """Yield the rows of NAMES_SCHEMA for the runs of a writer."""
    yield from ({"name": name} for name in writer.names)


def sort_unique(records: np.ndarray) -> np.ndarray:
    """Return sorted records without duplicates."""
    records = records[np.lexsort((records["value"], records["low"], records["high"]))]
    is_new = np.ones(len(records), bool)
    is_new[1:] = records[1:] != records[:-1]
    return records[is_new]


def spans(runs: Iterable[Path], per_span: int | None = None) -> list[tuple[int, int]]:
    """Return ranges (start, stop) of equal width that cover all keys, with about `per_span` records each."""
    num_records = sum(path.stat().st_size for path in runs) // RECORD.itemsize
    num_spans = max(1, -(-num_records // (per_span or PER_SPAN)))
    edges = [END * n // num_spans for n in range(num_spans + 1)]
    return list(pairwise(edges))


def merge(runs: Sequence[Path], span: tuple[int, int] = (0, END), *, block: int | None = None) -> Iterator[np.ndarray]:
    """Yield the records of runs, sorted and without duplicates.

    Args:
        span: Range of `high`: start, stop.
        block: Maximum number of records in memory, BLOCK by default; at least 16 per run.

    Raises:
        CheckpointError: A run is unreadable.
    """
    cursors = [cursor for cursor in (_Cursor(path, *span) for path in runs) if cursor.is_open]
    while cursors:
        for cursor in cursors:
            cursor.fill(max(16, (block or BLOCK) // len(cursors)))
        # Up to the smallest last record of the buffers no file has further records, so that these can be sorted.
        ends = [cursor.last for cursor in cursors if cursor.has_more]
        bound = min(ends) if ends else None
        yield sort_unique(np.concatenate([cursor.take(bound) for cursor in cursors]))
        cursors = [cursor for cursor in cursors if cursor.is_open]


class _Cursor:
    """A position in a run; the file is open only during a read, because the number of open files is limited."""

    def __init__(self, path: Path, start: int, stop: int) -> None:
        self._path = path
        with reading(path), path.open("rb") as file:
            number = os.fstat(file.fileno()).st_size // RECORD.itemsize

            def high_at(index: int) -> int:
                return int.from_bytes(os.pread(file.fileno(), 8, index * RECORD.itemsize), "little")

            self._next = bisect_left(range(number), start, key=high_at)
            self._stop = number if stop == END else bisect_left(range(number), stop, self._next, key=high_at)
        self._buffer = np.empty(0, RECORD)

    @property
    def has_more(self) -> bool:
        """Whether the file has more records."""
        return self._next < self._stop

    @property
    def is_open(self) -> bool:
        return self.has_more or len(self._buffer) > 0

    @property
    def last(self) -> tuple[int, int, int]:
        """The last record in the buffer."""
        return self._buffer[-1].item()  # type: ignore[no-any-return]

    def fill(self, num_records: int) -> None:
        """Read records if the buffer is empty."""
        if len(self._buffer) or not self.has_more:
            return
        count = min(num_records, self._stop - self._next)
        with reading(self._path):
            self._buffer = np.fromfile(self._path, RECORD, count, offset=self._next * RECORD.itemsize)
        self._next += count

    def take(self, bound: tuple[int, int, int] | None) -> np.ndarray:
        """Remove and return the records up to `bound`, inclusive."""
        buffer = self._buffer
        count = len(buffer) if bound is None else _num_up_to(buffer, bound)
        self._buffer = buffer[count:]
        return buffer[:count]


def _num_up_to(records: np.ndarray, bound: tuple[int, int, int]) -> int:
    high, low, value = (np.uint64(number) for number in bound)
    ends = records["high"] == high
    up_to = (records["low"] < low) | ((records["low"] == low) & (records["value"] <= value))
    return int(np.count_nonzero((records["high"] < high) | (ends & up_to)))


def groups(blocks: Iterable[np.ndarray]) -> Iterator[tuple[bool, int]]:
    """Yield (is_first, value) of each record whose key is not unique; `is_first` marks the first record of a key."""
    carried, has_joined = np.empty(0, RECORD), False
    for records in blocks:
        block = np.concatenate([carried, records])
        joins = _same_key(block[1:], block[:-1])  # the previous record
        values = block["value"]
        for index in np.flatnonzero(joins).tolist():
            if not (joins[index - 1] if index else has_joined):
                yield True, int(values[index])
            yield False, int(values[index + 1])
        has_joined = bool(joins[-1]) if len(joins) else has_joined
        carried = block[-1:]


def repeats(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the values of the records whose key an earlier record has."""
    carried = np.empty(0, RECORD)
    for records in blocks:
        block = np.concatenate([carried, records])
        yield block["value"][1:][_same_key(block[1:], block[:-1])]
        carried = block[-1:]


def counts(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield one record for each key, with the number of its records as `value`."""
    carried = np.empty(0, RECORD)
    for block in blocks:
        starts = np.flatnonzero(np.append(True, ~_same_key(block[1:], block[:-1])))
        firsts = block[starts]
        firsts["value"] = np.diff(np.append(starts, len(block)))
        if len(carried) and _same_key(carried, firsts[:1])[0]:
            firsts["value"][0] += carried["value"][0]
        elif len(carried):
            yield carried
        yield firsts[:-1]
        carried = firsts[-1:].copy()
    if len(carried):
        yield carried


def _same_key(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.asarray((left["high"] == right["high"]) & (left["low"] == right["low"]))
