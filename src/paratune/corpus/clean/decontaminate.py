"""The step `decontaminate`: drops documents that contain texts of evaluation sets.

A document contains a text if it contains any sequence of `words` words of the text, or all words of a shorter one.
Sequences are compared by 64-bit hashes of their words, without case and punctuation.

Source: Brown et al., Language Models are Few-Shot Learners, 2020, appendix C (sequences of 13 words).
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from paratune.base.atomic import replace_file
from paratune.corpus.clean.step import Document, drop, hash_64, normalized_words, require_unique_names
from paratune.corpus.inputs import file_identity, find_files, read_texts
from paratune.corpus.settings import Corpus, Decontaminate
from paratune.corpus.shard import DOCUMENT_SCHEMA, DroppedRow, read_rows, reading, writing
from paratune.corpus.stage import RunStage, Stage, begin, is_finished, stage_output, stage_tables
from paratune.errors import DataError

FORMAT = 1  # version of the rows; increased when the same input gives other rows
SETS_FILE = "sets.npy"
"""Sequences of all texts, (3, N), uint64, sorted: number of words, hash, number of the text. Deleted at the end."""
KNOWN_WORDS = 1 << 18
"""Maximum number of words in the cache of hashes."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def run_decontaminate(corpus: Corpus, before: Path, folder: Path, run: RunStage) -> dict[str, Any]:
    """Run the step.

    Raises:
        ConfigError: Two sets have the same name.
        DataError: A file of a set is unreadable, or no text of a set is long enough.
        CheckpointError: The previous stage is not finished, or the folder is not writable.
    """
    options = corpus.clean.decontaminate
    require_unique_names("clean.decontaminate.sets", options.sets)
    paths = [
        find_files(evaluation_set.files, f"clean.decontaminate.sets: {evaluation_set.name}")
        for evaluation_set in options.sets
    ]
    settings = {**options.model_dump(), "files": [*map(file_identity, paths)], "format": FORMAT}
    stage = Stage(
        "decontaminate", folder, DOCUMENT_SCHEMA, partial(drop_contaminated, options), settings, stage_output(before)
    )
    sets_file, starts = folder / SETS_FILE, list[int]()
    if not is_finished(stage):
        begin(stage)
        starts = write_sets(options, paths, sets_file)
    totals = run(stage, [(starts, sets_file, path) for path in stage_tables(before)])
    sets_file.unlink(missing_ok=True)
    return totals


def write_sets(options: Decontaminate, paths: Sequence[Sequence[Path]], target: Path) -> list[int]:
    """Write the sequences of the texts to find, see SETS_FILE, and return the number of the first text of each set."""
    found, starts, number = list[np.ndarray](), list[int](), 0
    for evaluation_set, files in zip(options.sets, paths, strict=True):
        starts.append(number)
        num_found = len(found)
        for text in (text for path in files for text in read_texts(path, evaluation_set.columns)):
            words = normalized_words(text)
            if len(words) >= options.min_words:
                size = min(len(words), options.words)
                (*_, longest_hashes) = sequences(word_hashes(words), size)
                columns = np.full((3, len(longest_hashes)), size, np.uint64)
                columns[1], columns[2] = longest_hashes, number
                found.append(columns)
            number += 1
        if len(found) == num_found:
            key, name = "clean.decontaminate.sets", evaluation_set.name
            message = f"{key}: {name} has no text of {options.min_words} words; change its files, its columns or "
            raise DataError(f"{message}min_words", code="corpus.too_little_text", key=key, name=name)
    joined = np.concatenate(found, axis=1)
    with writing(path=target), replace_file(target) as temporary, temporary.open("wb") as file:
        np.save(file, joined[:, np.lexsort(joined[::-1])], allow_pickle=False)
    return starts


def sequences(hashes: np.ndarray, longest: int) -> Iterator[np.ndarray]:
    """Yield the hashes of all sequences of 1 word, 2 words, ..., `longest` words, given 64-bit hashes of the words."""
    sequence_hashes = np.zeros(len(hashes), np.uint64)
    for size in range(1, min(longest, len(hashes)) + 1):
        sequence_hashes = (sequence_hashes[: len(hashes) - size + 1] + hashes[size - 1 :]) * _FACTOR
        sequence_hashes ^= sequence_hashes >> np.uint64(31)
        yield sequence_hashes


@lru_cache(maxsize=KNOWN_WORDS)
def _word_hash(word: str) -> int:
    return hash_64(word.encode())


def word_hashes(words: Sequence[str]) -> np.ndarray:
    """Return a 64-bit hash of each word, (words,), uint64."""
    return np.fromiter(map(_word_hash, words), np.uint64, len(words))


def drop_contaminated(
    options: Decontaminate, starts: Sequence[int], sets_file: Path, path: Path
) -> Iterator[Document | DroppedRow]:
    """Yield the documents that contain no text of the sets, and drop the others."""
    with reading(sets_file):
        sizes, highs, texts = np.load(sets_file, mmap_mode="r", allow_pickle=False)
    edges = {size: np.searchsorted(sizes, [size, size + 1]).tolist() for size in np.unique(sizes).tolist()}
    by_size = {size: (highs[start:stop], texts[start:stop]) for size, (start, stop) in edges.items()}
    for document in read_rows(path):
        words = normalized_words(document["text"])
        hits = []
        for size, sequence_hashes in enumerate(sequences(word_hashes(words), options.words), start=1):
            if size in by_size:
                known, numbers = by_size[size]
                places = np.minimum(np.searchsorted(known, sequence_hashes), len(known) - 1)
                # Of equal sequences, the first place has the smallest number of a text.
                starting = np.flatnonzero(known[places] == sequence_hashes)
                hits += [(start, int(numbers[places[start]]), size) for start in starting[:1].tolist()]
        if not hits:
            yield document
            continue
        start, text, size = min(hits)
        name = options.sets[bisect_right(starts, text) - 1].name
        yield drop(document, f"text of {name}", " ".join(words[start : start + size]))
