"""The texts that the classifier is trained on, in groups of lines that follow each other."""

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
"""Of a line: shorter ones tell nothing."""
GROUP = 8
"""Lines of a group; joined they are a document."""
MIN_GROUPS, MAX_GROUPS = 10, 200
"""Of one variety of a source; of more those with the smallest hashes are taken."""
HELD_OUT = 10
"""Of so many groups one is held out."""


@dataclass(frozen=True)
class LineGroup:
    """Lines that follow each other."""

    lines: tuple[str, ...]
    is_held_out: bool

    @property
    def document(self) -> str:
        return " ".join(self.lines)


@dataclass(frozen=True)
class Files:
    """Where the texts of a source are."""

    name: str
    brazilian: list[Path]
    european: list[Path]
    columns: list[str]

    def identity(self) -> dict[str, Any]:
        """Return what tells whether the texts are still the same, as JSON has it."""
        sides = {"brazilian": self.brazilian, "european": self.european}
        hashes = {side: [[path.as_posix(), file_sha256(path)] for path in paths] for side, paths in sides.items()}
        return {"name": self.name, "columns": self.columns, **hashes}


def files_of(source: VarietySource) -> Files:
    """Find the files of a source.

    Raises:
        DataError: A name or a pattern means none.
    """
    called = f"clean.variety.sources: {source.name}"
    return Files(source.name, find_files(source.brazilian, called), find_files(source.european, called), source.columns)


def groups_by_source(sources: Sequence[Files]) -> dict[str, tuple[list[LineGroup], list[LineGroup]]]:
    """Return the groups of each source, see `groups_of`; a line that several have is that of the first.

    So no line on which a classifier is tested stands in another source that it was trained on.

    Raises:
        DataError: A file cannot be read or has none of the columns, or there is too little text.
    """
    found: dict[str, tuple[list[LineGroup], list[LineGroup]]] = {}
    seen: set[str] = set()
    for source in sources:
        found[source.name] = groups_of(source, seen)
        seen.update(line for side in found[source.name] for group in side for line in group.lines)
    return found


def groups_of(files: Files, seen: Set[str] = frozenset()) -> tuple[list[LineGroup], list[LineGroup]]:
    """Return the groups of a source, the Brazilian and the European ones; lines that both have tell nothing.

    Args:
        files: Those of the source.
        seen: Lines to leave out.

    Raises:
        DataError: A file cannot be read or has none of the columns, or there is too little text.
    """
    sides = [
        list(dict.fromkeys(line for path in paths for line in _lines(path, files.columns)))
        for paths in (files.brazilian, files.european)
    ]
    left_out = seen | (set(sides[0]) & set(sides[1]))
    groups = [_groups([line for line in lines if line not in left_out]) for lines in sides]
    for variety, found in zip(("brazilian", "european"), groups, strict=True):
        if len(found) < MIN_GROUPS:
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
    """Cut lines into groups; which of them are taken and held out depends on their hashes alone."""
    cut = [tuple(lines[start : start + GROUP]) for start in range(0, len(lines) - GROUP + 1, GROUP)]
    order = sorted(cut, key=lambda group: hashlib.sha256(" ".join(group).encode("utf-8", "replace")).digest())
    taken = order[:MAX_GROUPS]
    held_out, wanted = set(taken[::HELD_OUT]), set(taken)
    return [LineGroup(each, each in held_out) for each in cut if each in wanted]


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
                raise DataError(
                    f"{path} has the columns {', '.join(table.schema_arrow.names)}; name one in columns",
                    code="data.columns_unfit",
                    path=path,
                )
            for batch in table.iter_batches(columns=wanted):
                for row in batch.to_pylist():
                    yield from (row[name] for name in wanted if isinstance(row[name], str))
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(
            f"{path} cannot be read ({error}); allowed: UTF-8 texts and Parquet tables",
            code="data.unreadable",
            path=path,
        ) from error
