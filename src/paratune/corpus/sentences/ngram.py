"""An n-gram model with interpolated modified Kneser-Ney smoothing, written as an ARPA file for kenlm to score with.

Words beyond the vocabulary, W types of them, are one class <unk>, and each of them equally probable in it: the file
gives <unk> the probability of the class divided by W. Without that an unknown word would be among the most probable
ones, and a text of another language easy reading.

Source: Chen and Goodman, An empirical study of smoothing techniques for language modeling, Computer Speech & Language
13 (1999), section 3. Heafield et al., Scalable modified Kneser-Ney language model estimation, ACL 2013, section 3, say
what that leaves open: n-grams at the beginning of a sentence keep their counts in the lower orders, and single words
are interpolated with the uniform distribution.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from paratune.base.atomic import replace_file
from paratune.corpus.shard import writing

UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"
_UNKNOWN, _BEGIN, _END = range(3)
_BITS = 21
"""Of a word's number; three of them are one number of 64 bits."""
USUAL_DISCOUNTS = (0.5, 1.0, 1.5)
"""Of n-grams seen once, twice, and more often, where a text is too short to compute them: those of KenLM's lmplz."""
_NO_WORD = -99.0
"""log10 of the probability of <s>, which never follows anything."""


@dataclass(frozen=True)
class Learnt:
    """What a model was trained on, and what became of it."""

    num_sentences: int
    num_words: int
    """Ends of sentences not counted."""
    vocabulary_size: int
    """Words that it knows."""
    num_left_out: int
    """Types of words beyond the vocabulary."""
    num_ngrams: list[int]
    """Of each order, those of words with <unk>, <s> and </s>."""
    discounts: list[list[float]]
    """Of each order: of n-grams seen once, twice, and more often."""


@dataclass(frozen=True)
class _Order:
    """The n-grams of one order, ascending by their keys, and so by their contexts."""

    keys: Any
    """Numbers of the words, `_BITS` each, the last word lowest."""
    counts: Any
    """How often each is there in the highest order; in a lower one how many different words stand before it."""


@dataclass(frozen=True)
class _Level:
    """What the file says of an order."""

    keys: Any
    shares: Any
    """Probability of the last word after the others, of <unk> that of the class."""
    weights: Any
    """Of each n-gram as a context: what the lower order is weighted with; 1 where nothing follows it."""


def train(
    sentences: Callable[[], Iterable[Sequence[str]]], path: Path, *, vocabulary: int, order: int = 3
) -> Learnt | None:
    """Train a model and write it, whole or not at all.

    Args:
        sentences: Gives their words, each time the same; they are read twice.
        path: The ARPA file.
        vocabulary: Words to know, at most: the most frequent ones, of equally frequent ones those first in the order of
            the alphabet.
        order: 2 or 3.

    Returns:
        What was learnt; None, and no file is written, when there is no word.

    Raises:
        CheckpointError: It cannot be written.
    """
    counts = Counter(word for sentence in sentences() for word in sentence)
    if not counts:
        return None
    known = sorted(counts, key=lambda word: (-counts[word], word))[:vocabulary]
    names = [UNKNOWN, BEGIN, END, *known]
    numbers = {word: number for number, word in enumerate(names) if number > _END}
    tokens, num_sentences = _numbered(sentences(), numbers)
    orders = _adjusted(_counted(tokens, order))
    discounts = [_discounts(each.counts) for each in orders]
    num_left_out = len(counts) - len(known)
    levels = _levels(orders, discounts, len(known), max(1, num_left_out))
    _write(path, names, levels, max(1, num_left_out))
    return Learnt(
        num_sentences=num_sentences,
        num_words=sum(counts.values()),
        vocabulary_size=len(known),
        num_left_out=num_left_out,
        num_ngrams=[len(level.keys) for level in levels],
        discounts=discounts,
    )


def _numbered(sentences: Iterable[Sequence[str]], numbers: dict[str, int]) -> tuple[Any, int]:
    """Return the numbers of all words, with those of <s> and </s> around each sentence; and how many sentences."""
    tokens, num_sentences = array("i"), 0
    for sentence in sentences:
        tokens.append(_BEGIN)
        tokens.extend(numbers.get(word, _UNKNOWN) for word in sentence)
        tokens.append(_END)
        num_sentences += 1
    return np.frombuffer(tokens, np.int32), num_sentences


