"""Files that an index is read from: found by name or pattern, unpacked within limits.

Archives come from strangers. Nothing of one is written to disk, and one that unpacks to far more than it is, or whose
names lead out of it, is refused.
"""

import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, cast

from paratune.errors import DataError

MAX_RATIO = 200
"""Most bytes that one compressed byte may unpack to; indexes reach 20, deflate 1,032."""
FREE_BYTES = 64 << 20
"""Unpacked bytes below which the ratio does not matter."""
MAX_MEMBERS = 100_000
"""Most files in one ZIP."""
SUFFIXES = (".cdx", ".cdxj", ".json", ".jsonl", ".ndjson", ".cdx.gz", ".cdxj.gz", ".json.gz", ".jsonl.gz", ".ndjson.gz")
"""How the names of indexes in a ZIP end."""


@dataclass(frozen=True)
class Source:
    """One stream of captures."""

    path: Path
    kind: Literal["cdx", "warc"]
    member: str | None = None
    """Name within a ZIP."""

    @property
    def name(self) -> str:
        """How rows and messages call it."""
        return self.path.name if self.member is None else f"{self.path.name}/{self.member}"


def find_files(patterns: Sequence[str], key: str) -> list[Path]:
    """Return the files that paths and patterns mean, each once, in their order; those of a pattern by name.

    Raises:
        DataError: One of them means no file.
    """
    found: list[Path] = []
    for pattern in patterns:
        names = sorted(glob(pattern, recursive=True)) if has_magic(pattern) else [pattern]  # noqa: PTH207 - also absolute ones
        files = [Path(name) for name in names if Path(name).is_file()]
        if not files:
            what = "is a folder; name files in it (folder/*)" if Path(pattern).is_dir() else "means no file"
            raise DataError(f"{key}: {pattern} {what}", code="data.not_found", key=key, pattern=pattern)
        found += files
    return list(dict.fromkeys(found))


def sources_of(path: Path, max_bytes: int) -> tuple[list[Source], list[str]]:
    """Return the indexes in a file, and the names of what is in a ZIP beside them.

    Raises:
        DataError: It is a ZIP that is damaged or hostile.
    """
    if path.suffix.lower() != ".zip":
        return [Source(path, "cdx")], []
    try:
        with zipfile.ZipFile(path) as archive:
            members = [each for each in archive.infolist() if not each.filename.endswith("/")]
    except (OSError, UnicodeError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(
            f"{path} cannot be read as a ZIP: {error}", code="corpus.archive_unreadable", path=path
        ) from error
    _check_zip(path, members, max_bytes)
    wanted = [each.filename for each in members if each.filename.lower().endswith(SUFFIXES)]
    if not wanted:
        raise DataError(
            f"{path} holds no index; names of indexes end in {', '.join(SUFFIXES)}",
            code="corpus.archive_unreadable",
            path=path,
        )
    others = [each.filename for each in members if each.filename not in wanted]
    return [Source(path, "cdx", name) for name in wanted], others


def _check_zip(path: Path, members: Sequence[zipfile.ZipInfo], max_bytes: int) -> None:
    if len(members) > MAX_MEMBERS:
        raise DataError(
            f"{path} holds {len(members)} files; allowed: {MAX_MEMBERS}", code="corpus.archive_unsafe", path=path
        )
    names = [each.filename for each in members]
    if len(set(names)) < len(names):
        raise DataError(
            f"{path} holds a name twice; unpack it by hand and name what is to be read",
            code="corpus.archive_unsafe",
            path=path,
        )
    for each in members:
        inside = PurePosixPath(each.filename.replace("\\", "/"))
        if inside.is_absolute() or not inside.parts or ".." in inside.parts or ":" in inside.parts[0]:
            raise DataError(
                f"{path}: the name {each.filename!r} leads out of the archive; it is not read",
                code="corpus.archive_unsafe",
                path=path,
                filename=each.filename,
            )
        if each.flag_bits & 1:
            raise DataError(
                f"{path}: {each.filename} is encrypted; unpack it first",
                code="corpus.archive_unsafe",
                path=path,
                filename=each.filename,
            )
        if inside.suffix.lower() == ".zip":
            raise DataError(
                f"{path}: {each.filename} is a ZIP within a ZIP; unpack the outer one first",
                code="corpus.archive_unsafe",
                path=path,
                filename=each.filename,
            )
    packed, unpacked = sum(each.compress_size for each in members), sum(each.file_size for each in members)
    _check_size(path, packed, unpacked, max_bytes)


def _check_size(path: Path, packed: int, unpacked: int, max_bytes: int) -> None:
    if unpacked > max_bytes:
        raise DataError(
            f"{path} unpacks to more than {max_bytes / 2**30:g} GiB; raise index.max_unpacked_gib if it is to be read",
            code="corpus.archive_unsafe",
            path=path,
        )
    if unpacked > FREE_BYTES and unpacked > MAX_RATIO * packed:
        raise DataError(
            f"{path} unpacks to more than {MAX_RATIO} times its size, as no index does; it is not read",
            code="corpus.archive_unsafe",
            path=path,
        )


@contextmanager
def open_index(source: Source, max_bytes: int) -> Iterator[BinaryIO]:
    """Open the unpacked bytes of an index.

    Raises:
        DataError: It cannot be read or is damaged, or unpacks to too much; also while it is read.
    """
    try:
        with source.path.open("rb") as file:
            if source.member is None:
                yield _unpacked(file, source.path.stat().st_size, source, max_bytes)
                return
            with zipfile.ZipFile(file) as archive, archive.open(source.member) as member:
                # What the ZIP says of its sizes may be a lie: they are counted again.
                yield _unpacked(cast(BinaryIO, member), archive.getinfo(source.member).compress_size, source, max_bytes)
    except (OSError, EOFError, UnicodeError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(
            f"{source.name} cannot be read to its end: {error}", code="corpus.archive_unreadable", name=source.name
        ) from error


def _unpacked(file: BinaryIO, packed: int, source: Source, max_bytes: int) -> BinaryIO:
    counted = io.BufferedReader(_Counted(file, packed, source.path, max_bytes))
    if counted.peek(2)[:2] != b"\x1f\x8b":
        return cast(BinaryIO, counted)
    unpacked = gzip.GzipFile(fileobj=counted)
    return cast(BinaryIO, io.BufferedReader(_Counted(cast(BinaryIO, unpacked), packed, source.path, max_bytes)))


class _Counted(io.RawIOBase):
    """Passes bytes on until there are too many."""

    def __init__(self, file: BinaryIO, packed: int, path: Path, max_bytes: int) -> None:
        self._file, self._packed, self._path, self._max = file, packed, path, max_bytes
        self._num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast(bytearray, buffer)).cast("B")
        chunk = self._file.read(len(view))
        view[: len(chunk)] = chunk
        self._num_bytes += len(chunk)
        _check_size(self._path, self._packed, self._num_bytes, self._max)
        return len(chunk)
