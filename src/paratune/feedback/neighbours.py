"""The essays of a reference that are most similar to an essay, by the words that they have in common."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Neighbour:
    """A similar text of the reference."""

    index: int
    """Index in the reference."""
    similarity: float
    """Cosine of TF-IDF vectors, 0 to 1."""


def nearest(texts: Sequence[str], reference: Sequence[str], count: int) -> list[list[Neighbour]]:
    """Return for each text the most similar texts of the reference, the most similar first.

    The vectors are TF-IDF of words and pairs of words, fitted on the reference. Equal texts are left out: an essay of
    the reference is not its own neighbour.

    Args:
        texts: Essays.
        reference: Other essays; at least one has a word.
        count: Neighbours of each text, at most.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    known = vectorizer.fit_transform(reference)
    similar = np.asarray((vectorizer.transform(texts) @ known.T).todense())
    found = []
    for text, row in zip(texts, similar, strict=True):
        order = [at for at in np.argsort(-row, kind="stable").tolist() if reference[at] != text]
        found.append([Neighbour(at, float(row[at])) for at in order[:count] if row[at] > 0])
    return found