def _counted(tokens: Any, order: int) -> list[_Order]:
    """Return the n-grams of each order with how often they are there; none goes from one sentence into the next."""
    found, keys = [], tokens.astype(np.uint64)
    places = np.arange(len(tokens))  # where each n-gram begins
    for number in range(1, order + 1):
        if number > 1:
            inside = tokens[places + number - 2] != _END
            places, keys = places[inside], keys[inside]
            keys = (keys << np.uint64(_BITS)) | tokens[places + number - 1].astype(np.uint64)
        found.append(_Order(*np.unique(keys, return_counts=True)))
    return found


def _adjusted(orders: list[_Order]) -> list[_Order]:
    """Return the orders with, in all but the highest, the number of different words before each n-gram as its count.

    Nothing stands before <s>: what begins with it keeps its count. Of single words <s> itself is left out: it is never
    foretold.
    """
    adjusted = []
    for number, (lower, higher) in enumerate(pairwise(orders), start=1):
        counts = lower.counts.copy()
        ends, num_before = np.unique(higher.keys & _mask(number), return_counts=True)
        counts[np.searchsorted(lower.keys, ends)] = num_before
        keep = lower.keys != _BEGIN if number == 1 else slice(None)
        adjusted.append(_Order(lower.keys[keep], counts[keep]))
    return [*adjusted, orders[-1]]


def _mask(num_words: int) -> Any:
    """Return the bits of the last words of a key."""
    return np.uint64((1 << (_BITS * num_words)) - 1)


def _discounts(counts: Any) -> list[float]:
    """Return D1, D2 and D3+ of an order, or the usual ones where they cannot be computed or would make no sense."""
    n1, n2, n3, n4 = (int((counts == times).sum()) for times in range(1, 5))
    if 0 in (n1, n2, n3):
        return list(USUAL_DISCOUNTS)
    y = n1 / (n1 + 2 * n2)
    found = [1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
    return found if all(0 < each < times for times, each in enumerate(found, start=1)) else list(USUAL_DISCOUNTS)


def _levels(orders: list[_Order], discounts: list[list[float]], num_known: int, num_left_out: int) -> list[_Level]:
    """Return the probabilities and weights of all orders, from single words upwards."""
    shares, weight = _interpolation(orders[0].counts, discounts[0], np.zeros(1, np.int64))
    # The words, </s>, and each type that was left out are equally probable.
    uniform = np.full(len(shares), 1.0 / (num_known + 1 + num_left_out))
    keys = orders[0].keys
    if keys[0] != _UNKNOWN:
        keys, shares, uniform = (
            np.concatenate([[first], each]) for first, each in ((0, keys), (0, shares), (0, uniform))
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
        lower = below.shares[np.searchsorted(below.keys, order.keys & _mask(number - 1))]
        lengths = np.diff(starts, append=len(contexts))
        levels.append(_Level(order.keys, shares + np.repeat(weights, lengths) * lower, np.ones(len(order.keys))))
    return levels


def _interpolation(counts: Any, discounts: list[float], starts: Any) -> tuple[Any, Any]:
    """Return what is left to each n-gram of its share of its context, and what each context gives to the lower order.

    Args:
        counts: Of the n-grams.
        discounts: D1, D2, D3+.
        starts: First n-gram of each context.
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
            _write_level(file, names, level, number, num_left_out, is_highest=number == len(levels))
        file.write("\n\\end\\\n")


def _write_level(
    file: TextIO, names: list[str], level: _Level, number: int, num_left_out: int, *, is_highest: bool
) -> None:
    last = level.keys & _mask(1)
    logs = np.full(len(level.keys), _NO_WORD)
    one = np.where(last == _UNKNOWN, level.shares / num_left_out, level.shares)
    np.log10(one, out=logs, where=one > 0)
    weights = np.log10(level.weights)
    for row in _rows(level.keys, logs, weights):
        key, log, weight = row
        words = " ".join(names[(key >> (_BITS * place)) % (1 << _BITS)] for place in reversed(range(number)))
        file.write(f"{log:.7g}\t{words}\n" if is_highest else f"{log:.7g}\t{words}\t{weight:.7g}\n")


def _rows(*columns: Any, at_once: int = 100_000) -> Iterator[tuple[Any, ...]]:
    """Yield rows of arrays, as numbers of Python, without having all of them at a time."""
    for start in range(0, len(columns[0]), at_once):
        yield from zip(*(column[start : start + at_once].tolist() for column in columns), strict=True)
