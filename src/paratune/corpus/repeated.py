"""Finds rows whose key an earlier row has, over all inputs, in constant memory.

The keys of each input are hashed and written as sorted runs (`paratune.corpus.sorted_runs`); equal ranges of hashes are
then merged. Both steps are stages, which run in any number of processes.

    FOLDER/keys/     runs of each input: hashed key, row
    FOLDER/ranges/   runs of each range of hashes: repeated row, first row with the same key
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from paratune.corpus.sorted_runs import NAMES_SCHEMA, RunWriter, all_runs, groups, merge, run_names, spans
from paratune.corpus.stage import RunStage, Stage, fingerprint

ReadKeys = Callable[[Any], Iterable[bytes | None]]
"""Returns the key of each row of an input, None for a row that never counts as repeated. Must be picklable."""
FORMAT = 2
ROW_BITS = 40
"""Bits of the row in a position; the number of the input is above them."""
BATCH_SIZE = 1 << 15
"""Keys or rows that are added to a run at a time."""


def find_repeated(
    folder: Path,
    inputs: Sequence[Any],
    read_keys: ReadKeys,
    *,
    settings: Any,
    source: Any,
    run: RunStage,
    per_span: int | None = None,
) -> str:
    """Find the rows whose key an earlier row has; `repeated_rows` returns them. Resumes after an interruption.

    Args:
        folder: Created if missing; results of other settings or another source are replaced.
        inputs: At most 2^24 inputs of at most 2^40 rows each, in the order that decides which row is first.
        settings: JSON value of all settings that the keys depend on.
        source: JSON value that identifies the inputs.
        per_span: About how many keys one process merges; `sorted_runs.PER_SPAN` by default.

    Returns:
        SHA-256 of settings and source, for stages that use the result.

    Raises:
        DataError: An input is unreadable.
        CheckpointError: The folder is not writable.
    """
    keys_folder, ranges_folder = folder / "keys", folder / "ranges"
    hashed = Stage("keys", keys_folder, NAMES_SCHEMA, partial(_hash_keys, read_keys), [FORMAT, settings], source)
    numbered = [(value, number, keys_folder) for number, value in enumerate(inputs)]
    run(hashed, numbered)
    runs = all_runs(keys_folder)
    ranges = spans(runs, per_span)
    # The names of runs do not identify their content; the fingerprint of their stage does.
    described = [FORMAT, settings, len(ranges)]
    stage = Stage("ranges", ranges_folder, NAMES_SCHEMA, partial(_find_in_span, runs), described, fingerprint(hashed))
    pieces = [(span, number, ranges_folder) for number, span in enumerate(ranges)]
    run(stage, pieces)
    return fingerprint(stage)


def repeated_rows(folder: Path, number: int) -> dict[int, tuple[int, int]]:
    """Return the repeated rows of input `number`: row -> (input, row) of the first row with the same key."""
    repeated: dict[int, tuple[int, int]] = {}
    for block in merge(all_runs(folder / "ranges"), (number << ROW_BITS, (number + 1) << ROW_BITS)):
        positions = zip(block["high"].tolist(), block["low"].tolist(), strict=True)
        repeated.update((_input_and_row(position)[1], _input_and_row(first)) for position, first in positions)
    return repeated


def _input_and_row(position: int) -> tuple[int, int]:
    return position >> ROW_BITS, position & ((1 << ROW_BITS) - 1)


def _hash_keys(read_keys: ReadKeys, value: Any, number: int, folder: Path) -> Iterator[dict[str, str]]:
    """Write the first 16 bytes of the SHA-256 of each key: two of 10^12 keys collide with a probability of 10^-15."""
    positions = enumerate(read_keys(value), start=number << ROW_BITS)
    hashed = ((hashlib.sha256(key).digest()[:16], position) for position, key in positions if key is not None)
    with RunWriter(folder, number) as writer:
        while batch := list(islice(hashed, BATCH_SIZE)):
            pairs = np.frombuffer(b"".join(digest for digest, _ in batch), ">u8").reshape(-1, 2)
            writer.add(pairs[:, 0], pairs[:, 1], np.array([position for _, position in batch], np.uint64))
    yield from run_names(writer)


def _find_in_span(runs: tuple[Path, ...], span: tuple[int, int], number: int, folder: Path) -> Iterator[dict[str, str]]:
    """Write the position of each repeated row with that of the first row with the same hash."""
    first = 0
    members = groups(merge(runs, span))
    with RunWriter(folder, number) as writer:
        while batch := list(islice(members, BATCH_SIZE)):
            pairs = []
            for is_first, position in batch:
                first = position if is_first else first
                if not is_first:
                    pairs.append((position, first))
            if pairs:
                repeated, firsts = np.array(pairs, np.uint64).T
                writer.add(repeated, firsts, 0)
    yield from run_names(writer)
