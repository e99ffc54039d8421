"""Documents that hold texts of evaluation sets: a model that has read them is not measured by them.

A text is found by any sequence of `words` words of it, and a shorter one by all of its words. Sequences are compared
by 64-bit hashes of their words, whatever their case and punctuation.

found-00000.parquet   of each document the texts that it holds: set, number of the text in it, and the words found
cut-00000.parquet     the lines that were cut, where lines are: id of the document, position, reason, and the line

Source: Brown et al., Language Models are Few-Shot Learners, 2020, appendix C (sequences of 13 words).
"""

import shutil
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paratune.base.atomic import replace_file
from paratune.console import Display
from paratune.corpus.clean.evaluation_sets import read_texts
from paratune.corpus.clean.lines import CUT_SCHEMA, cut_file
from paratune.corpus.clean.settings import Decontaminate
from paratune.corpus.clean.signatures import words_of
from paratune.corpus.clean.step import Document, lost, read_documents, with_text
from paratune.corpus.index.inputs import find_files
from paratune.corpus.rows import DOCUMENT_SCHEMA, Lost
from paratune.corpus.runs import RunWriter, hash_64, merge
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import ShardWriter
from paratune.corpus.stage import Stage, begin, is_finished, output_of, parts, run_stage
from paratune.errors import ConfigError, DataError

FORMAT = 1
"""Of the rows: raised when the same input gives others than before."""
SETS_FOLDER = "sets"
"""Of the hashes of the sets while the step runs; deleted after it."""
MIN_LEFT_WORDS = 20
"""Least words that must be left of a document from which lines were cut."""
KNOWN_WORDS = 1 << 18
"""Words whose hashes are kept at hand."""
FOUND_SCHEMA = pa.schema([("id", pa.string()), ("set", pa.string()), ("text", pa.int64()), ("words", pa.string())])
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class _Sets:
    """The texts that are looked for."""

    names: tuple[str, ...]
    starts: tuple[int, ...]
    """Number of the first text of each set, and of all texts."""
    num_sought: tuple[int, ...]
    """Texts of each set that are long enough."""
    runs: tuple[Path, ...]
    """Hashes of their sequences, with the length of these and the number of the text."""


@dataclass(frozen=True)
class _Documents:
    path: Path
    number: int
    folder: Path
    options: Decontaminate
    sets: _Sets


@dataclass(frozen=True)
class _Hit:
    """A sequence of words of a document that a text has."""

    start: int
    """Number of its first word in the document."""
    size: int
    text: int


def run_decontaminate(corpus: Corpus, before: Path, folder: Path, workers: int, display: Display) -> dict[str, Any]:
    """Run the step: documents that hold no text of the evaluation sets, or without the lines that do.

    Returns:
        Its totals; `sets` has of each set its texts, how many of them are sought (the others are too short), how many
        of these were found, and in how many documents.

    Raises:
        ConfigError: Two sets have the same name.
        DataError: A file of a set cannot be read, or no text of a set is long enough.
        CheckpointError: The stage before is not finished, or the folder cannot be written.
    """
    options = corpus.clean.decontaminate
    twice = [name for name, count in Counter(each.name for each in options.sets).items() if count > 1]
    if twice:
        raise ConfigError(
            f"clean.decontaminate.sets: two sets are called {twice[0]}; give each its own name",
            code="config.named_twice",
            key="clean.decontaminate.sets",
        )
    paths = [find_files(each.files, f"clean.decontaminate.sets: {each.name}") for each in options.sets]
    described = [[[path.as_posix(), path.stat().st_size, path.stat().st_mtime_ns] for path in each] for each in paths]
    settings = {**options.model_dump(), "files": described, "format": FORMAT}
    stage = Stage("decontaminate", folder, DOCUMENT_SCHEMA, drop_contaminated, settings, output_of(before))
    sets = _Sets((), (0,), (), ())
    if not is_finished(stage):
        begin(stage)
        sets = read_sets(options, paths, folder / SETS_FOLDER)
    inputs = [_Documents(path, number, folder, options, sets) for number, path in enumerate(parts(before))]
    totals = run_stage(
        stage, inputs, workers=workers, display=display, more=lambda: {"sets": _found(folder, len(inputs), sets)}
    )
    shutil.rmtree(folder / SETS_FOLDER, ignore_errors=True)
    return totals


def read_sets(options: Decontaminate, paths: Sequence[Sequence[Path]], folder: Path) -> _Sets:
    """Write the hashes of what is looked for, and return where they are."""
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    folder.mkdir()
    hashes = _Hashes()
    num_texts, num_sought = [], []
    number = 0
    with RunWriter(folder, 0) as writer:
        for each, files in zip(options.sets, paths, strict=True):
            first, sought = number, 0
            for path in files:
                for text in read_texts(path, each.columns):
                    words = words_of(text)
                    if len(words) >= options.min_words:
                        size = min(len(words), options.words)
                        (*_, found) = sequences(hashes.of(words), size)
                        writer.add(found, size, number)
                        sought += 1
                    number += 1
            if not sought:
                raise DataError(
                    f"clean.decontaminate.sets: {each.name} has no text of {options.min_words} words; change its "
                    "files, its columns or min_words",
                    code="corpus.too_little_text",
                    key="clean.decontaminate.sets",
                    name=each.name,
                )
            num_texts.append(number - first)
            num_sought.append(sought)
    names = tuple(each.name for each in options.sets)
    runs = tuple(folder / name for name in writer.names)
    return _Sets(names, tuple(accumulate(num_texts, initial=0)), tuple(num_sought), runs)


