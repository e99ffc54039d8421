"""Finds the files of an index by path or pattern, and opens them with limits for compressed files.

Archives are untrusted: nothing is extracted to disk; archives with suspicious compression ratios or names are refused.
"""

import gzip
import io
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, cast

from paratune.errors import DataError

MAX_RATIO = 200
"""Maximum ratio of unpacked to compressed bytes; indexes reach 20, deflate 1,032."""
FREE_BYTES = 64 << 20
"""Unpacked bytes up to which the ratio is not checked."""
MAX_MEMBERS = 100_000
"""Maximum number of files in a ZIP."""
SUFFIXES = (".cdx", ".cdxj", ".json", ".jsonl", ".ndjson", ".cdx.gz", ".cdxj.gz", ".json.gz", ".jsonl.gz", ".ndjson.gz")
"""Suffixes of indexes in a ZIP."""


@dataclass(frozen=True)
class Source:
    """An index or archive file with captures."""

    path: Path
    kind: Literal["cdx", "warc"]
    member: str | None = None
    """Name in a ZIP."""

    @property
    def name(self) -> str:
        """Name in rows and messages."""
        return self.path.name if self.member is None else f"{self.path.name}/{self.member}"


def find_files(patterns: Sequence[str], key: str) -> list[Path]:
    """Return the files that match paths and patterns, each once, in order; those of a pattern by name.

    Raises:
        DataError: A path or pattern matches no file.
    """
    paths: list[Path] = []
    for pattern in patterns:
        names = sorted(glob(pattern, recursive=True)) if has_magic(pattern) else [pattern]  # noqa: PTH207 - also absolute ones
        files = [Path(name) for name in names if Path(name).is_file()]
        if not files:
            problem = "is a folder; use its files (folder/*)" if Path(pattern).is_dir() else "matches no file"
            raise DataError(f"{key}: {pattern} {problem}", code="data.not_found", key=key, pattern=pattern)
        paths += files
    return list(dict.fromkeys(paths))


def file_identity(paths: Iterable[Path]) -> list[list[Any]]:
    """Return a JSON value that changes when the files change: path, size and time of each."""
    stats = [(path.as_posix(), path.stat()) for path in paths]
    return [[path, stat.st_size, stat.st_mtime_ns] for path, stat in stats]


def index_sources(path: Path, max_bytes: int) -> tuple[list[Source], list[str]]:
    """Return the indexes in a file, and the names of other files in a ZIP.

    Raises:
        DataError: The file is a ZIP that is damaged or unsafe.
    """
    if path.suffix.lower() != ".zip":
        return [Source(path, "cdx")], []
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if not member.filename.endswith("/")]
    except (OSError, UnicodeError, zipfile.BadZipFile, NotImplementedError) as error:
        message = f"{path} cannot be read as a ZIP: {error}"
        raise DataError(message, code="corpus.archive_unreadable", path=path) from error
    _check_zip(path, members, max_bytes)
    wanted = [member.filename for member in members if member.filename.lower().endswith(SUFFIXES)]
    if not wanted:
        message = f"{path} contains no index; names of indexes end in {', '.join(SUFFIXES)}"
        raise DataError(message, code="corpus.archive_unreadable", path=path)
    others = [member.filename for member in members if member.filename not in wanted]
    return [Source(path, "cdx", name) for name in wanted], others


def _unsafe(path: Path, problem: str, **facts: Any) -> DataError:
    return DataError(problem, code="corpus.archive_unsafe", path=path, **facts)


def _check_zip(path: Path, members: Sequence[zipfile.ZipInfo], max_bytes: int) -> None:
    if len(members) > MAX_MEMBERS:
        raise _unsafe(path, f"{path} contains {len(members)} files; allowed: {MAX_MEMBERS}")
    names = [member.filename for member in members]
    if len(set(names)) < len(names):
        raise _unsafe(path, f"{path} contains a name twice; unpack it by hand and use its files")
    for name, member in zip(names, members, strict=True):
        inside = PurePosixPath(name.replace("\\", "/"))
        if inside.is_absolute() or not inside.parts or ".." in inside.parts or ":" in inside.parts[0]:
            raise _unsafe(path, f"{path}: the path {name!r} is outside of the archive; it is not read", filename=name)
        if member.flag_bits & 1:
            raise _unsafe(path, f"{path}: {name} is encrypted; unpack it first", filename=name)
        if inside.suffix.lower() == ".zip":
            raise _unsafe(path, f"{path}: {name} is a ZIP in a ZIP; unpack the outer one first", filename=name)
    packed, unpacked = sum(member.compress_size for member in members), sum(member.file_size for member in members)
    _check_size(path, packed, unpacked, max_bytes)


def _check_size(path: Path, packed: int, unpacked: int, max_bytes: int) -> None:
    if unpacked > max_bytes:
        limit = f"{max_bytes / 2**30:g} GiB; raise index.max_unpacked_gib to read it"
        raise _unsafe(path, f"{path} unpacks to more than {limit}")
    if unpacked > FREE_BYTES and unpacked > MAX_RATIO * packed:
        raise _unsafe(
            path, f"{path} unpacks to more than {MAX_RATIO} times its size, which no index does; it is not read"
        )


@contextmanager
def open_index(source: Source, max_bytes: int) -> Iterator[BinaryIO]:
    """Open an index for reading, decompressed.

    Raises:
        DataError: The file is unreadable or damaged, or unpacks to too many bytes; also raised during reading.
    """
    try:
        with source.path.open("rb") as file:
            if source.member is None:
                yield _unpacked(file, source.path.stat().st_size, source, max_bytes)
                return
            with zipfile.ZipFile(file) as archive, archive.open(source.member) as member:
                # The sizes in a ZIP may be wrong, so bytes are counted again.
                yield _unpacked(cast(BinaryIO, member), archive.getinfo(source.member).compress_size, source, max_bytes)
    except (OSError, EOFError, UnicodeError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
        message = f"{source.name} cannot be read to its end: {error}"
        raise DataError(message, code="corpus.archive_unreadable", name=source.name) from error


def _unpacked(file: BinaryIO, packed: int, source: Source, max_bytes: int) -> BinaryIO:
    counted = io.BufferedReader(_Counted(file, packed, source.path, max_bytes))
    if counted.peek(2)[:2] != b"\x1f\x8b":
        return cast(BinaryIO, counted)
    unpacked = gzip.GzipFile(fileobj=counted)
    return cast(BinaryIO, io.BufferedReader(_Counted(cast(BinaryIO, unpacked), packed, source.path, max_bytes)))


class _Counted(io.RawIOBase):
    """Reads from another file and raises when there are too many bytes."""

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
