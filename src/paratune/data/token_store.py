"""Tokens on disk: one flat, memory-mapped file for all samples of a split, whole or absent.

    <cache>/tokens/<fingerprint>/
      tokens.bin          token ids one after another, uint16 or uint32, little-endian
      type_ids.bin        token types, uint8; absent where the model has no such input
      offsets.npy         (N + 1,) int64: sample i is tokens[offsets[i]:offsets[i + 1]]
      full_lengths.npy    (N,) int32: tokens of each sample before truncation
      token_NAME.bin      what else a task keeps of each token
      row_NAME.npy        what else a task keeps of each sample
      meta.json           counts, and size and SHA-256 of each file; written last

Floor 3, without torch.
"""

import errno
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from paratune.base.atomic import sync
from paratune.base.units import format_bytes
from paratune.errors import CheckpointError, DataError
from paratune.records import file_sha256, read_json, write_json

FORMAT_VERSION = 3
TokenArray = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class TokenStore:
    """The tokens of the samples of one split; arrays are memory-mapped, so ranks on a node share the pages."""

    tokens: TokenArray
    """(num_tokens,), uint16 or uint32."""
    type_ids: TokenArray | None
    """(num_tokens,), uint8; None where the model has no such input."""
    offsets: npt.NDArray[np.int64]
    """(N + 1,): sample i is tokens[offsets[i]:offsets[i + 1]]."""
    full_lengths: npt.NDArray[np.int32]
    """(N,): tokens before truncation, special ones included."""
    max_length: int
    """Tokens after which samples were truncated."""
    fingerprint: str
    """SHA-256 over texts, tokenizer and settings; name of the folder."""
    of_tokens: Mapping[str, TokenArray] = field(default_factory=dict)
    """(num_tokens,) each: what else a task keeps of each token, by name."""
    of_rows: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """(N, ...) each: what else a task keeps of each sample, by name."""
    num_unknown: int | None = None
    """Tokens that stand for text which the vocabulary does not have; None where the tokenizer has no such token."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """(N,): tokens of each sample after truncation."""
        return np.diff(self.offsets)

    def lengths_of(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the lengths of some samples, without looking at the others."""
        offsets = np.asarray(self.offsets)  # indexing a memmap makes another memmap, which takes longer than the copy
        lengths: npt.NDArray[np.int64] = offsets[indices + 1] - offsets[indices]
        return lengths

    @property
    def num_tokens(self) -> int:
        return int(self.offsets[-1])

    @property
    def share_unknown(self) -> float | None:
        """Part of the tokens that stand for text which the vocabulary does not have, 0 to 1; None where not known."""
        return None if self.num_unknown is None else self.num_unknown / self.num_tokens

    @property
    def num_truncated(self) -> int:
        """Samples that lost tokens."""
        return int(np.count_nonzero(self.full_lengths > self.lengths))

    def __getstate__(self) -> dict[str, Any]:
        """Return what goes to another process: of arrays that are mapped from a file, where they are in it."""
        values = {key: _sent(value) for key, value in vars(self).items()}
        for key in ("of_tokens", "of_rows"):
            values[key] = {name: _sent(array) for name, array in values[key].items()}
        return values

    def __setstate__(self, values: dict[str, Any]) -> None:
        for key in ("of_tokens", "of_rows"):
            values[key] = {name: _received(value) for name, value in values[key].items()}
        self.__dict__.update({key: _received(value) for key, value in values.items()})


@dataclass(frozen=True)
class _Mapped:
    """An array that is all of a part of a file."""

    path: str
    dtype: np.dtype[Any]
    offset: int
    shape: tuple[int, ...]
    order: Literal["C", "F"]


def _sent(value: Any) -> Any:
    if not isinstance(value, np.memmap):
        return value
    base: Any = value.base
    if not isinstance(base, mmap.mmap):  # a view, which has the offset of the whole
        return value
    order: Literal["C", "F"] = "F" if value.flags.fnc else "C"
    return _Mapped(str(value.filename), value.dtype, value.offset, value.shape, order)


def _received(value: Any) -> Any:
    if not isinstance(value, _Mapped):
        return value
    return np.memmap(value.path, value.dtype, "r", value.offset, value.shape, value.order)


