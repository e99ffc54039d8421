"""Trains the n-gram models on files of good quality, or on a part of the corpus.

A model gives its own training texts a perplexity that is too low. So each half of the corpus trains a model that scores
the other half. Files train one model, which scores all sentences.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paratune.corpus.database import parquet, query
from paratune.corpus.index.inputs import find_files
from paratune.corpus.sentences.ngram import train
from paratune.corpus.sentences.rows import REPEATED_FOLDER, SPLIT_FOLDER
from paratune.corpus.sentences.split import ngram_words, rejection_reason, split_sentences
from paratune.corpus.settings import SentenceSettings
from paratune.corpus.shard import BUFFER_BYTES
from paratune.corpus.stage import stage_tables
from paratune.errors import DataError

KEY = "sentences.clean.files"
NUM_HALVES = 2


def corpus_half(document_id: str) -> int:
    """Return the half of the corpus of a document, 0 or 1, by the hash of its id."""
    return hashlib.sha256(document_id.encode()).digest()[0] % NUM_HALVES


def model_file(number: int) -> str:
    return f"ngram-{number}.arpa"


def clean_text_files(settings: SentenceSettings) -> list[Path]:
    """Return the files with training texts; empty if the corpus is used.

    Raises:
        DataError: A file is missing, or is neither .parquet with a column `text` nor .txt, or is damaged.
    """
    files = find_files(settings.clean.files, KEY)
    for path in files:
        if path.suffix not in (".parquet", ".txt"):
            raise DataError(f"{KEY}: {path} is neither .parquet nor .txt", code="data.format", key=KEY, path=path)
        with _readable(path):
            has_text = path.suffix != ".parquet" or "text" in pq.read_schema(path).names
        if not has_text:
            message = f"{KEY}: {path} has no column text"
            raise DataError(message, code="data.column_missing", key=KEY, path=path, column="text")
    return files


def train_models(folder: Path, stage_folder: Path, settings: SentenceSettings) -> list[dict[str, Any]]:
    """Train the models, write them, and return their figures.

    Args:
        folder: Existing folder of the models.
        stage_folder: Folder of the stage, with split sentences and repeated rows.

    Returns:
        One dict for files; two for the halves of the corpus; none if a half has no sentence.

    Raises:
        DataError: The files have no sentence, or are unreadable.
        CheckpointError: The folder is not writable.
    """
    vocabulary = settings.clean.vocabulary
    if files := clean_text_files(settings):
        learnt = train(lambda: file_sentences(files, settings), folder / model_file(0), vocabulary=vocabulary)
        if learnt is None:
            message = f"{KEY}: no sentence in {', '.join(map(str, files))} is usable for training"
            raise DataError(message, code="corpus.too_little_text", key=KEY)
        return [asdict(learnt)]
    models = [
        train(partial(corpus_sentences, stage_folder, settings, half), folder / model_file(half), vocabulary=vocabulary)
        for half in range(NUM_HALVES)
    ]
    return [] if None in models else [asdict(model) for model in models if model is not None]


def file_sentences(files: Sequence[Path], settings: SentenceSettings) -> Iterator[list[str]]:
    """Yield the words of each different sentence in files."""
    num_words, seen = 0, set[bytes]()
    for text in _texts(files):
        for sentence in split_sentences(text):
            digest = hashlib.sha256(sentence.encode()).digest()[:16]
            if digest in seen or rejection_reason(sentence, settings) is not None:
                continue
            if num_words >= settings.clean.max_words:
                return
            seen.add(digest)
            words = ngram_words(sentence)
            num_words += len(words)
            yield words


def _texts(files: Sequence[Path]) -> Iterator[str]:
    for path in files:
        with _readable(path):
            if path.suffix == ".parquet":
                with pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False) as table:
                    for batch in table.iter_batches(2_000, columns=["text"], use_threads=False):
                        yield from (text or "" for text in batch["text"].to_pylist())
            else:
                with path.open(encoding="utf-8-sig") as file:
                    yield from file


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}", code="data.unreadable", path=path) from error


def corpus_sentences(folder: Path, settings: SentenceSettings, half: int) -> Iterator[list[str]]:
    """Yield the words of the training sentences of a half, in order, up to half of `clean.max_words`."""
    split, repeated = stage_tables(folder / SPLIT_FOLDER), stage_tables(folder / REPEATED_FOLDER)
    if not split:
        return
    # In thousandths; all sentences are equal for `first`.
    score = "floor(coalesce(language_score, 0)::DOUBLE * 1000)" if settings.clean.pick == "best" else "0"
    rows = query(
        folder,
        f"""
        WITH sentences AS (
            SELECT file_index AS shard, file_row_number AS row, num_words, {score} AS score FROM {parquet(split)}
            WHERE (instr('13579bdf', sha256(document_id)[2]) > 0) = ?  -- `corpus_half`: whether the first byte is odd
        ), chosen AS (
            SELECT shard, row, sum(num_words) OVER (ORDER BY score DESC, shard, row) AS num_words
            FROM sentences ANTI JOIN {parquet(repeated)} USING (shard, row)
        )
        SELECT text FROM chosen JOIN {parquet(split)} texts ON texts.file_index = shard AND texts.file_row_number = row
        WHERE chosen.num_words <= ? ORDER BY shard, row
        """,
        [bool(half), settings.clean.max_words // NUM_HALVES],
    )
    yield from (ngram_words(text) for (text,) in rows)
