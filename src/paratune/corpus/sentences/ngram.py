"""Trains n-gram models on files of good quality or on a part of the corpus, and computes perplexities with them.

A model gives its own training texts a perplexity that is too low. So each half of the corpus trains a model that scores
the other half. Files train one model, which scores all sentences.

The models have interpolated modified Kneser-Ney smoothing, and are ARPA files for kenlm. The W types of words outside
the vocabulary form a class <unk>, in which they are equally probable: the file has the probability of the class divided
by W for <unk>. Otherwise an unknown word would be among the most probable ones, and a text of another language would
have a low perplexity.

Source: Chen and Goodman, An empirical study of smoothing techniques for language modeling, Computer Speech & Language
13 (1999), section 3. Two details are from Heafield et al., Scalable modified Kneser-Ney language model estimation, ACL
2013, section 3: n-grams at the beginning of a sentence keep their counts in the lower orders, and unigrams are
interpolated with the uniform distribution.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from paratune.base.atomic import replace_file
from paratune.corpus.database import parquet, query
from paratune.corpus.inputs import find_files, read_texts
from paratune.corpus.sentences.split import ngram_words, rejection_reason, split_sentences
from paratune.corpus.settings import SentenceSettings
from paratune.corpus.shard import writing
from paratune.errors import DataError, require

UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"
_UNKNOWN, _BEGIN, _END = range(3)
_BITS = 21
"""Bits of a word's number; three of them fit in a 64-bit key."""
_MASKS = [np.uint64((1 << (_BITS * num_words)) - 1) for num_words in range(3)]
"""Bits of the last words of a key, by their number."""
USUAL_DISCOUNTS = (0.5, 1.0, 1.5)
"""Discounts of n-grams with count 1, 2, and more, for texts that are too short to compute them (KenLM's lmplz)."""
BATCH_SIZE = 100_000
"""N-grams that are written at a time, as Python numbers."""
_NO_WORD = -99.0
"""log10 of the probability of <s>, which follows no word."""


@dataclass(frozen=True)
class _Order:
    """The n-grams of one order, sorted by key, and so by context."""

    keys: Any
    """Numbers of the words, `_BITS` each, the last word in the lowest bits."""
    counts: Any
    """Number of occurrences in the highest order; in lower orders, number of different previous words."""


@dataclass(frozen=True)
class _Level:
    """Probabilities and weights of one order in the file."""

    keys: Any
    shares: Any
    """Probability of the last word after the others; for <unk>, of the class."""
    weights: Any
    """Back-off weight of each n-gram as a context; 1 if nothing follows it."""


def train(
    sentences: Callable[[], Iterable[Sequence[str]]], path: Path, *, vocabulary: int, order: int = 3
) -> dict[str, Any] | None:
    """Train a model and write it; the file is complete or absent.

    Args:
        sentences: Returns the words of all sentences; called twice, with equal results.
        vocabulary: Maximum number of known words: the most frequent ones, equally frequent ones in alphabetical order.
        order: 2 or 3.

    Returns:
        Figures of the model: num_sentences; num_words, without ends of sentences; vocabulary_size; num_left_out, types
        of words outside the vocabulary; num_ngrams of each order, where unigrams include <unk>, <s> and </s>; discounts
        of n-grams with count 1, 2, and more, for each order. None, without a file, if there are no words.

    Raises:
        CheckpointError: The file is not writable.
    """
    counts = Counter(word for sentence in sentences() for word in sentence)
    if not counts:
        return None
    known = sorted(counts, key=lambda word: (-counts[word], word))[:vocabulary]
    names = [UNKNOWN, BEGIN, END, *known]
    numbers = {word: number for number, word in enumerate(names) if number > _END}
    tokens, num_sentences = array("i"), 0
    for sentence in sentences():
        tokens.extend([_BEGIN, *(numbers.get(word, _UNKNOWN) for word in sentence), _END])
        num_sentences += 1
    orders = _adjusted(_counted(np.frombuffer(tokens, np.int32), order))
    discounts = [_discounts(ngrams.counts) for ngrams in orders]
    num_left_out = len(counts) - len(known)
    levels = _levels(orders, discounts, len(known), max(1, num_left_out))
    _write(path, names, levels, max(1, num_left_out))
    return {
        "num_sentences": num_sentences,
        "num_words": sum(counts.values()),
        "vocabulary_size": len(known),
        "num_left_out": num_left_out,
        "num_ngrams": [len(level.keys) for level in levels],
        "discounts": discounts,
    }


def _counted(tokens: Any, order: int) -> list[_Order]:
    """Return the n-grams of each order with their counts; an n-gram does not cross the end of a sentence."""
    orders, keys = [], tokens.astype(np.uint64)
    places = np.arange(len(tokens))  # where each n-gram begins
    for number in range(1, order + 1):
        if number > 1:
            inside = tokens[places + number - 2] != _END
            places, keys = places[inside], keys[inside]
            keys = (keys << np.uint64(_BITS)) | tokens[places + number - 1].astype(np.uint64)
        orders.append(_Order(*np.unique(keys, return_counts=True)))
    return orders


def _adjusted(orders: list[_Order]) -> list[_Order]:
    """Replace the counts of all orders but the highest by the numbers of different previous words.

    N-grams that begin with <s> keep their counts. The unigram <s> is left out: it is never predicted.
    """
    adjusted = []
    for number, (lower, higher) in enumerate(pairwise(orders), start=1):
        counts = lower.counts.copy()
        ends, num_before = np.unique(higher.keys & _MASKS[number], return_counts=True)
        counts[np.searchsorted(lower.keys, ends)] = num_before
        keep = lower.keys != _BEGIN if number == 1 else slice(None)
        adjusted.append(_Order(lower.keys[keep], counts[keep]))
    return [*adjusted, orders[-1]]