def open_store(folder: Path) -> TokenStore:
    """Open a finished folder, after reading all of it: a flipped bit would train another model.

    Raises:
        FileNotFoundError: It does not exist.
        ValueError: It is not what its `meta.json` says.
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
        offsets = np.load(folder / "offsets.npy", allow_pickle=False, mmap_mode="r")
        full_lengths = np.load(folder / "full_lengths.npy", allow_pickle=False, mmap_mode="r")
        tokens = np.memmap(folder / "tokens.bin", dtype=meta["dtype"], mode="r")
        type_ids = np.memmap(folder / "type_ids.bin", dtype=np.uint8, mode="r") if meta["has_type_ids"] else None
        of_tokens = {
            name: np.memmap(folder / f"token_{name}.bin", dtype=dtype, mode="r")
            for name, dtype in meta["of_tokens"].items()
        }
        of_rows = {
            name: np.load(folder / f"row_{name}.npy", allow_pickle=False, mmap_mode="r") for name in meta["of_rows"]
        }
        max_length, fingerprint, num_unknown = int(meta["max_length"]), str(meta["fingerprint"]), meta["num_unknown"]
    except (CheckpointError, OSError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error
    if meta["format_version"] != FORMAT_VERSION or fingerprint != folder.name:
        raise ValueError("it belongs to other tokens")
    is_whole = offsets[0] == 0 and offsets[-1] == len(tokens) and bool((np.diff(offsets) > 0).all())
    if not is_whole or len(full_lengths) != len(offsets) - 1:
        raise ValueError("its offsets do not fit its tokens")
    return TokenStore(tokens, type_ids, offsets, full_lengths, max_length, fingerprint, of_tokens, of_rows, num_unknown)


class StoreWriter(AbstractContextManager["StoreWriter"]):
    """Writes a folder aside; `finish` puts it into its place. Left without `finish`, nothing stays."""

    def __init__(
        self,
        folder: Path,
        dtype: str,
        *,
        has_type_ids: bool,
        unknown_id: int | None = None,
        of_tokens: Mapping[str, str] | None = None,
    ) -> None:
        """Begin a folder.

        Args:
            folder: Does not exist yet.
            dtype: Of the token ids.
            has_type_ids: Whether `add` gets them.
            unknown_id: Id of the token for text that is not in the vocabulary, which is counted; None where none is.
            of_tokens: What else `add` gets of each token: name and dtype.
        """
        self._folder, self._dtype = folder, np.dtype(dtype)
        self._aside = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
        self._aside.mkdir(parents=True)
        self._tokens = (self._aside / "tokens.bin").open("wb")
        self._type_ids = (self._aside / "type_ids.bin").open("wb") if has_type_ids else None
        self._dtypes = dict(of_tokens or {})
        self._others = {name: (self._aside / f"token_{name}.bin").open("wb") for name in self._dtypes}
        self._lengths: list[int] = []
        self._full_lengths: list[int] = []
        self._unknown_id, self._num_unknown = unknown_id, 0

    def add(
        self,
        ids: list[list[int]],
        type_ids: list[list[int]] | None,
        full_lengths: Iterable[int],
        of_tokens: Mapping[str, list[list[int]]] | None = None,
    ) -> None:
        """Append samples."""
        flat = _flat(ids, self._dtype)
        self._num_unknown += int(np.count_nonzero(flat == self._unknown_id))
        self._tokens.write(flat.data)
        if self._type_ids is not None:
            assert type_ids is not None
            self._type_ids.write(_flat(type_ids, np.dtype(np.uint8)).data)
        for name, file in self._others.items():
            assert of_tokens is not None
            file.write(_flat(of_tokens[name], np.dtype(self._dtypes[name])).data)
        self._lengths.extend(map(len, ids))
        self._full_lengths.extend(full_lengths)

    def finish(self, max_length: int, of_rows: Mapping[str, npt.NDArray[Any]] | None = None) -> None:
        """Write the rest, sync, and rename the folder into its place.

        Args:
            max_length: Tokens after which samples were truncated.
            of_rows: (N, ...) each: what else is kept of each sample, by name.
        """
        offsets = np.concatenate([[0], np.cumsum(self._lengths)]).astype(np.int64)
        arrays: dict[str, npt.NDArray[Any]] = {
            "offsets": offsets,
            "full_lengths": np.asarray(self._full_lengths, np.int32),
            **{f"row_{name}": array for name, array in (of_rows or {}).items()},
        }
        for name, array in arrays.items():
            np.save(self._aside / f"{name}.npy", array, allow_pickle=False)
        for file in self._data_files():
            file.close()
        for path in self._aside.iterdir():
            sync(path)
        meta = {
            "format_version": FORMAT_VERSION,
            "fingerprint": self._folder.name,
            "dtype": self._dtype.str,
            "has_type_ids": self._type_ids is not None,
            "max_length": max_length,
            "of_tokens": self._dtypes,
            "of_rows": list(of_rows or {}),
            "num_samples": len(self._lengths),
            "num_tokens": int(offsets[-1]),
            "num_unknown": None if self._unknown_id is None else self._num_unknown,
            "num_bytes": {item.name: item.stat().st_size for item in sorted(self._aside.iterdir())},
            "sha256": {item.name: file_sha256(item) for item in sorted(self._aside.iterdir())},
        }
        write_json(self._aside / "meta.json", meta)
        self._aside.rename(self._folder)
        sync(self._folder.parent)

    def _data_files(self) -> list[Any]:
        return [self._tokens, *([] if self._type_ids is None else [self._type_ids]), *self._others.values()]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._data_files():
            try:
                file.close()
            except OSError:  # a full disk refuses the buffer once more
                continue
        remove_folder(self._aside)


def _flat(rows: list[list[int]], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the rows one after another."""
    return np.fromiter((item for row in rows for item in row), dtype=dtype, count=sum(map(len, rows)))


def remove_folder(folder: Path) -> None:
    """Delete a token folder, which holds files only; one that is already gone is fine."""
    if not folder.is_dir():
        return
    for item in folder.iterdir():
        item.unlink(missing_ok=True)
    folder.rmdir()


@contextmanager
def disk_errors_explained(folder: Path) -> Iterator[None]:
    """Turn what a full or read-only disk raises into a DataError that says what to do."""
    try:
        yield
    except OSError as error:
        reasons = {
            errno.ENOSPC: f"the disk is full ({_free(folder)} without them)",
            errno.EDQUOT: "the quota is used up",
            errno.EACCES: "it is not yours to write",
            errno.EPERM: "it is not yours to write",
            errno.EROFS: "it is read-only",
            errno.ENOENT: "there is no such folder, and it cannot be made",
            errno.ENOTDIR: "a part of it is a file",
        }
        if error.errno not in reasons:
            raise
        raise DataError(
            f"tokens cannot be written to {folder}: {reasons[error.errno]}; make room, or name another "
            "folder with data.cache_dir or $PARATUNE_CACHE",
            code="data.cache_not_writable",
            folder=folder,
        ) from error


def _free(folder: Path) -> str:
    """Return how much room is left where `folder` is or would be, for a message."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    place = os.statvfs(folder)
    return f"{format_bytes(place.f_bavail * place.f_frsize)} free"
