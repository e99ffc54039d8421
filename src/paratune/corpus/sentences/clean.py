"""Trains the n-gram models on files of good quality, or on a part of the corpus.

A model gives its own training texts a perplexity that is too low. So each half of the corpus trains a model that scores
the other half. Files train one model, which scores all sentences.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from paratune.corpus.index.inputs import find_files
from paratune.corpus.repeated import repeated_rows
from paratune.corpus.sentences.ngram import train
from paratune.corpus.sentences.rows import REPEATED_FOLDER, SPLIT_FOLDER, read_sentences
from paratune.corpus.sentences.split import ngram_words, rejection_reason, split_sentences
from paratune.corpus.settings import SentenceSettings
from paratune.corpus.stage import stage_tables
from paratune.errors import DataError

KEY = "sentences.clean.files"
NUM_HALVES = 2
_BINS = 1000
"""Bins of language scores from 0 to 1."""


def corpus_half(document_id: str) -> int:
    """Return the half of the corpus of a document, 0 or 1, by the hash of its id."""
    return hashlib.sha256(document_id.encode()).digest()[0] % NUM_HALVES


def model_file(number: int) -> str:
    return f"ngram-{number}.arpa"


def clean_text_files(settings: SentenceSettings) -> list[Path]:
    """Return the files with training texts; empty if the corpus is used.

    Raises:
        DataError: A file is missing, or is neither .parquet with a column `text` nor .txt.
    """
    files = find_files(settings.clean.files, KEY)
    for path in files:
        if path.suffix not in (".parquet", ".txt"):
            raise DataError(f"{KEY}: {path} is neither .parquet nor .txt", code="data.format", key=KEY, path=path)
        if path.suffix == ".parquet" and "text" not in pq.read_schema(path).names:
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
    corpus = _Corpus(stage_folder, settings)
    models = [
        train(partial(corpus.sentences, half), folder / model_file(half), vocabulary=vocabulary)
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
        if path.suffix == ".parquet":
            yield from (row["text"] or "" for row in read_sentences(path, ["text"]))
            continue
        try:
            with path.open(encoding="utf-8-sig") as file:
                yield from file
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path} cannot be read: {error}", code="data.unreadable", path=path) from error


@dataclass(frozen=True)
class _Corpus:
    """Training sentences of the corpus."""

    folder: Path
    settings: SentenceSettings

    def sentences(self, half: int) -> Iterator[list[str]]:
        """Yield the words of the training sentences of a half, in order, up to half of `clean.max_words`."""
        most = self.settings.clean.max_words // NUM_HALVES
        is_best = self.settings.clean.pick == "best"
        least, most = self._least_score(half, most) if is_best else (0, most)
        for row in self._rows(half, ["document_id", "language_score", "num_words", "text"]):
            score_bin = _bin(row["language_score"]) if is_best else least
            if score_bin == least:
                most -= row["num_words"]
            if score_bin > least or (score_bin == least and most >= 0):
                yield ngram_words(row["text"])
            elif most < 0 and not is_best:
                return

    def _least_score(self, half: int, most: int) -> tuple[int, int]:
        """Return the bin of the smallest language score that is used, and how many words of this bin are used."""
        words = np.zeros(_BINS + 1, np.int64)
        for row in self._rows(half, ["document_id", "language_score", "num_words"]):
            words[_bin(row["language_score"])] += row["num_words"]
        and_above = np.cumsum(words[::-1])[::-1]
        enough = np.flatnonzero(and_above >= most)
        least = int(enough[-1]) if len(enough) else 0
        return least, most - int(and_above[least] - words[least])

    def _rows(self, half: int, columns: list[str]) -> Iterator[dict[str, Any]]:
        for number, path in enumerate(stage_tables(self.folder / SPLIT_FOLDER)):
            repeated = repeated_rows(self.folder / REPEATED_FOLDER, number)
            for place, row in enumerate(read_sentences(path, columns)):
                if place not in repeated and corpus_half(row["document_id"]) == half:
                    yield row


def _bin(score: float | None) -> int:
    """Return the bin of a language score, 0 to 1000; 0 for an unknown score."""
    return int((score or 0.0) * _BINS)
