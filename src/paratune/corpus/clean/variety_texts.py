"""Reads the training texts of the classifier of varieties, in groups of successive lines."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from paratune.corpus.clean.settings import VarietySource
from paratune.corpus.index.inputs import find_files
from paratune.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

MIN_WORDS = 4
"""Minimum number of words of a line."""
GROUP = 8
"""Lines of a group; a group is also used as a document."""
MIN_GROUPS, MAX_GROUPS = 10, 200
"""Groups of each variety of a source; of more groups, those with the smallest hashes are used."""
HELD_OUT = 10
"""One of so many groups is held out."""


def source_files(source: VarietySource) -> list[Path]:
    """Find the files of a source: those in Brazilian Portuguese, then those in European Portuguese.

    Raises:
        DataError: A path or pattern matches no file.
    """
    return find_files([*source.brazilian, *source.european], f"clean.variety.sources: {source.name}")


def read_sources(sources: Sequence[VarietySource]) -> "pd.DataFrame":
    """Return the training texts of sources.

    Lines in both varieties of a source are left out. A line of several sources counts for the first only, so that no
    test line of a source is in a training source.

    Returns:
        A row for each line, and for each group of lines, joined by spaces, with the columns source, is_european, length
        (line or document), text, and is_held_out.

    Raises:
        DataError: A file is missing, is unreadable or has no column of `columns`, or there is too little text.
    """
    import pandas as pd

    rows: list[tuple[str, bool, str, str, bool]] = []
    seen: set[str] = set()
    for source in sources:
        key = f"clean.variety.sources: {source.name}"
        sides = [
            list(dict.fromkeys(line for path in find_files(patterns, key) for line in _lines(path, source.columns)))
            for patterns in (source.brazilian, source.european)
        ]
        left_out = seen | (set(sides[0]) & set(sides[1]))
        for is_european, lines in enumerate(sides):
            groups = _groups([line for line in lines if line not in left_out])
            if len(groups) < MIN_GROUPS:
                variety = ("brazilian", "european")[is_european]
                raise DataError(
                    f"{key}, {variety} has fewer than {MIN_GROUPS * GROUP} lines of {MIN_WORDS} words that neither the "
                    "other variety nor a source before has; name more files",
                    code="corpus.too_little_text",
                    key="clean.variety.sources",
                    name=source.name,
                    variety=variety,
                )
            for group, is_held_out in groups:
                seen.update(group)
                texts = [*(("line", line) for line in group), ("document", " ".join(group))]
                rows += [(source.name, bool(is_european), length, text, is_held_out) for length, text in texts]
    return pd.DataFrame(rows, columns=["source", "is_european", "length", "text", "is_held_out"])


def _groups(lines: Sequence[str]) -> list[tuple[tuple[str, ...], bool]]:
    """Return groups of lines, and whether they are held out; only their hashes decide which are used and held out."""
    cut = [tuple(lines[start : start + GROUP]) for start in range(0, len(lines) - GROUP + 1, GROUP)]
    order = sorted(cut, key=lambda group: hashlib.sha256(" ".join(group).encode("utf-8", "replace")).digest())
    place = {group: number for number, group in enumerate(order[:MAX_GROUPS])}
    return [(group, place[group] % HELD_OUT == 0) for group in cut if group in place]


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