def sequences(hashes: np.ndarray, longest: int) -> Iterator[np.ndarray]:
    """Yield the hashes of all sequences of 1 word, of 2 words, and so on, as far as there are any.

    Args:
        hashes: 64 bits of each word.
        longest: Words of the longest sequences.
    """
    found = np.zeros(len(hashes), np.uint64)
    for size in range(1, min(longest, len(hashes)) + 1):
        found = (found[: len(hashes) - size + 1] + hashes[size - 1 :]) * _FACTOR
        found ^= found >> np.uint64(31)
        yield found


class _Hashes:
    """Hashes of words; the words of a language come again and again."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of(self, words: Sequence[str]) -> np.ndarray:
        """Return 64 bits of each word."""
        if len(self._known) > KNOWN_WORDS:
            self._known = {}
        for word in words:
            if word not in self._known:
                self._known[word] = hash_64(word.encode())
        return np.array([self._known[word] for word in words], np.uint64)


def drop_contaminated(each: _Documents) -> Iterator[Document | Lost]:
    """Yield documents that hold no text of the sets, or without the lines that do, and which text others hold."""
    hashes, sought = _Hashes(), _Sought(each.sets.runs)
    paths = [each.folder / name for name in (found_file(each.number), cut_file(each.number))]
    with (
        replace_file(paths[0]) as found_path,
        replace_file(paths[1]) as cut_path,
        ShardWriter(found_path, FOUND_SCHEMA) as found,
        ShardWriter(cut_path, CUT_SCHEMA) as cut,
    ):
        for document in read_documents(each.path):
            lines = document["text"].split("\n")
            words = [words_of(line) for line in lines]
            flat = [word for line in words for word in line]
            hits = sought.in_words(hashes.of(flat), each.options.words)
            rows = _rows(hits, flat, each.sets)
            for row in rows:
                found.add({"id": document["id"], **row})
            if not hits:
                yield document
                continue
            reason = f"text of {rows[0]['set']}"
            touched = _lines_of(hits, [len(line) for line in words]) if each.options.drop == "lines" else set()
            left = [line for position, line in enumerate(lines) if position not in touched]
            num_left = sum(len(line.split()) for line in left)
            if each.options.drop == "document" or num_left < MIN_LEFT_WORDS:
                yield lost(document, reason, rows[0]["words"])
                continue
            for position in sorted(touched):
                cut.add({"id": document["id"], "position": position, "reason": reason, "text": lines[position]})
            yield with_text(document, "\n".join(left))


def _rows(hits: Sequence[_Hit], words: Sequence[str], sets: _Sets) -> list[dict[str, Any]]:
    """Return of each text that a document holds its set, its number in it, and the words that come first."""
    first: dict[int, _Hit] = {}
    for hit in hits:
        first.setdefault(hit.text, hit)
    rows = []
    for text, hit in first.items():
        number = bisect_right(sets.starts, text) - 1
        said = " ".join(words[hit.start : hit.start + hit.size])
        rows.append({"set": sets.names[number], "text": text - sets.starts[number], "words": said})
    return rows


def found_file(number: int) -> str:
    return f"found-{number:05d}.parquet"


class _Sought:
    """The sequences of all texts, by their length."""

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

    def in_words(self, hashes: np.ndarray, longest: int) -> list[_Hit]:
        """Return what a document holds of the texts, in the order of its words."""
        hits = []
        for size, found in enumerate(sequences(hashes, longest), start=1):
            if size not in self._by_size:
                continue
            highs, texts = self._by_size[size]
            first = np.minimum(np.searchsorted(highs, found), len(highs) - 1)
            for start in np.flatnonzero(highs[first] == found).tolist():
                last = int(np.searchsorted(highs, found[start], "right"))
                hits += [_Hit(start, size, int(text)) for text in texts[int(first[start]) : last].tolist()]
        return sorted(hits, key=lambda hit: (hit.start, hit.text, hit.size))


def _lines_of(hits: Sequence[_Hit], num_words: Sequence[int]) -> set[int]:
    """Return the positions of the lines that sequences touch."""
    edges = list(accumulate(num_words, initial=0))
    found: set[int] = set()
    for position, (start, stop) in enumerate(pairwise(edges)):
        if any(hit.start < stop and hit.start + hit.size > start for hit in hits):
            found.add(position)
    return found


def _found(folder: Path, num_shards: int, sets: _Sets) -> dict[str, dict[str, int]]:
    """Return of each set how many texts there are, are sought and were found, and in how many documents."""
    texts: dict[str, set[int]] = {name: set() for name in sets.names}
    documents = dict.fromkeys(sets.names, 0)
    for number in range(num_shards):
        ids: dict[str, set[str]] = {name: set() for name in sets.names}
        with pq.ParquetFile(folder / found_file(number)) as table:
            for batch in table.iter_batches():
                for row in batch.to_pylist():
                    texts[row["set"]].add(row["text"])
                    ids[row["set"]].add(row["id"])
        for name, held in ids.items():
            documents[name] += len(held)
    sizes = [stop - start for start, stop in pairwise(sets.starts)]
    return {
        name: {"texts": size, "sought": sought, "found": len(texts[name]), "documents": documents[name]}
        for name, size, sought in zip(sets.names, sizes, sets.num_sought, strict=True)
    }
