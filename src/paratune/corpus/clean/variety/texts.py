"""Reads the training texts of the classifier, in groups of successive lines."""

import hashlib
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paratune.corpus.clean.settings import VarietySource
from paratune.corpus.index.inputs import find_files
from paratune.errors import DataError
from paratune.records import file_sha256

MIN_WORDS = 4
"""Minimum number of words of a line."""
GROUP = 8
"""Lines of a group; a group is also used as a document."""
MIN_GROUPS, MAX_GROUPS = 10, 200
"""Groups of each variety of a source; of more groups, those with the smallest hashes are used."""
HELD_OUT = 10
"""One of so many groups is held out."""


@dataclass(frozen=True)
class LineGroup:
    """Successive lines of a text."""

    lines: tuple[str, ...]
    is_held_out: bool

    @property
    def document(self) -> str:
        return " ".join(self.lines)


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source."""

    name: str
    brazilian: list[Path]
    european: list[Path]
    columns: list[str]

    def identity(self) -> dict[str, Any]:
        """Return a JSON value that changes when the texts change."""
        sides = {"brazilian": self.brazilian, "european": self.european}
        hashes = {side: [[path.as_posix(), file_sha256(path)] for path in paths] for side, paths in sides.items()}
        return {"name": self.name, "columns": self.columns, **hashes}


def source_files(source: VarietySource) -> SourceFiles:
    """Find the files of a source.

    Raises:
        DataError: A path or pattern matches no file.
    """
    called = f"clean.variety.sources: {source.name}"
    return SourceFiles(
        source.name, find_files(source.brazilian, called), find_files(source.european, called), source.columns
    )


def groups_by_source(sources: Sequence[SourceFiles]) -> dict[str, tuple[list[LineGroup], list[LineGroup]]]:
    """Return the groups of each source, see `line_groups`.

    A line of several sources counts for the first only, so that no test line of a source is in a training source.

    Raises:
        DataError: A file is unreadable or has no column of `columns`, or there is too little text.
    """
    groups: dict[str, tuple[list[LineGroup], list[LineGroup]]] = {}
    seen: set[str] = set()
    for source in sources:
        groups[source.name] = line_groups(source, seen)
        seen.update(line for side in groups[source.name] for group in side for line in group.lines)
    return groups


def line_groups(files: SourceFiles, seen: Set[str] = frozenset()) -> tuple[list[LineGroup], list[LineGroup]]:
    """Return the Brazilian and the European groups of a source, without lines in both or in `seen`.

    Raises:
        DataError: A file is unreadable or has no column of `columns`, or there is too little text.
    """
    sides = [
        list(dict.fromkeys(line for path in paths for line in _lines(path, files.columns)))
        for paths in (files.brazilian, files.european)
    ]
    left_out = seen | (set(sides[0]) & set(sides[1]))
    groups = [_groups([line for line in lines if line not in left_out]) for lines in sides]
    for variety, variety_groups in zip(("brazilian", "european"), groups, strict=True):
        if len(variety_groups) < MIN_GROUPS:
            raise DataError(
                f"clean.variety.sources: {files.name}, {variety} has fewer than {MIN_GROUPS * GROUP} lines "
                f"of {MIN_WORDS} words that neither the other variety nor a source before has; name more files",
                code="corpus.too_little_text",
                key="clean.variety.sources",
                name=files.name,
                variety=variety,
            )
    return groups[0], groups[1]


def _groups(lines: Sequence[str]) -> list[LineGroup]:
    """Return groups of lines; only their hashes decide which are used and which are held out."""
    cut = [tuple(lines[start : start + GROUP]) for start in range(0, len(lines) - GROUP + 1, GROUP)]
    order = sorted(cut, key=lambda group: hashlib.sha256(" ".join(group).encode("utf-8", "replace")).digest())
    taken = order[:MAX_GROUPS]
    held_out, wanted = set(taken[::HELD_OUT]), set(taken)
    return [LineGroup(lines, lines in held_out) for lines in cut if lines in wanted]


def _lines(path: Path, columns: Sequence[str]) -> Iterator[str]:
    for text in _texts(path, columns):
        for line in text.split("\n"):
            if len(line.split()) >= MIN_WORDS:
                yield " ".join(line.split())


def _texts(path: Path, columns: Sequence[str]) -> Iterator[str]:
    try:
        if path.suffix != ".parquet":
            yield path.read_text(encoding="utf-8")
            return
        with pq.ParquetFile(path) as table:
            wanted = [name for name in columns if name in table.schema_arrow.names]
            if not wanted:
                message = f"{path} has the columns {', '.join(table.schema_arrow.names)}; put one of them in columns"
                raise DataError(message, code="data.columns_unfit", path=path)
            for batch in table.iter_batches(columns=wanted):
                for row in batch.to_pylist():
                    yield from (row[name] for name in wanted if isinstance(row[name], str))
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        message = f"{path} cannot be read ({error}); allowed: UTF-8 texts and Parquet tables"
        raise DataError(message, code="data.unreadable", path=path) from error
