"""Which rows repeat a key that an earlier row has, over all inputs, in memory that does not grow with them.

Each input's keys are hashed and written as sorted runs (`paratune.corpus.runs`); then even spans of the hashes are
merged. Both are stages, done by any number of processes.

    FOLDER/keys/     of each input its runs: a hashed key, and the row that has it
    FOLDER/ranges/   of each span of the hashes runs of the rows that repeat one: a row, and which one it repeats
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from paratune.console import Display
from paratune.corpus.runs import NAMES_SCHEMA, RunWriter, groups, merge, named_runs, spans
from paratune.corpus.stage import Stage, fingerprint, run_stage

Keys = Callable[[Any], Iterable[bytes | None]]
"""Of one input the key of each row, in their order; None for a row that repeats none. A function of a module."""
FORMAT = 2
ROW_BITS = 40
"""Of the place of a row: the number of its input stands before that in it."""
AT_ONCE = 1 << 15
"""Keys and rows that are handed to a run at once."""


@dataclass(frozen=True)
class _Input:
    """An input, and where its runs belong."""

    number: int
    input: Any
    folder: Path


@dataclass(frozen=True)
class _Span:
    """Hashes of all inputs that are merged, and where the runs belong that come out of it."""

    number: int
    runs: tuple[Path, ...]
    span: tuple[int, int]
    folder: Path


def find_repeated(
    folder: Path,
    inputs: Sequence[Any],
    keys: Keys,
    *,
    settings: Any,
    source: Any,
    workers: int,
    display: Display,
    at_once: int | None = None,
) -> str:
    """Find the rows whose key an earlier row has: earlier input first, and in it the earlier row.

    Killed, it goes on; what was found is read by `repeated_rows`.

    Args:
        folder: Made when it is not there; what is in it of other settings or another source is replaced.
        inputs: In the order that says which row is the first; at most 2^24, of at most 2^40 rows.
        keys: Reads them.
        settings: What the keys depend on beside the inputs, as JSON has it.
        source: What the inputs are, as JSON has it.
        workers: Processes; they change nothing of the result.
        display: Shows how far it is.
        at_once: Keys that one process merges, about; PER_SPAN of the runs when not given.

    Returns:
        SHA-256 of all that it was found from, for a stage that rests on it.

    Raises:
        DataError: An input cannot be read.
        CheckpointError: The folder cannot be written.
    """
    described = [FORMAT, settings]
    hashed = Stage("keys", folder / "keys", NAMES_SCHEMA, partial(_hashed, keys), described, source)
    numbered = [_Input(number, each, hashed.folder) for number, each in enumerate(inputs)]
    run_stage(hashed, numbered, workers=workers, display=display)
    runs = tuple(path for each in named_runs(hashed.folder) for path in each)
    cut = spans(runs, at_once)
    # The names of runs say nothing of what is in them: what they are made from does.
    ranges = Stage("ranges", folder / "ranges", NAMES_SCHEMA, _repeated, [*described, len(cut)], fingerprint(hashed))
    pieces = [_Span(number, runs, span, ranges.folder) for number, span in enumerate(cut)]
    run_stage(ranges, pieces, workers=workers, display=display)
    return fingerprint(ranges)


def repeated_rows(folder: Path, number: int) -> dict[int, tuple[int, int]]:
    """Return the rows of an input that repeat a key: each with the input and the row that has it first.

    Args:
        folder: As `find_repeated` was given it.
        number: Of the input, from 0.
    """
    runs = [path for each in named_runs(folder / "ranges") for path in each]
    found: dict[int, tuple[int, int]] = {}
    for block in merge(runs, (number << ROW_BITS, (number + 1) << ROW_BITS)):
        places = zip(block["high"].tolist(), block["low"].tolist(), strict=True)
        found.update((_parted(place)[1], _parted(first)) for place, first in places)
    return found


def _parted(place: int) -> tuple[int, int]:
    """Return the input and the row of a place."""
    return place >> ROW_BITS, place & ((1 << ROW_BITS) - 1)


def _hashed(keys: Keys, each: _Input) -> Iterator[dict[str, str]]:
    """Write the first 16 bytes of the SHA-256 of each key: two of 10^12 are the same with a chance of 10^-15."""
    places = enumerate(keys(each.input), start=each.number << ROW_BITS)
    hashed = ((hashlib.sha256(key).digest()[:16], place) for place, key in places if key is not None)
    with RunWriter(each.folder, each.number) as writer:
        while some := list(islice(hashed, AT_ONCE)):
            pairs = np.frombuffer(b"".join(digest for digest, _ in some), ">u8").reshape(-1, 2)
            writer.add(pairs[:, 0], pairs[:, 1], np.array([place for _, place in some], np.uint64))
    yield from ({"name": name} for name in writer.names)


def _repeated(each: _Span) -> Iterator[dict[str, str]]:
    """Write the places of the rows whose hash an earlier row has, and which row that is."""
    first = 0
    found = groups(merge(each.runs, each.span))
    with RunWriter(each.folder, each.number) as writer:
        while some := list(islice(found, AT_ONCE)):
            pairs = []
            for is_first, place in some:
                first = place if is_first else first
                if not is_first:
                    pairs.append((place, first))
            if pairs:
                again, firsts = np.array(pairs, np.uint64).T
                writer.add(again, firsts, 0)
    yield from ({"name": name} for name in writer.names)