def _discounts(counts: Any) -> list[float]:
    """Return D1, D2 and D3+ of an order, or the usual discounts if they cannot be computed or are out of range."""
    n1, n2, n3, n4 = (int((counts == times).sum()) for times in range(1, 5))
    if 0 in (n1, n2, n3):
        return list(USUAL_DISCOUNTS)
    y = n1 / (n1 + 2 * n2)
    discounts = [1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
    are_in_range = all(0 < discount < times for times, discount in enumerate(discounts, start=1))
    return discounts if are_in_range else list(USUAL_DISCOUNTS)


def _levels(orders: list[_Order], discounts: list[list[float]], num_known: int, num_left_out: int) -> list[_Level]:
    shares, weight = _interpolation(orders[0].counts, discounts[0], np.zeros(1, np.int64))
    # Known words, </s>, and each type outside the vocabulary are equally probable.
    uniform = np.full(len(shares), 1.0 / (num_known + 1 + num_left_out))
    keys = orders[0].keys
    if keys[0] != _UNKNOWN:
        keys, shares, uniform = (
            np.concatenate([[first], values]) for first, values in ((0, keys), (0, shares), (0, uniform))
        )
    uniform[0] = num_left_out / (num_known + 1 + num_left_out)
    keys, shares = np.insert(keys, 1, _BEGIN).astype(np.uint64), np.insert(shares + weight * uniform, 1, 0.0)
    levels = [_Level(keys, shares, np.ones(len(keys)))]
    for number, order in enumerate(orders[1:], start=2):
        below = levels[-1]
        contexts = order.keys >> np.uint64(_BITS)
        starts = np.flatnonzero(np.diff(contexts, prepend=contexts[0] + np.uint64(1)))
        shares, weights = _interpolation(order.counts, discounts[number - 1], starts)
        below.weights[np.searchsorted(below.keys, contexts[starts])] = weights
        lower = below.shares[np.searchsorted(below.keys, order.keys & _MASKS[number - 1])]
        lengths = np.diff(starts, append=len(contexts))
        levels.append(_Level(order.keys, shares + np.repeat(weights, lengths) * lower, np.ones(len(order.keys))))
    return levels


def _interpolation(counts: Any, discounts: list[float], starts: Any) -> tuple[Any, Any]:
    """Return the discounted probability of each n-gram, and the weight of the lower order of each context.

    Args:
        starts: Index of the first n-gram of each context.
    """
    taken = np.array([0.0, *discounts])[np.minimum(counts, 3)]
    totals = np.add.reduceat(counts, starts).astype(float)
    lengths = np.diff(starts, append=len(counts))
    return (counts - taken) / np.repeat(totals, lengths), np.add.reduceat(taken, starts) / totals


def _write(path: Path, names: list[str], levels: list[_Level], num_left_out: int) -> None:
    with (
        writing(path=path),
        replace_file(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as file,
    ):
        file.write("\\data\\\n")
        file.writelines(f"ngram {number}={len(level.keys)}\n" for number, level in enumerate(levels, start=1))
        for number, level in enumerate(levels, start=1):
            file.write(f"\n\\{number}-grams:\n")
            logs = np.full(len(level.keys), _NO_WORD)
            is_unknown = level.keys & _MASKS[1] == _UNKNOWN
            probabilities = np.where(is_unknown, level.shares / num_left_out, level.shares)
            np.log10(probabilities, out=logs, where=probabilities > 0)
            weights = np.log10(level.weights)
            for start in range(0, len(logs), BATCH_SIZE):
                columns = (column[start : start + BATCH_SIZE].tolist() for column in (level.keys, logs, weights))
                for key, log, weight in zip(*columns, strict=True):
                    words = " ".join(
                        names[(key >> (_BITS * place)) % (1 << _BITS)] for place in reversed(range(number))
                    )
                    file.write(
                        f"{log:.7g}\t{words}\n" if number == len(levels) else f"{log:.7g}\t{words}\t{weight:.7g}\n"
                    )
        file.write("\n\\end\\\n")


KEY = "sentences.clean.files"
MODEL_FILE = "ngram-{}.arpa"
NUM_HALVES = 2


def corpus_half(document_id: str) -> int:
    """Return the half of the corpus of a document, 0 or 1, by the hash of its id."""
    return hashlib.sha256(document_id.encode()).digest()[0] % NUM_HALVES


def clean_text_files(settings: SentenceSettings) -> list[Path]:
    """Return the files with training texts; empty if the corpus is used.

    Raises:
        DataError: A file is missing, has another format, lacks the column `text`, or is damaged.
    """
    files = find_files(settings.clean.files, KEY)
    for path in files:
        next(read_texts(path, ["text"], of_tables=True), None)
    return files


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
        path = folder / MODEL_FILE.format(0)
        learnt = train(lambda: file_sentences(files, settings), path, vocabulary=vocabulary)
        if learnt is None:
            message = f"{KEY}: no sentence in {', '.join(map(str, files))} is usable for training"
            raise DataError(message, code="corpus.too_little_text", key=KEY)
        return [learnt]
    models = [
        train(
            partial(corpus_sentences, folder, split, repeated, settings.clean.max_words, half),
            folder / MODEL_FILE.format(half),
            vocabulary=vocabulary,
        )
        for half in range(NUM_HALVES)
    ]
    return [model for model in models if model is not None] if None not in models else []


def file_sentences(files: Sequence[Path], settings: SentenceSettings) -> Iterator[list[str]]:
    """Yield the words of each different sentence in files."""
    num_words, seen = 0, set[bytes]()
    for text in (text for path in files for text in read_texts(path, ["text"], of_tables=True)):
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
