"""Writes the texts of the finished corpus for `task: mlm` and `paratune tokenizer train`, one file for each split.

texts/train.parquet      columns id (of the document) and text
texts/train.jsonl        the same, an object per line
texts/train.txt          documents separated by blank lines (train.txt#paragraphs), or a sentence per line
"""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from paratune.base.atomic import replace_folder
from paratune.corpus.shard import ShardWriter
from paratune.corpus.store.tables import SPLITS, read_rows

FOLDER = "texts"
_SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string())])

Write = Callable[[str, str], object]
"""Takes id and text."""


def write_texts(folder: Path, tables: Sequence[Path], *, unit: str, formats: Sequence[str]) -> dict[str, int]:
    """Write the texts of tables in order; all files are complete or absent.

    Args:
        folder: Folder of the store; earlier files are replaced.
        unit: documents or sentences.
        formats: Any of parquet, jsonl and text.

    Returns:
        Number of texts by split. An empty split has no files.
    """
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    counts = dict.fromkeys(SPLITS, 0)
    if not formats:
        return counts
    key = "id" if unit == "documents" else "document_id"
    with replace_folder(folder / FOLDER) as temporary, ExitStack() as stack:
        writers: dict[str, list[Write]] = {}
        for row in (row for table in tables for row in read_rows(table, [key, "text", "split"])):
            split = row["split"]
            if split not in writers:
                writers[split] = [_open_writer(temporary / split, unit, kind, stack) for kind in formats]
            for write in writers[split]:
                write(row[key], row["text"])
            counts[split] += 1
    return counts


def _open_writer(path: Path, unit: str, kind: str, stack: ExitStack) -> Write:
    if kind == "parquet":
        table = stack.enter_context(ShardWriter(path.with_name(f"{path.name}.parquet"), _SCHEMA))
        return lambda name, text: table.add({"id": name, "text": text})
    suffix = "jsonl" if kind == "jsonl" else "txt"
    file = stack.enter_context(path.with_name(f"{path.name}.{suffix}").open("w", encoding="utf-8", newline="\n"))
    if kind == "jsonl":
        return lambda name, text: file.write(json.dumps({"id": name, "text": text}, ensure_ascii=False) + "\n")
    if unit == "documents":  # without blank lines in a document, and with one after it
        return lambda _, text: file.write(re.sub(r"\n\s*\n", "\n", text.strip()) + "\n\n")
    return lambda _, text: file.write(" ".join(text.split()) + "\n")
