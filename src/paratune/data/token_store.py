"""Tokens on disk: the samples of a split as flat, memory-mapped files; a folder is complete or absent.

    <cache>/tokens/<fingerprint>/
      tokens.bin          token ids of all sequences, uint16 or uint32, little-endian
      type_ids.bin        token types, uint8; absent where the model has no such input
      offsets.npy         (Q + 1,) int64: sequence i is tokens[offsets[i]:offsets[i + 1]]
      full_lengths.npy    (Q,) int32: tokens of each sequence before truncation
      token_NAME.bin      further values of each token (`token_values`)
      row_NAME.npy        further values of each sequence (`row_values`)
      meta.json           counts, and size and SHA-256 of each file; written last

A sample is one sequence, or several that follow each other (`TokenStore.grouped`). N samples have Q sequences.

Imports no torch.
"""

import errno
import io
import mmap
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from paratune.base.atomic import sync
from paratune.base.units import format_bytes
from paratune.errors import CheckpointError, DataError
from paratune.records import file_sha256, read_json, write_json

FORMAT_VERSION = 4
EXAMPLE = "example"
"""(Q,), int32: index in the samples of a split of the row that a sequence belongs to, or begins in; absent where the
sequences of a sample are one row."""
DROPPED_WINDOWS = "dropped_windows"
"""(Q,), int32, windows of long texts only: windows of the text after this one that were left out."""
_NOT_DAMAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of the process (too many open files, no memory), which do not mean that a file is damaged."""
TokenArray = npt.NDArray[np.integer[Any]]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TokenStore:
    """The tokens of the samples of one split; arrays are memory-mapped, so that ranks of a node share the memory."""

    tokens: "TokenArray | ShardedArray"
    """(num_tokens,), uint16 or uint32."""
    type_ids: "TokenArray | ShardedArray | None"
    """(num_tokens,), uint8; None where the model has no such input."""
    offsets: npt.NDArray[np.int64]
    """(Q + 1,): sequence i is tokens[offsets[i]:offsets[i + 1]]; Q = N where each sample is one sequence."""
    full_lengths: npt.NDArray[np.int32]
    """(Q,): tokens before truncation, special ones included."""
    max_length: int
    """Tokens after which sequences were truncated."""
    fingerprint: str
    """SHA-256 over texts, tokenizer and settings; name of the folder. Empty for tokens that are only in memory."""
    token_values: "Mapping[str, TokenArray | ShardedArray]" = field(default_factory=dict)
    """(num_tokens,) each: further values of each token that a task needs, by name."""
    row_values: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """(Q, ...) each: further values of each sequence that a task needs, by name."""
    num_unknown: int | None = None
    """Number of unknown tokens ([UNK]); None where the tokenizer has no unknown token."""
    sample_offsets: npt.NDArray[np.int64] | None = None
    """(N + 1,): sample i has the sequences sample_offsets[i] to sample_offsets[i + 1] - 1; None where each sample is
    one sequence."""

    def grouped(self, num_sequences: npt.NDArray[np.integer[Any]]) -> "TokenStore":
        """Return the store with samples of several sequences, which follow each other; `num_sequences` is (N,)."""
        offsets = offsets_of(num_sequences)
        assert offsets[-1] == len(self.offsets) - 1, "each sequence belongs to one sample"
        assert (num_sequences > 0).all()
        return replace(self, sample_offsets=offsets)

    def __len__(self) -> int:
        """Return N, the number of samples."""
        return len(self.offsets if self.sample_offsets is None else self.sample_offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """(N,): tokens of each sample after truncation, over all its sequences."""
        offsets = np.asarray(self.offsets)
        return np.diff(offsets if self.sample_offsets is None else offsets[self.sample_offsets])

    def lengths_at(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the lengths of some samples; reads only their offsets."""
        offsets = np.asarray(self.offsets)  # indexing a memmap returns a memmap, whose creation is slower than the copy
        begins, ends = indices, indices + 1
        if self.sample_offsets is not None:
            begins, ends = self.sample_offsets[begins], self.sample_offsets[ends]
        lengths: npt.NDArray[np.int64] = offsets[ends] - offsets[begins]
        return lengths

    @property
    def num_sequences(self) -> npt.NDArray[np.int64]:
        """(N,): sequences of each sample."""
        if self.sample_offsets is None:
            return np.ones(len(self), dtype=np.int64)
        return np.diff(self.sample_offsets)

    @property
    def examples(self) -> npt.NDArray[np.int64]:
        """(Q,): index of the row of each sequence; see `EXAMPLE`."""
        if EXAMPLE in self.row_values:
            return np.asarray(self.row_values[EXAMPLE], dtype=np.int64)
        return np.repeat(np.arange(len(self)), self.num_sequences)

    @property
    def sequence_lengths(self) -> npt.NDArray[np.int64]:
        """(Q,): tokens of each sequence after truncation."""
        return np.diff(self.offsets)

    @property
    def full_sample_lengths(self) -> npt.NDArray[np.int64]:
        """(N,): tokens of each sample before truncation, over all its sequences."""
        return self._per_sample(np.add, np.asarray(self.full_lengths, dtype=np.int64))

    @property
    def longest_sequences(self) -> npt.NDArray[np.int64]:
        """(N,): tokens of the longest sequence of each sample."""
        return self._per_sample(np.maximum, self.sequence_lengths)

    def sequences_at(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the sequences of some samples, in the order of the samples."""
        if self.sample_offsets is None:
            return indices
        first, counts = self.sample_offsets[indices], self.num_sequences_at(indices)
        return np.arange(counts.sum()) + np.repeat(first - (counts.cumsum() - counts), counts)

    def num_sequences_at(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of sequences of some samples."""
        if self.sample_offsets is None:
            return np.ones(len(indices), dtype=np.int64)
        counts: npt.NDArray[np.int64] = self.sample_offsets[indices + 1] - self.sample_offsets[indices]
        return counts

    def sequence_lengths_at(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the lengths of the sequences of some samples."""
        offsets, sequences = np.asarray(self.offsets), self.sequences_at(indices)
        lengths: npt.NDArray[np.int64] = offsets[sequences + 1] - offsets[sequences]
        return lengths

    def _per_sample(self, reduce: np.ufunc, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values of sequences, (Q,), reduced over the sequences of each sample, (N,)."""
        reduced: npt.NDArray[Any] = values
        if self.sample_offsets is not None:
            reduced = reduce.reduceat(values, self.sample_offsets[:-1])
        return reduced

    @property
    def num_tokens(self) -> int:
        return int(self.offsets[-1])

    @property
    def share_unknown(self) -> float | None:
        """Share of unknown tokens, 0 to 1; None where the tokenizer has no unknown token."""
        return None if self.num_unknown is None else self.num_unknown / self.num_tokens

    @property
    def num_truncated(self) -> int:
        """Number of samples with a truncated sequence."""
        is_cut = np.asarray(self.full_lengths) > self.sequence_lengths
        return int(np.count_nonzero(self._per_sample(np.logical_or, is_cut)))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a loader worker: instead of memory-mapped arrays, their place in their files."""
        return {key: _map_values(_file_place, value) for key, value in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({key: _map_values(_open_place, value) for key, value in state.items()})


def joined_store(parts: Sequence[tuple[TokenStore, npt.NDArray[np.int64]]]) -> TokenStore:
    """Return samples of several stores as one store in memory, without the number of unknown tokens.

    `parts`, at least one, are stores of the same tokenizer and settings, and the indices of their samples, (n,) each.
    """
    stores, first = [store for store, _ in parts], parts[0][0]
    sequences = [store.sequences_at(indices) for store, indices in parts]
    tokens = [
        np.concatenate([np.arange(*store.offsets[place : place + 2]) for place in places])
        for store, places in zip(stores, sequences, strict=True)
    ]

    def joined(arrays: Sequence[Any], places: list[npt.NDArray[np.int64]]) -> npt.NDArray[Any]:
        return np.concatenate([array[at] for array, at in zip(arrays, places, strict=True)])

    one = TokenStore(
        joined([store.tokens for store in stores], tokens),
        None if first.type_ids is None else joined([store.type_ids for store in stores], tokens),
        offsets_of(joined([store.sequence_lengths for store in stores], sequences)),
        joined([store.full_lengths for store in stores], sequences),
        first.max_length,
        fingerprint="",
        token_values={key: joined([store.token_values[key] for store in stores], tokens) for key in first.token_values},
        row_values={key: joined([store.row_values[key] for store in stores], sequences) for key in first.row_values},
    )
    counts = np.concatenate([store.num_sequences_at(indices) for store, indices in parts])
    return one if first.sample_offsets is None else one.grouped(counts)


class ShardedArray:
    """Memory-mapped arrays of several files, one after the other; indexed by slices and by arrays of places."""

    def __init__(self, parts: Sequence[Any]) -> None:
        """Keep the arrays, which have one dimension and one dtype."""
        self._parts, self._bounds, self.dtype = [*parts], offsets_of([len(part) for part in parts]), parts[0].dtype

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def __getitem__(self, places: slice | IntArray) -> TokenArray:
        """Return the values of a slice without a step, or at each of `places`, in their shape."""
        if isinstance(places, slice):
            begin, end, _ = places.indices(len(self))
            first, last = np.searchsorted(self._bounds, [begin, max(begin, end - 1)], side="right") - 1
            numbers = range(int(first), min(int(last) + 1, len(self._parts)))
            cuts = [slice(max(0, begin - start), max(0, end - start)) for start in self._bounds[numbers].tolist()]
            pieces = [np.asarray(self._parts[number])[cut] for number, cut in zip(numbers, cuts, strict=True)]
            return pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, self.dtype), *pieces])
        number_at = np.searchsorted(self._bounds, places, side="right") - 1
        values = np.empty(np.shape(places), self.dtype)
        for number in np.unique(number_at).tolist():
            is_here = number_at == number
            values[is_here] = np.asarray(self._parts[number])[places[is_here] - self._bounds[number]]
        return values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> TokenArray:
        """Return all values in memory, for NumPy."""
        return np.asarray(self[:], dtype)

    def __getstate__(self) -> list[Any]:
        """Return the state for a loader worker: the places of the arrays in their files."""
        return list(map(_file_place, self._parts))

    def __setstate__(self, state: list[Any]) -> None:
        self.__init__([*map(_open_place, state)])  # type: ignore[misc]


def without_map(array: TokenArray | ShardedArray) -> TokenArray | ShardedArray:
    """Return an array to index often: each slice of a memory map is a new map, which is slow."""
    return array if isinstance(array, ShardedArray) else np.asarray(array)


def chained_store(stores: Sequence[TokenStore], numbered: Mapping[str, Sequence[int]], fingerprint: str) -> TokenStore:
    """Return stores of the same tokenizer and settings as one; only tokens and their values stay in their files.

    `numbered` has, by the name of a value of sequences that numbers rows or windows, how many of them each store has,
    at least one store: the numbers of a store follow those of the stores before it.
    """
    first, row_values = stores[0], {}
    for name in first.row_values:
        before = offsets_of(numbered[name]) if name in numbered else np.zeros(len(stores), np.int64)
        # The first sum keeps the dtype of the files where the numbers fit.
        dtype = np.result_type(first.row_values[name], np.min_scalar_type(-int(before[-1])))
        parts = zip(stores, before.tolist(), strict=False)
        row_values[name] = np.concatenate(
            [store.row_values[name].astype(dtype) + dtype.type(at) for store, at in parts]
        )
    return TokenStore(
        ShardedArray([store.tokens for store in stores]),
        None if first.type_ids is None else ShardedArray([store.type_ids for store in stores]),
        offsets_of(np.concatenate([store.sequence_lengths for store in stores])),
        np.concatenate([store.full_lengths for store in stores]),
        first.max_length,
        fingerprint,
        {name: ShardedArray([store.token_values[name] for store in stores]) for name in first.token_values},
        row_values,
        None if first.num_unknown is None else sum(store.num_unknown or 0 for store in stores),
    )


def _map_values(function: Callable[[Any], Any], value: Any) -> Any:
    return {name: function(item) for name, item in value.items()} if isinstance(value, Mapping) else function(value)


class _FilePlace(NamedTuple):
    """The arguments of `np.memmap` for an array in a file."""

    path: str
    dtype: np.dtype[Any]
    mode: Literal["r"]
    offset: int
    shape: tuple[int, ...]
    order: Literal["C", "F"]


def _file_place(value: Any) -> Any:
    # A view of a memmap has the `offset` of the whole array, not its own: it is sent as data.
    base: Any = getattr(value, "base", None)
    if not isinstance(value, np.memmap) or not isinstance(base, mmap.mmap):
        return value
    order: Literal["C", "F"] = "F" if value.flags.fnc else "C"
    return _FilePlace(str(value.filename), value.dtype, "r", value.offset, value.shape, order)


def _open_place(value: Any) -> Any:
    return np.memmap(*value) if isinstance(value, _FilePlace) else value


def open_store(folder: Path, *, maps_rows: bool = True) -> TokenStore:
    """Open a complete folder after a check of all its hashes: a changed bit would train another model.

    Without `maps_rows`, offsets and values of sequences are in memory, and hold no file open.

    Raises:
        FileNotFoundError: The folder does not exist.
        ValueError: Its files differ from its `meta.json`.
        OSError: This process has no memory or too many open files; the folder may be intact.
    """
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    try:
        meta = read_json(folder / "meta.json")
        for name, digest in meta["sha256"].items():
            size, expected = (folder / name).stat().st_size, meta["num_bytes"][name]
            if size != expected:
                raise ValueError(f"{name} has {size} bytes, expected {expected}")
            if file_sha256(folder / name) != digest:
                raise ValueError(f"{name} does not match its SHA-256")
        rows: dict[str, Any] = {"allow_pickle": False, "mmap_mode": "r" if maps_rows else None}
        offsets, full_lengths = (np.load(folder / name, **rows) for name in ("offsets.npy", "full_lengths.npy"))
        tokens = np.memmap(folder / "tokens.bin", dtype=meta["dtype"], mode="r")
        type_ids = np.memmap(folder / "type_ids.bin", dtype=np.uint8, mode="r") if meta["has_type_ids"] else None
        token_values = {
            name: np.memmap(folder / f"token_{name}.bin", dtype=dtype, mode="r")
            for name, dtype in meta["of_tokens"].items()
        }
        row_values = {name: np.load(folder / f"row_{name}.npy", **rows) for name in meta["of_rows"]}
        max_length, fingerprint, num_unknown = int(meta["max_length"]), str(meta["fingerprint"]), meta["num_unknown"]
    except (CheckpointError, OSError, KeyError, TypeError, AttributeError) as error:
        # The caller deletes a damaged folder and tokenizes again: a lack of memory must not look like damage.
        for cause in (error, error.__cause__):
            if isinstance(cause, OSError) and cause.errno in _NOT_DAMAGE:
                raise cause from None
        raise ValueError(str(error)) from error
    if meta["format_version"] != FORMAT_VERSION or fingerprint != folder.name:
        raise ValueError("it belongs to other tokens")
    is_whole = offsets[0] == 0 and offsets[-1] == len(tokens) and bool((np.diff(offsets) > 0).all())
    if not is_whole or len(full_lengths) != len(offsets) - 1:
        raise ValueError("its offsets do not fit its tokens")
    return TokenStore(
        tokens, type_ids, offsets, full_lengths, max_length, fingerprint, token_values, row_values, num_unknown
    )


class StoreWriter(AbstractContextManager["StoreWriter"]):
    """Writes a temporary folder, which `finish` renames to its final name; without `finish`, leaving deletes it.

    Without a folder, the tokens stay in memory: `store` has them after `finish`.
    """

    def __init__(
        self,
        folder: Path | None,
        dtype: str,
        *,
        has_type_ids: bool,
        unknown_id: int | None = None,
        token_values: Mapping[str, str] | None = None,
    ) -> None:
        """Create the temporary folder.

        Args:
            folder: Final folder, which does not exist yet; None for memory.
            dtype: Dtype of the token ids.
            has_type_ids: Whether `add` receives type ids.
            unknown_id: Id of the unknown token, to count it; None where the tokenizer has none.
            token_values: Names and dtypes of further values of each token that `add` receives.
        """
        self._folder, self._token_values = folder, dict(token_values or {})
        self._temporary = None if folder is None else folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
        if self._temporary is not None:
            self._temporary.mkdir(parents=True)
        self._dtypes = {
            "tokens": np.dtype(dtype),
            **({"type_ids": np.dtype(np.uint8)} if has_type_ids else {}),
            **{f"token_{name}": np.dtype(kind) for name, kind in self._token_values.items()},
        }
        self._files = {name: self._open(f"{name}.bin") for name in self._dtypes}
        self._lengths: list[int] = []
        self._full_lengths: list[int] = []
        self._unknown_id, self._num_unknown = unknown_id, 0
        self.store: TokenStore | None = None

    def _open(self, name: str) -> Any:
        return io.BytesIO() if self._temporary is None else (self._temporary / name).open("wb")

    def add(
        self,
        ids: list[list[int]],
        type_ids: list[list[int]] | None,
        full_lengths: Iterable[int],
        token_values: Mapping[str, list[list[int]]] | None = None,
    ) -> None:
        """Append samples."""
        values = {f"token_{name}": rows for name, rows in (token_values or {}).items()}
        values |= {"tokens": ids} | ({} if type_ids is None else {"type_ids": type_ids})
        for name, file in self._files.items():
            flat = np.fromiter(chain.from_iterable(values[name]), self._dtypes[name], sum(map(len, values[name])))
            self._num_unknown += int(np.count_nonzero(flat == self._unknown_id)) if name == "tokens" else 0
            file.write(flat.data)
        self._lengths.extend(map(len, ids))
        self._full_lengths.extend(full_lengths)

    def finish(self, max_length: int, row_values: Mapping[str, npt.NDArray[Any]] | None = None) -> None:
        """End the store: write the remaining files, sync, and rename the folder to its final name.

        Args:
            max_length: Tokens after which samples were truncated.
            row_values: (N, ...) each: further values of each sample, by name.
        """
        row_values = dict(row_values or {})
        offsets, full_lengths = offsets_of(self._lengths), np.asarray(self._full_lengths, np.int32)
        num_unknown = None if self._unknown_id is None else self._num_unknown
        if self._folder is None or self._temporary is None:
            arrays = {name: np.frombuffer(file.getbuffer(), self._dtypes[name]) for name, file in self._files.items()}
            tokens, type_ids = arrays["tokens"], arrays.get("type_ids")
            token_values = {name: arrays[f"token_{name}"] for name in self._token_values}
            self.store = TokenStore(
                tokens, type_ids, offsets, full_lengths, max_length, "", token_values, row_values, num_unknown
            )
            return
        saved: dict[str, npt.NDArray[Any]] = {"offsets": offsets, "full_lengths": full_lengths}
        saved |= {f"row_{name}": array for name, array in row_values.items()}
        for name, array in saved.items():
            np.save(self._temporary / f"{name}.npy", array, allow_pickle=False)
        for file in self._files.values():
            file.close()
        for path in self._temporary.iterdir():
            sync(path)
        meta = {
            "format_version": FORMAT_VERSION,
            "fingerprint": self._folder.name,
            "dtype": self._dtypes["tokens"].str,
            "has_type_ids": "type_ids" in self._dtypes,
            "max_length": max_length,
            "of_tokens": self._token_values,
            "of_rows": list(row_values),
            "num_samples": len(self._lengths),
            "num_tokens": int(offsets[-1]),
            "num_unknown": num_unknown,
            "num_bytes": {item.name: item.stat().st_size for item in sorted(self._temporary.iterdir())},
            "sha256": {item.name: file_sha256(item) for item in sorted(self._temporary.iterdir())},
        }
        # The last file: a folder without it is incomplete. The rename comes after all syncs, so that a power cut
        # leaves the final name with whole files, or no final name.
        write_json(self._temporary / "meta.json", meta)
        self._temporary.rename(self._folder)
        sync(self._folder.parent)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._temporary is None:
            return
        for file in self._files.values():
            with suppress(OSError):  # closing writes the buffer, which fails again on a full disk
                file.close()
        remove_folder(self._temporary)


def offsets_of(lengths: Sequence[int] | npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """Return the first place of each of several consecutive parts, and the end of the last one, (len(lengths) + 1,)."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def remove_folder(folder: Path) -> None:
    """Delete a token folder, which contains only files, and what a killed process has left of it, where they exist."""
    for place in (folder, *folder.parent.glob(f"{folder.name}.*.tmp")):
        if place.is_dir():
            for item in place.iterdir():
                item.unlink(missing_ok=True)
            place.rmdir()


@contextmanager
def explain_disk_errors(folder: Path) -> Iterator[None]:
    """Replace errors of a full or read-only disk by a DataError with advice."""
    try:
        yield
    except OSError as error:
        reasons = {
            errno.ENOSPC: f"the disk is full ({_free(folder)} without them)",
            errno.EDQUOT: "the quota is used up",
            errno.EACCES: "permission denied",
            errno.EPERM: "permission denied",
            errno.EROFS: "it is read-only",
            errno.ENOENT: "the folder does not exist and cannot be created",
            errno.ENOTDIR: "a part of the path is a file",
        }
        if error.errno not in reasons:
            raise
        raise DataError(
            f"tokens cannot be written to {folder}: {reasons[error.errno]}; free space there, or set another "
            "folder with data.cache_dir or $PARATUNE_CACHE",
            code="output.not_writable",
            folder=folder,
        ) from error


def _free(folder: Path) -> str:
    """Return the free space of the file system of `folder`, for a message."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return f"{format_bytes(shutil.disk_usage(folder).free)} free"
