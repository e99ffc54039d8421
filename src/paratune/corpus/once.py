"""Which rows repeat a key that an earlier row has, over all inputs, in memory that does not grow with them.

Each input's keys are hashed and sorted; then the range of hashes is cut so that the rows of a piece fit into memory,
and each piece is sorted by itself. Both are stages, done by any number of processes.

    FOLDER/keys/     of each input its hashed keys, in their order, with the row that has each first in it
    FOLDER/ranges/   of each piece of the hashes the rows that repeat one, and which they repeat
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paratune.console import Display
from paratune.corpus.shard import part_file
from paratune.corpus.stage import Stage, parts, run_stage

Keys = Callable[[Any], Iterable[bytes | None]]
"""Of one input the key of each row, in their order; None for a row that repeats none. A function of a module."""
KEYS_AT_ONCE = 2_000_000
"""About so many keys are sorted at a time: some 150 MB."""
FORMAT = 1

_KEYS = pa.schema([("high", pa.uint64()), ("low", pa.uint64()), ("row", pa.int64()), ("first", pa.int64())])
"""The first 16 bytes of the SHA-256 of the key: two keys of 10^12 are the same with a chance of 10^-15."""
_REPEATED = pa.schema([(name, pa.int64()) for name in ("shard", "row", "first_shard", "first_row")])


@dataclass(frozen=True)
class _Range:
    """A piece of the hashes: those whose first 64 bits are from `low` up to, and without, `high`."""

    tables: tuple[str, ...]
    low: int
    high: int


def find_repeated(
    folder: Path,
    inputs: Sequence[Any],
    keys: Keys,
    *,
    settings: Any,
    source: Any,
    workers: int,
    display: Display,
    at_once: int = KEYS_AT_ONCE,
) -> str:
    """Find the rows whose key an earlier row has: earlier input first, and in it the earlier row.

    Killed, it goes on; what was found is read by `repeated_rows`.

    Args:
        folder: Made when it is not there; what is in it of other settings or another source is replaced.
        inputs: In the order that says which row is the first.
        keys: Reads them.
        settings: What the keys depend on beside the inputs, as JSON has it.
        source: What the inputs are, as JSON has it.
        workers: Processes; they change nothing of the result.
        display: Shows how far it is.
        at_once: Keys that are sorted in memory at a time, about.

    Returns:
        SHA-256 of all that was found, for a stage that rests on it.

    Raises:
        DataError: An input cannot be read.
        CheckpointError: The folder cannot be written.
    """
    described = [FORMAT, settings]
    hashed = Stage("keys", folder / "keys", _KEYS, partial(_hashed, keys), described, source)
    totals = run_stage(hashed, inputs, workers=workers, display=display)
    num_pieces = -(-totals["kept"] // at_once) or 1
    tables = tuple(str(path) for path in parts(hashed.folder))
    edges = [(2**64 * number) // num_pieces for number in range(num_pieces + 1)]
    pieces = [_Range(tables, low, high) for low, high in pairwise(edges)]
    ranges = Stage("ranges", folder / "ranges", _REPEATED, _repeated, [*described, num_pieces], totals["output"])
    found: str = run_stage(ranges, pieces, workers=workers, display=display)["output"]
    return found


def repeated_rows(folder: Path, number: int) -> dict[int, tuple[int, int]]:
    """Return the rows of an input that repeat a key: each with the input and the row that has it first.

    Args:
        folder: As `find_repeated` was given it.
        number: Of the input, from 0.
    """
    found: dict[int, tuple[int, int]] = {}
    for path in parts(folder / "ranges"):
        table = pq.read_table(path, filters=[("shard", "==", number)], partitioning=None)
        columns = [table[name].to_pylist() for name in ("row", "first_shard", "first_row")]
        found.update((row, (shard, first)) for row, shard, first in zip(*columns, strict=True))
    with pq.ParquetFile(folder / "keys" / part_file(number)) as table:
        for batch in table.iter_batches(columns=["row", "first"]):
            rows, firsts = (column.to_numpy() for column in batch.columns)
            for place in np.flatnonzero(rows != firsts).tolist():
                first = int(firsts[place])
                found[int(rows[place])] = found.get(first, (number, first))
    return found


def _hashed(keys: Keys, each: Any) -> Iterator[dict[str, int]]:
    """Yield the hashes of one input in their order, each with its row."""
    digests, rows = bytearray(), []
    for row, key in enumerate(keys(each)):
        if key is not None:
            digests += hashlib.sha256(key).digest()[:16]
            rows.append(row)
    pairs = np.frombuffer(bytes(digests), ">u8").reshape(-1, 2).astype(np.uint64)
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))  # stable: equal ones stay in the order of the rows
    pairs, sorted_rows = pairs[order], np.array(rows, np.int64)[order]
    firsts = sorted_rows[_first_places(pairs[:, 0], pairs[:, 1])]
    for (high, low), row, first in zip(pairs.tolist(), sorted_rows.tolist(), firsts.tolist(), strict=True):
        yield {"high": high, "low": low, "row": row, "first": first}


def _first_places(high: Any, low: Any) -> Any:
    """Return for each of sorted hashes the place of the first one that is the same."""
    is_new = np.ones(len(high), bool)
    is_new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return np.flatnonzero(is_new)[np.cumsum(is_new) - 1]


def _repeated(piece: _Range) -> Iterator[dict[str, int]]:
    """Yield the rows whose hash an earlier row of the piece has, by input and row."""
    columns = [_columns(Path(path), piece) for path in piece.tables]
    shards = np.repeat(np.arange(len(columns)), [len(each[0]) for each in columns])
    high, low, rows = (np.concatenate([each[index] for each in columns]) for index in range(3))
    order = np.lexsort((rows, shards, low, high))
    rows, shards = rows[order], shards[order]
    firsts = _first_places(high[order], low[order])
    again = np.flatnonzero(firsts != np.arange(len(firsts)))
    again = again[np.lexsort((rows[again], shards[again]))]
    columns = [each.tolist() for place in (again, firsts[again]) for each in (shards[place], rows[place])]
    for found in zip(*columns, strict=True):
        yield dict(zip(_REPEATED.names, found, strict=True))


def _columns(path: Path, piece: _Range) -> list[Any]:
    """Return the hashes of one input that are in a piece, each once, and their first rows."""
    within = [("high", ">=", pa.scalar(piece.low, pa.uint64())), ("high", "<=", pa.scalar(piece.high - 1, pa.uint64()))]
    table = pq.read_table(path, filters=within, partitioning=None)
    high, low, rows, firsts = (table[name].to_numpy() for name in _KEYS.names)
    return [each[rows == firsts] for each in (high, low, rows)]
