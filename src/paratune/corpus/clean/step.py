"""Functions that all cleaning steps use: read documents, change or drop them, run a step."""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from paratune.corpus.settings import Corpus, EvaluationSet, VarietySource
from paratune.corpus.shard import DOCUMENT_SCHEMA, DroppedRow
from paratune.corpus.stage import RunStage, Stage, stage_output, stage_tables
from paratune.errors import ConfigError, did_you_mean

Document = dict[str, Any]
"""A row of DOCUMENT_SCHEMA."""
_WORD = re.compile(r"\w+")


def drop(document: Document, reason: str, detail: str) -> DroppedRow:
    """Return the record of a dropped document."""
    return DroppedRow(document["url"], reason, detail, document["id"])


def hash_64(text: bytes) -> int:
    """Return a 64-bit BLAKE2b hash."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def normalized_words(text: str) -> list[str]:
    """Return the words of a text: sequences of letters, digits and underscores, in NFKC and casefolded."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def with_text(document: Document, text: str, **more: Any) -> Document:
    """Return a document with another text and its hash."""
    return {**document, "text": text, "sha256": hashlib.sha256(text.encode()).hexdigest(), **more}


def require_unique_names(key: str, entries: Sequence[VarietySource | EvaluationSet]) -> None:
    """Raise a ConfigError if two entries of a list in the settings have the same name."""
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            message = f"{key}: two entries have the name {name}; give each entry its own name"
            raise ConfigError(message, code="config.conflict", key=key)


def unknown_value(key: str, value: str, known: Collection[str], allowed: str) -> ConfigError:
    """Return the error of a setting with a value that is not known."""
    problem = f"{key}: {value} is not known{did_you_mean(value, known)}; {allowed}"
    return ConfigError(problem, code="config.invalid_value", key=key, value=value)


def run_documents(
    work: Callable[[Any, Path], Iterable[Document | DroppedRow]],
    rows_format: int,
    packages: Sequence[str],
    corpus: Corpus,
    before: Path,
    folder: Path,
    run: RunStage,
) -> dict[str, Any]:
    """Run a step that decides on each document separately, and return its totals.

    Args:
        work: Takes the options of the step and a table; returns its documents in order, and `DroppedRow` for dropped
            ones.
        rows_format: Version of the rows; increased when the same input gives other rows.
        packages: Packages on whose version the rows depend.
        folder: Folder of the step, `<n>_<step>`, with the name of its section in `clean`.

    Raises:
        DataError: A table is unreadable.
        CheckpointError: The previous stage is not finished, or the folder is not writable.
    """
    name = folder.name.partition("_")[2]
    options = getattr(corpus.clean, name)
    settings = {**options.model_dump(), "format": rows_format, **{package: version(package) for package in packages}}
    stage = Stage(name, folder, DOCUMENT_SCHEMA, partial(work, options), settings, stage_output(before))
    return run(stage, [(path,) for path in stage_tables(before)])
