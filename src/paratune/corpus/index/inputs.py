"""Finds the files of an index by path or pattern, and opens them with a limit for unpacked bytes.

Archives are untrusted: nothing is extracted to disk, and bytes are counted, because sizes in a ZIP may be wrong.
"""

import gzip
import io
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from paratune.errors import DataError

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


def index_sources(path: Path) -> tuple[list[Source], list[str]]:
    """Return the indexes in a file, and the names of other files in a ZIP.

    Raises:
        DataError: The file is a ZIP that is damaged or has no index.
    """
    if path.suffix.lower() != ".zip":
        return [Source(path, "cdx")], []
    with _named(path.as_posix()), zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    wanted = [name for name in names if name.lower().endswith(SUFFIXES)]
    if not wanted:
        message = f"{path} contains no index; names of indexes end in {', '.join(SUFFIXES)}"
        raise DataError(message, code="corpus.archive_unreadable", path=path)
    return [Source(path, "cdx", name) for name in wanted], [name for name in names if name not in wanted]


@contextmanager
def open_index(source: Source, max_bytes: int) -> Iterator[BinaryIO]:
    """Open an index for reading, decompressed.

    Raises:
        DataError: The file is unreadable or damaged, or unpacks to too many bytes; also raised during reading.
    """
    with _named(source.name), ExitStack() as stack:
        file: Any = stack.enter_context(source.path.open("rb"))
        if source.member is not None:
            file = stack.enter_context(stack.enter_context(zipfile.ZipFile(file)).open(source.member))
        file = io.BufferedReader(file)
        if file.peek(2)[:2] == b"\x1f\x8b":
            file = gzip.GzipFile(fileobj=file)
        yield cast(BinaryIO, io.BufferedReader(_Counted(file, source.name, max_bytes)))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Replace errors of a damaged or encrypted file by an error that names it."""
    try:
        yield
    except (OSError, EOFError, UnicodeError, zlib.error, zipfile.BadZipFile, RuntimeError) as error:
        message = f"{name} cannot be read to its end: {error}"
        raise DataError(message, code="corpus.archive_unreadable", name=name) from error


class _Counted(io.RawIOBase):
    """Reads from another file and raises when there are too many bytes."""

    def __init__(self, file: Any, name: str, max_bytes: int) -> None:
        self._file, self._name, self._max = file, name, max_bytes
        self._num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        num_bytes = int(self._file.readinto(buffer))
        self._num_bytes += num_bytes
        if self._num_bytes > self._max:
            limit = f"{self._max / 2**30:g} GiB; raise index.max_unpacked_gib to read it"
            message = f"{self._name} unpacks to more than {limit}"
            raise DataError(message, code="corpus.archive_unsafe", name=self._name)
        return num_bytes
