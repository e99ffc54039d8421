"""The step `decontaminate`: drops documents, or lines of them, that contain texts of evaluation sets.

A document contains a text if it contains any sequence of `words` words of the text, or all words of a shorter one.
Sequences are compared by 64-bit hashes of their words, without case and punctuation.

found-00000.parquet   texts in documents: id of the document, set, number of the text in it, matching words
cut-00000.parquet     removed lines: id of the document, position, reason, line

Source: Brown et al., Language Models are Few-Shot Learners, 2020, appendix C (sequences of 13 words).
"""

import shutil
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paratune.base.atomic import replace_file
from paratune.corpus.clean.evaluation_sets import read_texts
from paratune.corpus.clean.lines import CUT_SCHEMA, cut_file
from paratune.corpus.clean.settings import Decontaminate
from paratune.corpus.clean.signatures import normalized_words
from paratune.corpus.clean.step import Document, drop, require_unique_names, with_text
from paratune.corpus.index.inputs import file_identity, find_files
from paratune.corpus.rows import DOCUMENT_SCHEMA, DroppedRow
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import ShardWriter, read_rows
from paratune.corpus.sorted_runs import RunWriter, hash_64, merge
from paratune.corpus.stage import RunStage, Stage, begin, is_finished, stage_output, stage_tables
from paratune.errors import DataError

FORMAT = 1  # version of the rows; increased when the same input gives other rows
SETS_FOLDER = "sets"
"""Folder of the hashes of the sets; deleted at the end."""
MIN_LEFT_WORDS = 20
"""Minimum number of words left in a document after lines are removed."""
KNOWN_WORDS = 1 << 18
"""Maximum number of words in the cache of hashes."""
FOUND_SCHEMA = pa.schema([("id", pa.string()), ("set", pa.string()), ("text", pa.int64()), ("words", pa.string())])
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class _Sets:
    """Texts to find in documents."""

    names: tuple[str, ...]
    starts: tuple[int, ...]
    """Number of the first text of each set, and the number of all texts."""
    num_sought: tuple[int, ...]
    """Number of texts of each set that are long enough."""
    runs: tuple[Path, ...]
    """Records: hash of a sequence, its length, number of the text."""


@dataclass(frozen=True)
class _Hit:
    """A sequence of words in a document that occurs in a text."""

    start: int
    """Position of its first word in the document."""
    size: int
    text: int


def run_decontaminate(corpus: Corpus, before: Path, folder: Path, run: RunStage) -> dict[str, Any]:
    """Run the step.

    Returns:
        Totals; `sets` has for each set the numbers of texts, of texts that are long enough (`sought`), of those that
        were found, and of documents that contain one.

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
    work = partial(drop_contaminated, options, folder)
    stage = Stage("decontaminate", folder, DOCUMENT_SCHEMA, work, settings, stage_output(before))
    sets = _Sets((), (0,), (), ())
    if not is_finished(stage):
        begin(stage)
        sets = read_sets(options, paths, folder / SETS_FOLDER)
    inputs = [(sets, path, number) for number, path in enumerate(stage_tables(before))]
    totals = run(stage, inputs, more=lambda: {"sets": _count_found(folder, len(inputs), sets)})
    shutil.rmtree(folder / SETS_FOLDER, ignore_errors=True)
    return totals


def read_sets(options: Decontaminate, paths: Sequence[Sequence[Path]], folder: Path) -> _Sets:
    """Write the hashes of the texts to find, and return the texts of all sets."""
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
    folder.mkdir()
    hashes = _Hashes()
    num_texts, num_sought = [], []
    number = 0
    with RunWriter(folder, 0) as writer:
        for evaluation_set, files in zip(options.sets, paths, strict=True):
            first, sought = number, 0
            for path in files:
                for text in read_texts(path, evaluation_set.columns):
                    words = normalized_words(text)
                    if len(words) >= options.min_words:
                        size = min(len(words), options.words)
                        (*_, longest_hashes) = sequences(hashes(words), size)
                        writer.add(longest_hashes, size, number)
                        sought += 1
                    number += 1
            if not sought:
                raise DataError(
                    f"clean.decontaminate.sets: {evaluation_set.name} has no text of {options.min_words} words; change "
                    "its files, its columns or min_words",
                    code="corpus.too_little_text",
                    key="clean.decontaminate.sets",
                    name=evaluation_set.name,
                )
            num_texts.append(number - first)
            num_sought.append(sought)
    names = tuple(evaluation_set.name for evaluation_set in options.sets)
    runs = tuple(folder / name for name in writer.names)
    return _Sets(names, tuple(accumulate(num_texts, initial=0)), tuple(num_sought), runs)


def sequences(hashes: np.ndarray, longest: int) -> Iterator[np.ndarray]:
    """Yield the hashes of all sequences of 1 word, 2 words, ..., `longest` words, given 64-bit hashes of the words."""
    sequence_hashes = np.zeros(len(hashes), np.uint64)
    for size in range(1, min(longest, len(hashes)) + 1):
        sequence_hashes = (sequence_hashes[: len(hashes) - size + 1] + hashes[size - 1 :]) * _FACTOR
        sequence_hashes ^= sequence_hashes >> np.uint64(31)
        yield sequence_hashes


class _Hashes:
    """Computes hashes of words, with a cache of frequent words."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def __call__(self, words: Sequence[str]) -> np.ndarray:
        """Return a 64-bit hash of each word."""
        if len(self._known) > KNOWN_WORDS:
            self._known = {}
        for word in words:
            if word not in self._known:
                self._known[word] = hash_64(word.encode())
        return np.array([self._known[word] for word in words], np.uint64)


