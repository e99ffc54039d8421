"""The stage `extract`: extracts the text of each fetched document."""

import hashlib
import importlib.metadata
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from paratune.console import Display
from paratune.corpus.extract.process import CLOCK_FACTOR, DocumentReader
from paratune.corpus.extract.results import Document, ExtractedText, NoText
from paratune.corpus.extract.tika import Tika
from paratune.corpus.rows import DOCUMENT_SCHEMA, DroppedRow
from paratune.corpus.settings import Corpus, Extract
from paratune.corpus.stage import Stage, run_stage, stage_output, stage_tables
from paratune.errors import DataError, LaunchError, require_installed

FOLDER = "3_extract"
BEFORE = "2_fetch"
FORMAT = 2  # version of the rows; increased when the same input gives other rows
LIBRARIES = {
    "trafilatura": "trafilatura",
    "lxml": "lxml",
    "pypdfium2": "pypdfium2",
    "kreuzberg": "kreuzberg",
    "ftfy": "ftfy",
    "cchardet": "faust-cchardet",
    "webencodings": "webencodings",
}
"""Modules on which the texts depend, with their packages."""
BUFFER_BYTES = 1 << 20
"""Read-ahead of a column; without it a whole shard would be read."""
STATUS_FILE = Path("/proc/self/status")


def run_extract(corpus: Corpus, workers: int, display: Display) -> dict[str, Any]:
    """Run the stage, or return its totals (stage.json) if it is finished.

    Raises:
        DataError: A table is unreadable, or Tika does not respond.
        CheckpointError: The previous stage is not finished, or the folder is not writable.
        LaunchError: The child processes do not start, or this is not Linux.
        MissingDependency: The extra `corpus` is not installed.
    """
    for module in LIBRARIES:
        require_installed(module, extra="corpus")
    if not STATUS_FILE.exists():
        message = "extract needs Linux, for the memory limits of its child processes"
        raise LaunchError(message, code="corpus.needs_linux")
    work = Path(corpus.work)
    versions = {package: importlib.metadata.version(package) for package in LIBRARIES.values()}
    # The address of the server does not change the texts.
    settings = {**corpus.extract.model_dump(), "tika": corpus.extract.tika is not None}
    settings |= {"format": FORMAT, "versions": versions}
    make = partial(extract_table, corpus.extract)
    stage = Stage("extract", work / FOLDER, DOCUMENT_SCHEMA, make, settings, stage_output(work / BEFORE))
    inputs = [(path,) for path in stage_tables(work / BEFORE)]
    return run_stage(stage, inputs, workers=workers, display=display)


def extract_table(settings: Extract, path: Path) -> Iterator[dict[str, Any] | DroppedRow]:
    """Yield the documents of a table of fetched captures, and drop those without text.

    Raises:
        DataError: The table is unreadable, or Tika does not respond.
    """
    tika, max_bytes = None, int(settings.max_mib * 2**20)
    if settings.tika is not None:
        tika = Tika(settings.tika, time_s=CLOCK_FACTOR * settings.time_s, max_bytes=max_bytes)
    with DocumentReader(settings) as reader:
        for row in _rows(path):
            known = {"id": _id(row), "url": row["url"]}
            result = _extract(row, reader, tika, max_bytes)
            if isinstance(result, NoText):
                yield DroppedRow(reason=result.reason, detail=result.detail, **known)
            else:
                yield {**known, **_document_fields(row, result)}


def _extract(
    row: Mapping[str, Any], reader: DocumentReader, tika: Tika | None, max_bytes: int
) -> ExtractedText | NoText:
    """Return the text of a row, or the reason why there is none."""
    payload = row["payload"] or b""
    if len(payload) > max_bytes:
        return NoText("large", f"{len(payload)} bytes")
    result = reader.read(Document(payload, row["url"], row["mime"], row["content_type"]))
    if tika is None or not isinstance(result, NoText) or result.reason != "kind" or result.mime is None:
        return result
    answer = tika.read(payload, result.mime)
    if isinstance(answer, NoText):
        return answer
    return reader.finish(*answer, mime=result.mime, extractor="tika")


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, one in memory at a time, since a document may have many MiB."""
    try:
        with closing(pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False)) as table:
            for batch in table.iter_batches(batch_size=1, use_threads=False):
                yield from batch.to_pylist()
    except (OSError, ValueError) as error:
        message = f"{path} cannot be read: {error}; delete its folder to make it again"
        raise DataError(message, code="data.unreadable", path=path) from error


def _id(row: Mapping[str, Any]) -> str:
    """Return the id of a document; the digest of the payload replaces one that the index lacks."""
    key = f"{row['url']} {row['timestamp']} {row['digest'] or row['sha1']}"
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _document_fields(row: Mapping[str, Any], extracted: ExtractedText) -> dict[str, Any]:
    return {
        "timestamp": row["timestamp"],
        "digest": row["digest"] or row["sha1"],
        "source": row["source"],
        "mime": extracted.mime,
        "charset": extracted.charset,
        "extractor": extracted.extractor,
        "licence": row["licence"] or extracted.licence,
        "robots": row["robots"] or extracted.robots,
        "title": extracted.title,
        "text": extracted.text,
        "sha256": hashlib.sha256(extracted.text.encode()).hexdigest(),
    }
