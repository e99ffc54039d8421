"""The texts that the n-gram models learn from: files that are known to be good, or a part of the corpus itself.

A model reads what it learnt from too easily. So the documents of the corpus are halved, each half trains a model, and
each model scores the other half. Files train one model, which scores everything.
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
from paratune.corpus.once import repeated_rows
from paratune.corpus.sentences.ngram import train
from paratune.corpus.sentences.rows import REPEATED_FOLDER, SPLIT_FOLDER, read_rows
from paratune.corpus.sentences.settings import SentenceSettings
from paratune.corpus.sentences.split import reason_against, sentences_of
from paratune.corpus.sentences.words import words_of
from paratune.corpus.stage import parts
from paratune.errors import DataError

NUM_HALVES = 2
_BINS = 1000
"""Language scores, 0 to 1, are told apart so finely."""


def half_of(document_id: str) -> int:
    """Return in which half of the corpus a document is: 0 or 1, by the hash of its id."""
    return hashlib.sha256(document_id.encode()).digest()[0] % NUM_HALVES


def model_file(number: int) -> str:
    return f"ngram-{number}.arpa"


def files_of(settings: SentenceSettings) -> list[Path]:
    """Return the files to learn from; none where it is the corpus itself.

    Raises:
        DataError: One is missing, or is neither .parquet with a column `text` nor .txt.
    """
    files = find_files(settings.clean.files, "sentences.clean.files")
    for path in files:
        if path.suffix not in (".parquet", ".txt"):
            raise DataError(
                f"sentences.clean.files: {path} is neither .parquet nor .txt",
                code="data.format",
                key="sentences.clean.files",
                path=path,
            )
        if path.suffix == ".parquet" and "text" not in pq.read_schema(path).names:
            raise DataError(
                f"sentences.clean.files: {path} has no column text",
                code="data.column_missing",
                key="sentences.clean.files",
                path=path,
                column="text",
            )
    return files


def train_models(folder: Path, stage_folder: Path, settings: SentenceSettings) -> list[dict[str, Any]]:
    """Train the models and write them; return what each has learnt.

    Args:
        folder: Of the models; it is there.
        stage_folder: Of the stage, whose sentences have been split and found once.
        settings: What they learn from.

    Returns:
        One, of files; two, of the halves of the corpus; none, where a half of the corpus has no sentence.

    Raises:
        DataError: The files hold no sentence, or cannot be read.
        CheckpointError: The folder cannot be written.
    """
    vocabulary = settings.clean.vocabulary
    if files := files_of(settings):
        learnt = train(lambda: of_files(files, settings), folder / model_file(0), vocabulary=vocabulary)
        if learnt is None:
            raise DataError(
                f"sentences.clean.files: no sentence in {', '.join(map(str, files))} is fit to learn from",
                code="corpus.too_little_text",
                key="sentences.clean.files",
            )
        return [asdict(learnt)]
    corpus = _Corpus(stage_folder, settings)
    found = [
        train(partial(corpus.sentences, half), folder / model_file(half), vocabulary=vocabulary)
        for half in range(NUM_HALVES)
    ]
    return [] if None in found else [asdict(each) for each in found if each is not None]


def of_files(files: Sequence[Path], settings: SentenceSettings) -> Iterator[list[str]]:
    """Yield the words of the sentences of files, each sentence once."""
    num_words, seen = 0, set[bytes]()
    for text in _texts(files):
        for sentence in sentences_of(text):
            digest = hashlib.sha256(sentence.encode()).digest()[:16]
            if digest in seen or reason_against(sentence, settings) is not None:
                continue
            if num_words >= settings.clean.max_words:
                return
            seen.add(digest)
            words = words_of(sentence)
            num_words += len(words)
            yield words


def _texts(files: Sequence[Path]) -> Iterator[str]:
    for path in files:
        if path.suffix == ".parquet":
            yield from (row["text"] or "" for row in read_rows(path, ["text"]))
            continue
        try:
            with path.open(encoding="utf-8-sig") as file:
                yield from file
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path} cannot be read: {error}", code="data.unreadable", path=path) from error


@dataclass(frozen=True)
class _Corpus:
    """The sentences of the corpus itself."""

    folder: Path
    settings: SentenceSettings

    def sentences(self, half: int) -> Iterator[list[str]]:
        """Yield the words of the clean sentences of a half, in their order, up to half of `clean.max_words`."""
        most = self.settings.clean.max_words // NUM_HALVES
        is_best = self.settings.clean.pick == "best"
        least, most = self._least_score(half, most) if is_best else (0, most)
        for row in self._rows(half, ["document_id", "language_score", "num_words", "text"]):
            found = _bin(row["language_score"]) if is_best else least
            if found == least:
                most -= row["num_words"]
            if found > least or (found == least and most >= 0):
                yield words_of(row["text"])
            elif most < 0 and not is_best:
                return

    def _least_score(self, half: int, most: int) -> tuple[int, int]:
        """Return the bin of the language score above which all is wanted, and how many words of the bin itself."""
        words = np.zeros(_BINS + 1, np.int64)
        for row in self._rows(half, ["document_id", "language_score", "num_words"]):
            words[_bin(row["language_score"])] += row["num_words"]
        and_above = np.cumsum(words[::-1])[::-1]
        enough = np.flatnonzero(and_above >= most)
        least = int(enough[-1]) if len(enough) else 0
        return least, most - int(and_above[least] - words[least])

    def _rows(self, half: int, columns: list[str]) -> Iterator[dict[str, Any]]:
        for number, path in enumerate(parts(self.folder / SPLIT_FOLDER)):
            repeated = repeated_rows(self.folder / REPEATED_FOLDER, number)
            for place, row in enumerate(read_rows(path, columns)):
                if place not in repeated and half_of(row["document_id"]) == half:
                    yield row


def _bin(score: float | None) -> int:
    """Return how certain the language of a document is, 0 to 1000; 0 where nobody asked."""
    return int((score or 0.0) * _BINS)
