"""Trains n-gram models on files of good quality or on a part of the corpus, and computes perplexities with them.

A model gives its own training texts a perplexity that is too low. So each half of the corpus trains a model that scores
the other half. Files train one model, which scores all sentences.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from paratune.corpus.database import parquet, query
from paratune.corpus.index.inputs import find_files
from paratune.corpus.sentences.ngram import train
from paratune.corpus.sentences.split import ngram_words, rejection_reason, split_sentences
from paratune.corpus.settings import SentenceSettings
from paratune.corpus.text_files import read_texts
from paratune.errors import DataError, require

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
        DataError: A file is missing, has another format, lacks the column `text`, or is damaged.
    """
    files = find_files(settings.clean.files, KEY)
    for path in files:
        next(_texts(path), None)
    return files


def _texts(path: Path) -> Iterator[str]:
    return read_texts(path, [] if path.name.removesuffix(".gz").endswith(".txt") else ["text"])


def train_models(
    folder: Path, split: Sequence[Path], repeated: Sequence[Path], settings: SentenceSettings
) -> list[dict[str, Any]]:
    """Train the models, write them, and return their figures.

    Args:
        folder: Existing folder of the models.
        split: Tables of split sentences.
        repeated: Tables of repeated rows.

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
        train(
            partial(corpus_sentences, folder, split, repeated, settings.clean.max_words, half),
            folder / model_file(half),
            vocabulary=vocabulary,
        )
        for half in range(NUM_HALVES)
    ]
    return [] if None in models else [asdict(model) for model in models if model is not None]


def file_sentences(files: Sequence[Path], settings: SentenceSettings) -> Iterator[list[str]]:
    """Yield the words of each different sentence in files."""
    num_words, seen = 0, set[bytes]()
    for text in (text for path in files for text in _texts(path)):
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


def corpus_sentences(
    folder: Path, split: Sequence[Path], repeated: Sequence[Path], max_words: int, half: int
) -> Iterator[list[str]]:
    """Yield the words of the training sentences of a half, in order, up to half of `max_words`.

    Those are the first sentences of the documents with the most certain language.
    """
    if not split:
        return
    rows = query(
        folder,
        f"""
        WITH sentences AS (
            SELECT file_index AS shard, file_row_number AS row, num_words,
                floor(coalesce(language_score, 0)::DOUBLE * 1000) AS score FROM {parquet(split)}
            WHERE (instr('13579bdf', sha256(document_id)[2]) > 0) = ?  -- `corpus_half`: whether the first byte is odd
        ), chosen AS (
            SELECT shard, row, sum(num_words) OVER (ORDER BY score DESC, shard, row) AS num_words
            FROM sentences ANTI JOIN {parquet(repeated)} USING (shard, row)
        )
        SELECT text FROM chosen JOIN {parquet(split)} texts ON texts.file_index = shard AND texts.file_row_number = row
        WHERE chosen.num_words <= ? ORDER BY shard, row
        """,
        [bool(half), max_words // NUM_HALVES],
    )
    yield from (ngram_words(text) for (text,) in rows)


@lru_cache(maxsize=2)
def load_ngram(path: str, fingerprint: str) -> Any:
    """Return a kenlm model; `fingerprint` distinguishes successive files with the same name in the cache."""
    kenlm = require("kenlm", extra="corpus")
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    return kenlm.Model(path, config)


def ngram_perplexity(model: Any, sentence: str) -> float | None:
    """Return 10^(-log10 P / (N + 1)) for N words and the end of the sentence; None without words."""
    words = ngram_words(sentence)
    return float(10 ** (-model.score(" ".join(words)) / (len(words) + 1))) if words else None
