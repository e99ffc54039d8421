"""The stage `extract`: extracts the text of each fetched document."""

import hashlib
import importlib.metadata
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from paratune.console import Display
from paratune.corpus.extract.process import DocumentReader, ExtractedText, NoText
from paratune.corpus.settings import Corpus, Extract
from paratune.corpus.shard import DOCUMENT_SCHEMA, DroppedRow, read_rows
from paratune.corpus.stage import Stage, Workers, run_stage, stage_output, stage_tables
from paratune.errors import LaunchError, require_installed

FOLDER = "3_extract"
BEFORE = "2_fetch"
FORMAT = 3  # version of the rows; increased when the same input gives other rows
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
STATUS_FILE = Path("/proc/self/status")


def run_extract(corpus: Corpus, workers: Workers, display: Display) -> dict[str, Any]:
    """Run the stage, or return its totals (stage.json) if it is finished.

    Raises:
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
    settings = {**corpus.extract.model_dump(), "format": FORMAT, "versions": versions}
    make = partial(extract_table, corpus.extract)
    stage = Stage("extract", work / FOLDER, DOCUMENT_SCHEMA, make, settings, stage_output(work / BEFORE))
    inputs = [(path,) for path in stage_tables(work / BEFORE)]
    return run_stage(stage, inputs, workers=workers, display=display)


def extract_table(settings: Extract, path: Path) -> Iterator[dict[str, Any] | DroppedRow]:
    """Yield the documents of a table of fetched captures, and drop those without text."""
    max_bytes = int(settings.max_mib * 2**20)
    with DocumentReader(settings) as reader:
        for row in read_rows(path, batch_size=1):  # a document may have many MiB
            # The digest of the payload replaces one that the index lacks.
            key = f"{row['url']} {row['timestamp']} {row['digest'] or row['sha1']}"
            known = {"id": hashlib.sha256(key.encode()).hexdigest()[:16], "url": row["url"]}
            payload = row["payload"] or b""
            if len(payload) > max_bytes:
                result: ExtractedText | NoText = NoText("large", f"{len(payload)} bytes")
            else:
                result = reader.read(payload, row["content_type"] or row["mime"])
            if isinstance(result, NoText):
                yield DroppedRow(reason=result.reason, detail=result.detail, **known)
                continue
            known |= {name: row[name] for name in ("timestamp", "source", "licence", "robots")}
            sha256 = hashlib.sha256(result.text.encode()).hexdigest()
            yield {**known, **vars(result), "digest": row["digest"] or row["sha1"], "sha256": sha256}