def drop_contaminated(
    options: Decontaminate, folder: Path, sets: _Sets, path: Path, number: int
) -> Iterator[Document | DroppedRow]:
    """Yield documents that contain no text of the sets, with or without removed lines, and drop the others."""
    hashes, sought = _Hashes(), _SoughtTexts(sets.runs)
    paths = [folder / name for name in (found_file(number), cut_file(number))]
    with (
        replace_file(paths[0]) as found_path,
        replace_file(paths[1]) as cut_path,
        ShardWriter(found_path, FOUND_SCHEMA) as found_writer,
        ShardWriter(cut_path, CUT_SCHEMA) as cut,
    ):
        for document in read_rows(path):
            lines = document["text"].split("\n")
            words = [normalized_words(line) for line in lines]
            flat = [word for line in words for word in line]
            hits = sought.find(hashes(flat), options.words)
            rows = _found_rows(hits, flat, sets)
            for row in rows:
                found_writer.add({"id": document["id"], **row})
            if not hits:
                yield document
                continue
            reason = f"text of {rows[0]['set']}"
            touched = _touched_lines(hits, [len(line) for line in words]) if options.drop == "lines" else set()
            left = [line for position, line in enumerate(lines) if position not in touched]
            num_left = sum(len(line.split()) for line in left)
            if options.drop == "document" or num_left < MIN_LEFT_WORDS:
                yield drop(document, reason, rows[0]["words"])
                continue
            for position in sorted(touched):
                cut.add({"id": document["id"], "position": position, "reason": reason, "text": lines[position]})
            yield with_text(document, "\n".join(left))


def _found_rows(hits: Sequence[_Hit], words: Sequence[str], sets: _Sets) -> list[dict[str, Any]]:
    """Return set, number and first matching words of each text in a document."""
    first: dict[int, _Hit] = {}
    for hit in hits:
        first.setdefault(hit.text, hit)
    rows = []
    for text, hit in first.items():
        number = bisect_right(sets.starts, text) - 1
        text_words = " ".join(words[hit.start : hit.start + hit.size])
        rows.append({"set": sets.names[number], "text": text - sets.starts[number], "words": text_words})
    return rows


def found_file(number: int) -> str:
    return f"found-{number:05d}.parquet"


class _SoughtTexts:
    """Hashes of the sequences of all texts, by length."""

    def __init__(self, runs: Sequence[Path]) -> None:
        records = [block[["high", "low", "value"]] for block in merge(runs)]
        sizes = np.unique(np.concatenate([np.unique(block["low"]) for block in records])).tolist() if records else []
        self._by_size = {
            size: tuple(
                np.concatenate([block[name][block["low"] == np.uint64(size)] for block in records])
                for name in ("high", "value")
            )
            for size in sizes
        }

    def find(self, hashes: np.ndarray, longest: int) -> list[_Hit]:
        """Return the sequences in a document that occur in texts, by position."""
        hits = []
        for size, sequence_hashes in enumerate(sequences(hashes, longest), start=1):
            if size not in self._by_size:
                continue
            highs, texts = self._by_size[size]
            first = np.minimum(np.searchsorted(highs, sequence_hashes), len(highs) - 1)
            for start in np.flatnonzero(highs[first] == sequence_hashes).tolist():
                last = int(np.searchsorted(highs, sequence_hashes[start], "right"))
                hits += [_Hit(start, size, int(text)) for text in texts[int(first[start]) : last].tolist()]
        return sorted(hits, key=lambda hit: (hit.start, hit.text, hit.size))


def _touched_lines(hits: Sequence[_Hit], num_words: Sequence[int]) -> set[int]:
    """Return the positions of the lines that contain words of sequences."""
    lines = enumerate(pairwise(accumulate(num_words, initial=0)))
    return {
        position
        for position, (start, stop) in lines
        if any(hit.start < stop and hit.start + hit.size > start for hit in hits)
    }


def _count_found(folder: Path, num_shards: int, sets: _Sets) -> dict[str, dict[str, int]]:
    """Return for each set the numbers of texts, sought texts, found texts, and documents that contain one."""
    texts: dict[str, set[int]] = {name: set() for name in sets.names}
    documents = dict.fromkeys(sets.names, 0)
    for number in range(num_shards):
        ids: dict[str, set[str]] = {name: set() for name in sets.names}
        for row in read_rows(folder / found_file(number)):
            texts[row["set"]].add(row["text"])
            ids[row["set"]].add(row["id"])
        for name, document_ids in ids.items():
            documents[name] += len(document_ids)
    sizes = [stop - start for start, stop in pairwise(sets.starts)]
    return {
        name: {"texts": size, "sought": sought, "found": len(texts[name]), "documents": documents[name]}
        for name, size, sought in zip(sets.names, sizes, sets.num_sought, strict=True)
    }
