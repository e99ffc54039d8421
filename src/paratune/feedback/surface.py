"""Facts of a text that a reader can count: length, paragraphs, repeated phrases. Imports no torch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paratune.explain.parts import paragraphs, sentences, words

PHRASE_LENGTHS = (6, 5, 4, 3)
MIN_REPEATS = 3
MAX_PHRASES = 5
MIN_SAME_PROMPT = 5
"""Texts with the same prompt that are needed to compare with them alone."""


@dataclass(frozen=True)
class SurfaceFacts:
    """Countable facts of a text."""

    num_words: int
    num_sentences: int
    num_paragraphs: int
    words_per_sentence: float
    different_words_share: float
    """Different words divided by words, 0 to 1."""
    repeated_phrases: tuple[tuple[str, int], ...]
    """Phrases of 3 to 6 words that occur at least 3 times, the longest first; a part of a longer one is left out."""


def surface_facts(text: str) -> SurfaceFacts:
    """Return the facts of a text with at least one word."""
    spoken = plain_words(text)
    num_sentences = len(sentences(text))
    return SurfaceFacts(
        num_words=len(spoken),
        num_sentences=num_sentences,
        num_paragraphs=len(paragraphs(text)),
        words_per_sentence=len(spoken) / max(1, num_sentences),
        different_words_share=len(set(spoken)) / max(1, len(spoken)),
        repeated_phrases=_repeated_phrases(spoken),
    )


def plain_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return [text[start:end].lower() for start, end in words(text) if text[start:end][0].isalnum()]


def _repeated_phrases(spoken: Sequence[str]) -> tuple[tuple[str, int], ...]:
    found: list[tuple[tuple[str, ...], int]] = []
    for length in PHRASE_LENGTHS:
        counts = Counter(tuple(spoken[at : at + length]) for at in range(len(spoken) - length + 1))
        for phrase, count in counts.most_common():
            inside = any(_is_part(phrase, longer) and count <= times for longer, times in found)
            if count >= MIN_REPEATS and not inside:
                found.append((phrase, count))
    return tuple((" ".join(phrase), count) for phrase, count in found[:MAX_PHRASES])


def _is_part(phrase: Sequence[str], longer: Sequence[str]) -> bool:
    size = len(phrase)
    return any(list(longer[at : at + size]) == list(phrase) for at in range(len(longer) - size + 1))


@dataclass(frozen=True)
class Usual:
    """Quartiles of a fact over other texts."""

    num_texts: int
    same_prompt: bool
    """Whether the texts have the same prompt; otherwise they are all texts."""
    quartiles: tuple[float, float, float]
    share_below: float
    """Share of the texts with a smaller value, 0 to 1."""


def compare_length(num_words: int, prompt: str | None, others: Sequence[int], prompts: Sequence[str | None]) -> Usual:
    """Return the usual number of words: of texts with the same prompt where there are at least 5, else of all.

    Args:
        prompt: Its prompt; None where texts have none.
        others: (N,), words of other texts; at least one.
        prompts: (N,), their prompts.
    """
    same = [count for count, other in zip(others, prompts, strict=True) if prompt is not None and other == prompt]
    is_same = len(same) >= MIN_SAME_PROMPT
    counts = np.asarray(same if is_same else others)
    low, middle, high = np.quantile(counts, [0.25, 0.5, 0.75]).tolist()
    return Usual(len(counts), is_same, (low, middle, high), float((counts < num_words).mean()))
