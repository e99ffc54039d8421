"""The texts of the finished corpus as `task: mlm` and `paratune tokenizer train` read them, a file for each split.

texts/train.parquet      columns id and text; of sentences, id is that of their document
texts/train.jsonl        the same, an object a line
texts/train.txt          documents with a blank line between them (train.txt#paragraphs), or a sentence a line
"""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from paratune.base.atomic import replace_folder
from paratune.corpus.shard import ShardWriter
from paratune.corpus.store.tables import SPLITS, rows_of

FOLDER = "texts"
_SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string())])


class _File(Protocol):
    def add(self, name: str, text: str) -> None: ...


def write_texts(folder: Path, tables: Sequence[Path], *, unit: str, formats: Sequence[str]) -> dict[str, int]:
    """Write the texts of tables in their order, all files or none.

    Args:
        folder: That of the store; what an earlier call wrote is replaced.
        tables: Of documents or of sentences.
        unit: documents or sentences.
        formats: Of parquet, jsonl and text.

    Returns:
        Number of texts by split. One that has none has no files.
    """
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    counts = dict.fromkeys(SPLITS, 0)
    if not formats:
        return counts
    key = "id" if unit == "documents" else "document_id"
    with replace_folder(folder / FOLDER) as temporary, ExitStack() as stack:
        files: dict[str, list[_File]] = {}
        for row in (row for table in tables for row in rows_of(table, [key, "text", "split"])):
            split = row["split"]
            if split not in files:
                files[split] = [_opened(temporary, split, unit, each, stack) for each in formats]
            for file in files[split]:
                file.add(row[key], row["text"])
            counts[split] += 1
    return counts


def _opened(folder: Path, split: str, unit: str, kind: str, stack: ExitStack) -> _File:
    if kind == "parquet":
        return _Parquet(folder / f"{split}.parquet", stack)
    return _Lines(folder, split, _LINES[kind, unit], stack)


class _Parquet:
    """A table."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._table = stack.enter_context(ShardWriter(path, _SCHEMA))

    def add(self, name: str, text: str) -> None:
        self._table.add({"id": name, "text": text})


class _Lines:
    """A file of text in UTF-8."""

    def __init__(self, folder: Path, split: str, form: tuple[str, Callable[[str, str], str]], stack: ExitStack) -> None:
        suffix, self._line = form
        file = (folder / f"{split}.{suffix}").open("w", encoding="utf-8", newline="\n")
        self._file = stack.enter_context(file)

    def add(self, name: str, text: str) -> None:
        self._file.write(self._line(name, text))


def _json_line(name: str, text: str) -> str:
    return json.dumps({"id": name, "text": text}, ensure_ascii=False) + "\n"


def _paragraphs(_: str, text: str) -> str:
    """Return a document without blank lines in it, and one after it."""
    return re.sub(r"\n\s*\n", "\n", text.strip()) + "\n\n"


def _one_line(_: str, text: str) -> str:
    return " ".join(text.split()) + "\n"


_LINES = {
    ("jsonl", "documents"): ("jsonl", _json_line),
    ("jsonl", "sentences"): ("jsonl", _json_line),
    ("text", "documents"): ("txt", _paragraphs),
    ("text", "sentences"): ("txt", _one_line),
}
