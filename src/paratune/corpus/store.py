"""The stage `store`: tables with sources, and exported texts for training.

WORK/6_store/documents/   a stage, see `paratune.corpus.stage`: part-00000.parquet, ...
WORK/6_store/sentences/   another stage
WORK/6_store/texts/       see `write_texts`
WORK/6_store/tokens/      with `store.tokens`, another stage: train/00000/, ..., as the token writer writes them
WORK/6_store/stage.json   totals; written last
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from paratune.base.atomic import delete_folder, replace_folder
from paratune.config.sources import local_path
from paratune.console import Display
from paratune.corpus.clean.run import output_folder
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import (
    STORED_DOCUMENT_SCHEMA,
    STORED_SENTENCE_SCHEMA,
    ShardWriter,
    read_rows,
    text_columns,
    writing,
)
from paratune.corpus.stage import (
    STAGE_FILE,
    Stage,
    Workers,
    finished_record,
    run_stage,
    stage_output,
    stage_tables,
    write_begun,
)
from paratune.errors import CheckpointError, ConfigError, DataError, coded
from paratune.records import write_json

log = logging.getLogger(__name__)

FOLDER = "6_store"
DOCUMENTS, SENTENCES = "documents", "sentences"
BEFORE_SENTENCES = "5_sentences"
FORMAT = 1  # version of the files; increased when the same input gives other files
TRAIN, VALIDATION = "train", "validation"
SPLITS = (TRAIN, VALIDATION)
TEXTS_FOLDER = "texts"
TOKENS = "tokens"
_TOKENS_SCHEMA = pa.schema(
    text_columns("split", "name", "sha256") | dict.fromkeys(("num_rows", "num_windows", "num_tokens"), pa.int64())
)
_TEXTS_SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string())])
_OF_DOCUMENT = ("url", "timestamp", "digest", "split")


def run_store(corpus: Corpus, workers: Workers, display: Display) -> dict[str, Any]:
    """Run the stage, or return its totals if it is finished.

    Returns:
        stage, kept (documents), sentences, dropped (nothing), texts (number by split) and output.

    Raises:
        ConfigError: The unit is sentences, and the corpus has none.
        CheckpointError: A previous stage is not finished, the sentences were made of other documents, or the folder is
            not writable.
    """
    work, unit = Path(corpus.work), corpus.store.unit
    folder, before, sentences_folder = work / FOLDER, output_folder(corpus), work / BEFORE_SENTENCES
    has_sentences = (sentences_folder / STAGE_FILE).exists()
    if unit == SENTENCES and not has_sentences:
        message = "store.unit is sentences, but the corpus has none; set store.unit: documents"
        raise ConfigError(message, code="config.conflict", key="store.unit")
    write_begun(folder, {"format": FORMAT})
    run = partial(run_stage, workers=workers, display=display)
    settings = {"validation": corpus.store.validation, "format": FORMAT}
    make, source = partial(stored_documents, corpus.store.validation), finished_record(before)["output"]
    stage = Stage("store documents", folder / DOCUMENTS, STORED_DOCUMENT_SCHEMA, make, settings, source)
    documents, sentences = run(stage, [(table,) for table in stage_tables(before)]), None
    if has_sentences:
        tables, document_tables = stage_tables(sentences_folder), stage_tables(folder / DOCUMENTS)
        if finished_record(sentences_folder)["input"] != source or len(tables) != len(document_tables):
            message = f"{sentences_folder} was made of other documents; run the stage sentences again"
            raise CheckpointError(message, code="corpus.not_finished", path=sentences_folder)
        sources = [finished_record(sentences_folder)["output"], documents["output"]]
        place = folder / SENTENCES
        stage = Stage("store sentences", place, STORED_SENTENCE_SCHEMA, stored_sentences, {"format": FORMAT}, sources)
        sentences = run(stage, list(zip(tables, document_tables, strict=True)))
    outputs = [totals and totals["output"] for totals in (documents, sentences)]
    described = json.dumps([FORMAT, corpus.store.model_dump(mode="json", exclude={"tokens"}), outputs], sort_keys=True)
    made = hashlib.sha256(described.encode()).hexdigest()
    if (folder / STAGE_FILE).exists() and finished_record(folder)["made"] == made:
        log.info("store: already finished")
        return finished_record(folder)
    (folder / STAGE_FILE).unlink(missing_ok=True)
    if (folder / TOKENS).exists():  # of other texts
        delete_folder(folder / TOKENS)
    log.info("store: writing texts")
    with writing(folder=folder):
        counts = write_texts(folder, stage_tables(folder / unit), key="id" if unit == DOCUMENTS else "document_id")
    for split, count in counts.items():
        if not count:
            extra = coded("corpus.empty_split", split=split)
            log.warning("store: the split %s is empty and has no file", split, extra=extra)
    totals = {
        "stage": "store",
        "made": made,
        "shards": documents["shards"],
        "kept": documents["kept"],
        "sentences": None if sentences is None else sentences["kept"],
        "dropped": {},
        "texts": counts,
        "output": documents["output"],
    }
    write_json(folder / STAGE_FILE, totals)
    return totals


def store_tokens(
    corpus: Corpus,
    workers: Workers,
    display: Display,
    *,
    make_writer: Callable[..., Any],
    finish_tokens: Callable[[Path, dict[str, Any], list[dict[str, Any]]], None],
) -> dict[str, int] | None:
    """Write the tokens of a finished store, and return their number by split; None where it has no tokenizer yet.

    Args:
        make_writer: `paratune.tasks.corpus_tokens.TokenWriter`; called with the values of `store.tokens`.
        finish_tokens: Writes the last file of a folder of shards, from `TokenWriter.settings` and the entries.
    """
    options, folder = corpus.store.tokens, Path(corpus.work) / FOLDER
    assert options is not None
    if (tokenizer := local_path(options.tokenizer)) is not None and not tokenizer.is_dir():
        texts, extra = folder / TEXTS_FOLDER / f"{TRAIN}.parquet", coded("corpus.no_tokenizer", path=options.tokenizer)
        text = "store: no tokens yet: %s does not exist; make it (paratune tokenizer train %s --out %s), "
        text += "and repeat the command"
        log.warning(text, options.tokenizer, texts, options.tokenizer, extra=extra)
        return None
    writer, place, before = make_writer(**options.model_dump()), folder / TOKENS, folder / corpus.store.unit
    settings = writer.settings()
    work = partial(token_shards, writer, settings, place)
    stage = Stage("store tokens", place, _TOKENS_SCHEMA, work, [settings, FORMAT], stage_output(before))
    run_stage(stage, [*enumerate(stage_tables(before))], workers=workers, display=display)
    entries = [row for table in stage_tables(place) for row in read_rows(table)]
    counts = {}
    for split in SPLITS:
        of_split = [row for row in entries if row["split"] == split]
        counts[split] = sum(row["num_tokens"] for row in of_split)
        if of_split:
            with writing(folder=place):
                finish_tokens(place / split, settings, of_split)
            log.info("store: %d tokens in %s", counts[split], place / split)
    return counts


def token_shards(
    writer: Any, settings: dict[str, Any], folder: Path, number: int, table: Path
) -> Iterator[dict[str, Any]]:
    """Write the tokens of the texts of a table, a shard for each split that has some, and yield their entries."""
    texts: dict[str, list[str]] = {split: [] for split in SPLITS}
    for row in read_rows(table, ["text", "split"]):
        if row["text"].strip():
            texts[row["split"]].append(row["text"])
    for split in (split for split in SPLITS if texts[split]):
        yield writer.write(folder / split / f"{number:05d}", texts[split], settings) | {"split": split}


def stored_documents(validation: float, table: Path) -> Iterator[dict[str, Any]]:
    """Yield the documents of a table with additional columns; `validation` is the share of the validation split."""
    for row in read_rows(table):
        text = row["text"]
        yield row | {
            "host": url_host(row["url"]),
            "year": int(row["timestamp"][:4]),
            "num_characters": len(text),
            "num_words": len(text.split()),
            "split": text_split(row["sha256"], validation),
        }


def stored_sentences(table: Path, documents_table: Path) -> Iterator[dict[str, Any]]:
    """Yield the sentences of a table with the capture and the split of their document.

    Raises:
        DataError: The document of a sentence is not in the table of documents.
    """
    documents = {
        row["id"]: {name: row[name] for name in _OF_DOCUMENT}
        for row in read_rows(documents_table, ["id", *_OF_DOCUMENT])
    }
    for row in read_rows(table):
        document = documents.get(row["document_id"])
        if document is None:
            message = f"{table}: {row['document_id']} is not a document of {documents_table}"
            raise DataError(message, code="data.unreadable", table=table)
        yield row | document


def write_texts(folder: Path, tables: Sequence[Path], *, key: str) -> dict[str, int]:
    """Write the texts of tables in order to texts/train.parquet and texts/validation.parquet, complete or absent.

    Args:
        folder: Folder of the store; earlier files are replaced.
        key: Column with the id of the document, which becomes the column `id` next to `text`.

    Returns:
        Number of texts by split. An empty split has no file.
    """
    counts = dict.fromkeys(SPLITS, 0)
    with replace_folder(folder / TEXTS_FOLDER) as temporary, ExitStack() as stack:
        writers: dict[str, ShardWriter] = {}
        for row in (row for table in tables for row in read_rows(table, [key, "text", "split"])):
            split = row["split"]
            if split not in writers:
                writers[split] = stack.enter_context(ShardWriter(temporary / f"{split}.parquet", _TEXTS_SCHEMA))
            writers[split].add({"id": row[key], "text": row["text"]})
            counts[split] += 1
    return counts


def url_host(url: str) -> str | None:
    """Return the host of a URL in lower case, without a leading "www."; None without a host."""
    try:
        host = urlsplit(url).hostname
    except ValueError:  # invalid port or address in brackets
        return None
    return host.removeprefix("www.") or None if host else None


def text_split(sha256: str, validation: float) -> str:
    """Return the split of a text by its SHA-256 (hexadecimal): equal texts get the same split in every corpus."""
    # A float represents 52 bits exactly.
    return VALIDATION if int(sha256[:13], 16) / 16**13 < validation else TRAIN
