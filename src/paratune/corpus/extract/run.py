"""The third stage: the text of each document that was fetched."""

import hashlib
import importlib.metadata
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from paratune.console import Display
from paratune.corpus.extract.found import Document, Extracted, Refused
from paratune.corpus.extract.process import CLOCK_FACTOR, DocumentReader
from paratune.corpus.extract.settings import Extract
from paratune.corpus.extract.tika import Tika
from paratune.corpus.rows import DOCUMENT_SCHEMA, Lost
from paratune.corpus.settings import Corpus
from paratune.corpus.stage import Stage, output_of, parts, run_stage
from paratune.errors import DataError, LaunchError, require_installed

FOLDER = "3_extract"
BEFORE = "2_fetch"
FORMAT = 2
"""Of the rows: raised when the same input gives others than before."""
LIBRARIES = {
    "trafilatura": "trafilatura",
    "lxml": "lxml",
    "pypdfium2": "pypdfium2",
    "kreuzberg": "kreuzberg",
    "ftfy": "ftfy",
    "cchardet": "faust-cchardet",
    "webencodings": "webencodings",
}
"""Modules on which the texts depend, with the packages that bring them."""
BUFFER_BYTES = 1 << 20
"""Read ahead of a column; without it a whole shard would be."""
STATUS_FILE = Path("/proc/self/status")


def run_extract(corpus: Corpus, workers: int, display: Display) -> dict[str, Any]:
    """Run the stage, or return what it found before.

    Returns:
        Its totals, as in stage.json.

    Raises:
        DataError: A table cannot be read, or Tika does not answer.
        CheckpointError: The stage before is not finished, or the folder cannot be written.
        LaunchError: The processes that read documents do not start, or this is not Linux.
        MissingDependency: The extra `corpus` is not installed.
    """
    for module in LIBRARIES:
        require_installed(module, extra="corpus")
    if not STATUS_FILE.exists():
        raise LaunchError(
            "extract needs Linux, which limits the memory of the processes that read documents",
            code="corpus.needs_linux",
        )
    work = Path(corpus.work)
    inputs = parts(work / BEFORE)
    source = output_of(work / BEFORE)
    versions = {package: importlib.metadata.version(package) for package in LIBRARIES.values()}
    settings = {**corpus.extract.model_dump(), "tika": corpus.extract.tika is not None}
    work_on = partial(extract_table, corpus.extract)
    kept = {**settings, "format": FORMAT, "versions": versions}
    stage = Stage("extract", work / FOLDER, DOCUMENT_SCHEMA, work_on, kept, source)
    return run_stage(stage, inputs, workers=workers, display=display)


def extract_table(settings: Extract, path: Path) -> Iterator[dict[str, Any] | Lost]:
    """Yield the documents of one table of what was fetched, and why others have no text.

    Raises:
        DataError: The table cannot be read, or Tika does not answer.
    """
    with _Extraction(settings) as extraction:
        for row in _rows(path):
            known = {"id": _id(row), "url": row["url"]}
            found = extraction.extract(row)
            if isinstance(found, Refused):
                yield Lost(reason=found.reason, detail=found.detail, **known)
            else:
                yield {**known, **_kept(row, found)}


class _Extraction:
    """All that reads documents."""

    def __init__(self, settings: Extract) -> None:
        self._reader = DocumentReader(settings)
        self._max_bytes = int(settings.max_mib * 2**20)
        self._tika = None
        if settings.tika is not None:
            self._tika = Tika(settings.tika, time_s=CLOCK_FACTOR * settings.time_s, max_bytes=self._max_bytes)

    def __enter__(self) -> "_Extraction":
        self._reader.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._reader.__exit__(*exception)

    def extract(self, row: Mapping[str, Any]) -> Extracted | Refused:
        """Return the text of a row, or why there is none."""
        payload = row["payload"] or b""
        if len(payload) > self._max_bytes:
            return Refused("large", f"{len(payload)} bytes")
        found = self._reader.read(Document(payload, row["url"], row["mime"], row["content_type"]))
        if self._tika is None or not isinstance(found, Refused) or found.reason != "kind" or found.mime is None:
            return found
        answer = self._tika.read(payload, found.mime)
        if isinstance(answer, Refused):
            return answer
        return self._reader.finish(*answer, mime=found.mime, extractor="tika")


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, one at a time: a document may have many MiB."""
    try:
        with closing(pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False)) as table:
            for batch in table.iter_batches(batch_size=1, use_threads=False):
                yield from batch.to_pylist()
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read: {error}; delete its folder to make it again", code="data.unreadable", path=path
        ) from error


def _id(row: Mapping[str, Any]) -> str:
    """Return the id of a document; of a capture whose index gave no digest, by that of its payload."""
    key = f"{row['url']} {row['timestamp']} {row['digest'] or row['sha1']}"
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _kept(row: Mapping[str, Any], found: Extracted) -> dict[str, Any]:
    return {
        "timestamp": row["timestamp"],
        "digest": row["digest"] or row["sha1"],
        "source": row["source"],
        "mime": found.mime,
        "charset": found.charset,
        "extractor": found.extractor,
        "licence": row["licence"] or found.licence,
        "robots": row["robots"] or found.robots,
        "title": found.title,
        "text": found.text,
        "sha256": hashlib.sha256(found.text.encode()).hexdigest(),
    }
