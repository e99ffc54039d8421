"""Records sorted on disk, however many: runs, each sorted in memory, and their merge, a block at a time.

What is needed of memory is a block, not the records. A record has a key of 128 bits (`high`, `low`) and a value of 64;
their order is that of the three, and of equal records there is one.

run-00000-000.bin   records of one shard, sorted: three little-endian unsigned integers of 8 bytes each
"""

import hashlib
import itertools
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paratune.base.atomic import replace_file
from paratune.corpus.shard import writing
from paratune.corpus.stage import parts
from paratune.errors import CheckpointError

RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("value", "<u8")])
BLOCK = 1 << 17
"""Records in memory at once: 3 MiB, and some copies of them."""
PER_SPAN = 1 << 21
"""Records of a span, which one process merges."""
NAMES_SCHEMA = pa.schema([("name", pa.string())])
"""The rows of a stage whose shards write runs: the names of these."""
END = 1 << 64
"""Above all keys."""


def hash_64(text: bytes) -> int:
    """Return 64 bits of BLAKE2b."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def named_runs(folder: Path) -> list[list[Path]]:
    """Return the runs of a finished stage, those of each shard.

    Raises:
        CheckpointError: The stage is not finished.
    """
    return [[folder / name for name in pq.read_table(path)["name"].to_pylist()] for path in parts(folder)]


class RunWriter:
    """Takes records in any order and writes sorted runs, each whole or absent."""

    def __init__(self, folder: Path, number: int) -> None:
        """Write runs called `run-<number>-...` into a folder that exists."""
        self._folder, self._number = folder, number
        self._waiting: list[np.ndarray] = []
        self._num_waiting = 0
        self.names: list[str] = []
        """Of the runs so far."""

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            self._flush()

    def add(self, high: Any, low: Any, value: Any) -> None:
        """Add records, by the columns: arrays that NumPy can broadcast, or integers."""
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
            in_order(np.concatenate(self._waiting)).tofile(temporary)
        self.names.append(name)
        self._waiting, self._num_waiting = [], 0


def in_order(records: np.ndarray) -> np.ndarray:
    """Return records in their order, each once."""
    records = records[np.lexsort((records["value"], records["low"], records["high"]))]
    is_new = np.ones(len(records), bool)
    is_new[1:] = records[1:] != records[:-1]
    return records[is_new]


def spans(runs: Iterable[Path], per_span: int | None = None) -> list[tuple[int, int]]:
    """Return even parts of the keys, first and last excluded, so that each has about so many records."""
    num_records = sum(path.stat().st_size for path in runs) // RECORD.itemsize
    num_spans = max(1, -(-num_records // (per_span or PER_SPAN)))
    edges = [END * n // num_spans for n in range(num_spans + 1)]
    return list(itertools.pairwise(edges))


def merge(runs: Sequence[Path], span: tuple[int, int] = (0, END), *, block: int | None = None) -> Iterator[np.ndarray]:
    """Yield the records of runs in their order, each once.

    Args:
        runs: Sorted files.
        span: Least `high`, and the first that is not wanted any more.
        block: Most records in memory, BLOCK when not given; a few of each run are there in any case.

    Raises:
        CheckpointError: A run cannot be read.
    """
    cursors = [each for each in (_Cursor(path, *span) for path in runs) if each.is_open]
    while cursors:
        for each in cursors:
            each.fill(max(16, (block or BLOCK) // len(cursors)))
        ends = [each.last for each in cursors if each.has_more]
        bound = min(ends) if ends else None
        yield in_order(np.concatenate([each.take(bound) for each in cursors]))
        cursors = [each for each in cursors if each.is_open]


class _Cursor:
    """A place in a run; the file is open only while it is read, for there may be more of them than may be open."""

    def __init__(self, path: Path, start: int, stop: int) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                number = os.fstat(file.fileno()).st_size // RECORD.itemsize

                def high_at(index: int) -> int:
                    return int.from_bytes(os.pread(file.fileno(), 8, index * RECORD.itemsize), "little")

                self._next = bisect_left(range(number), start, key=high_at)
                self._stop = number if stop == END else bisect_left(range(number), stop, self._next, key=high_at)
        except OSError as error:
            raise _unreadable(path, error) from error
        self._buffer = np.empty(0, RECORD)

    @property
    def has_more(self) -> bool:
        """Whether there is more than has been read."""
        return self._next < self._stop

    @property
    def is_open(self) -> bool:
        return self.has_more or len(self._buffer) > 0

    @property
    def last(self) -> tuple[int, int, int]:
        """The last record that has been read."""
        return self._buffer[-1].item()  # type: ignore[no-any-return]

    def fill(self, num_records: int) -> None:
        """Read so many records if there are none."""
        if len(self._buffer) or not self.has_more:
            return
        count = min(num_records, self._stop - self._next)
        try:
            self._buffer = np.fromfile(self._path, RECORD, count, offset=self._next * RECORD.itemsize)
        except OSError as error:
            raise _unreadable(self._path, error) from error
        self._next += count

    def take(self, bound: tuple[int, int, int] | None) -> np.ndarray:
        """Return what was read up to a record, that one included, and keep the rest."""
        found = self._buffer
        count = len(found) if bound is None else _num_up_to(found, bound)
        self._buffer = found[count:]
        return found[:count]


def _num_up_to(records: np.ndarray, bound: tuple[int, int, int]) -> int:
    high, low, value = (np.uint64(each) for each in bound)
    ends = records["high"] == high
    up_to = (records["low"] < low) | ((records["low"] == low) & (records["value"] <= value))
    return int(np.count_nonzero((records["high"] < high) | (ends & up_to)))


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be read: {error.strerror or error}; delete {path.parent} to make it again",
        code="corpus.damaged",
        path=path,
    )


def groups(blocks: Iterable[np.ndarray]) -> Iterator[tuple[bool, int]]:
    """Yield the values of the records that share their key with others, and before each whether it is the first."""
    carried, has_joined = np.empty(0, RECORD), False
    for each in blocks:
        block = np.concatenate([carried, each])
        joins = _same_key(block[1:], block[:-1])  # the one before
        values = block["value"]
        for index in np.flatnonzero(joins).tolist():
            if not (joins[index - 1] if index else has_joined):
                yield True, int(values[index])
            yield False, int(values[index + 1])
        has_joined = bool(joins[-1]) if len(joins) else has_joined
        carried = block[-1:]


def repeats(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the values of the records whose key an earlier one has."""
    carried = np.empty(0, RECORD)
    for each in blocks:
        block = np.concatenate([carried, each])
        yield block["value"][1:][_same_key(block[1:], block[:-1])]
        carried = block[-1:]


def counts(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the keys of records in their order, each once, with the number of its values as `value`."""
    carried = np.empty(0, RECORD)
    for each in blocks:
        starts = np.flatnonzero(np.append(True, ~_same_key(each[1:], each[:-1])))
        found = each[starts]
        found["value"] = np.diff(np.append(starts, len(each)))
        if len(carried) and _same_key(carried, found[:1])[0]:
            found["value"][0] += carried["value"][0]
        elif len(carried):
            yield carried
        yield found[:-1]
        carried = found[-1:].copy()
    if len(carried):
        yield carried


def _same_key(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.asarray((one["high"] == other["high"]) & (one["low"] == other["low"]))
