"""Functions that all cleaning steps use: read documents, change or drop them, run a step."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paratune.corpus.clean.settings import EvaluationSet, VarietySource
from paratune.corpus.rows import DOCUMENT_SCHEMA, DroppedRow
from paratune.corpus.stage import RunStage, Stage, stage_output, stage_tables
from paratune.errors import ConfigError, did_you_mean

Document = dict[str, Any]
"""A row of DOCUMENT_SCHEMA."""


def drop(document: Document, reason: str, detail: str) -> DroppedRow:
    """Return the record of a dropped document."""
    return DroppedRow(document["url"], reason, detail, document["id"])


def hash_64(text: bytes) -> int:
    """Return a 64-bit BLAKE2b hash."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def with_text(document: Document, text: str, **more: Any) -> Document:
    """Return a document with another text and its hash."""
    return {**document, "text": text, "sha256": hashlib.sha256(text.encode()).hexdigest(), **more}


def require_unique_names(key: str, entries: Sequence[VarietySource | EvaluationSet]) -> None:
    """Raise a ConfigError if two entries of a list in the settings have the same name."""
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            message = f"{key}: two entries have the name {name}; give each entry its own name"
            raise ConfigError(message, code="config.named_twice", key=key)


def unknown_value(key: str, value: str, known: Collection[str], allowed: str) -> ConfigError:
    """Return the error of a setting with a value that is not known."""
    problem = f"{key}: {value} is not known{did_you_mean(value, known)}; {allowed}"
    return ConfigError(problem, code="config.invalid_value", key=key, value=value)


def run_documents(
    folder: Path,
    before: Path,
    work: Callable[[Any, Path], Iterable[Document | DroppedRow]],
    options: Any,
    settings: Any,
    run: RunStage,
) -> dict[str, Any]:
    """Run a step that decides on each document separately, and return its totals.

    Args:
        folder: Folder of the step, `<n>_<step>`.
        work: Takes `options` and a table; returns its documents in order, and `DroppedRow` for dropped ones.
        options: Options of `work`; must be picklable.
        settings: JSON value of all settings that the result depends on.

    Raises:
        DataError: A table is unreadable.
        CheckpointError: The previous stage is not finished, or the folder is not writable.
    """
    name = folder.name.partition("_")[2]
    stage = Stage(name, folder, DOCUMENT_SCHEMA, partial(work, options), settings, stage_output(before))
    return run(stage, [(path,) for path in stage_tables(before)])
