"""What the steps of the cleaning have in common: documents go in, and come out changed, or are dropped."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from paratune.console import Display
from paratune.corpus.rows import DOCUMENT_SCHEMA, Lost
from paratune.corpus.stage import Stage, output_of, parts, run_stage

Document = dict[str, Any]
"""A row of DOCUMENT_SCHEMA."""
ROWS_AT_ONCE = 200
"""Documents that are read at once."""


@dataclass(frozen=True)
class Shard:
    """What one process works on: a table of documents, and what it has to know."""

    path: Path
    options: Any
    """The section of the step, or what it has been made into; it goes to other processes."""


def read_batches(path: Path) -> Iterator[list[Document]]:
    """Yield the rows of a table of documents, a few at a time."""
    with pq.ParquetFile(path) as table:
        for batch in table.iter_batches(batch_size=ROWS_AT_ONCE):
            yield batch.to_pylist()


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the rows of a table of documents, of which a few are in memory at a time."""
    for batch in read_batches(path):
        yield from batch


def lost(document: Document, reason: str, detail: str) -> Lost:
    """Return what is kept of a document that is dropped."""
    return Lost(document["url"], reason, detail, document["id"])


def with_text(document: Document, text: str, **more: Any) -> Document:
    """Return a document with another text."""
    return {**document, "text": text, "sha256": hashlib.sha256(text.encode()).hexdigest(), **more}


def run_documents(
    folder: Path,
    before: Path,
    work: Callable[[Shard], Iterable[Document | Lost]],
    options: Any,
    settings: Any,
    *,
    workers: int,
    display: Display,
) -> dict[str, Any]:
    """Run a step that decides on each document by itself, and return its totals.

    Args:
        folder: That of the step; its name behind the underscore is that of the step.
        before: Folder of the stage before.
        work: Of one shard the documents in their order, and `Lost` among them. A function of a module.
        options: What `work` has to know.
        settings: All that the result depends on beside the documents, as JSON has it, with a number of the format.

    Raises:
        DataError: A shard cannot be read.
        CheckpointError: The stage before is not finished, or the folder cannot be written.
    """
    stage = Stage(folder.name.partition("_")[2], folder, DOCUMENT_SCHEMA, work, settings, output_of(before))
    return run_stage(stage, [Shard(path, options) for path in parts(before)], workers=workers, display=display)
