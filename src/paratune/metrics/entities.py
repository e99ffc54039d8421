"""Scores of tagged words: entities, compared as seqeval does, and words. Imports no torch.

Dimensions: `N` sentences.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paratune.metrics.values import no_scores

OF_ENTITIES = ("f1", "precision", "recall")
COUNTS = ("num_correct", "num_predicted", "num_entities", "num_right", "num_words")
"""Columns of `sentence_counts`: entities that are correct, predicted and true; words with the right tag, and all."""
Entity = tuple[str, int, int]
"""Type, first word, and last word."""
OUTSIDE = "O"


def entities(tags: Sequence[str], *, strict: bool = False) -> list[Entity]:
    """Return the entities of a sentence with tags in IOB2: B- begins an entity, I- continues one of the same type.

    An I- without an entity of its type in front begins one, as in the default mode of seqeval; with `strict`, it is
    no part of an entity, as in seqeval's mode strict with the scheme IOB2.

    Source: seqeval.metrics.sequence_labeling.get_entities; seqeval.scheme.Entities.
    """
    spans: list[Entity] = []
    kind, begin = "", -1
    for place, tag in enumerate([*tags, OUTSIDE]):
        mark, _, name = tag.partition("-")
        if begin >= 0 and not (mark == "I" and name == kind):
            spans.append((kind, begin, place - 1))
            begin = -1
        if mark == "B" or (mark == "I" and begin < 0 and not strict):
            kind, begin = name, place
    return spans


def count_without_begin(tags: Sequence[str]) -> int:
    """Return how many I- tags have no B- or I- of the same type in front."""
    before = [OUTSIDE, *tags[:-1]]
    return sum(
        tag.startswith("I-") and last.partition("-")[2] != tag.partition("-")[2]
        for tag, last in zip(tags, before, strict=True)
    )


@dataclass(frozen=True, eq=False)
class TaggedSentences:
    """True and predicted tags, by their names."""

    true: Sequence[Sequence[str]]
    predicted: Sequence[Sequence[str | None]]
    """None for a word without a prediction, which has no token."""
    has_entities: bool = True
    """Whether tags are in IOB2; else they are classes of words."""
    strict: bool = False

    def spans(self) -> Iterable[tuple[set[Entity], set[Entity]]]:
        """Yield the true and the predicted entities of each sentence."""
        for true, predicted in zip(self.true, self.predicted, strict=True):
            given = [tag or OUTSIDE for tag in predicted]
            yield set(entities(true, strict=self.strict)), set(entities(given, strict=self.strict))


def sentence_counts(sentences: TaggedSentences) -> npt.NDArray[np.int64]:
    """Return `COUNTS` of each sentence, (N, 5); entities are 0 where there are none."""
    words = [
        (sum(tag == other for tag, other in zip(true, predicted, strict=True)), len(true))
        for true, predicted in zip(sentences.true, sentences.predicted, strict=True)
    ]
    spans = [(0, 0, 0)] * len(words)
    if sentences.has_entities:
        spans = [(len(true & given), len(given), len(true)) for true, given in sentences.spans()]
    return np.asarray([(*of_spans, *of_words) for of_spans, of_words in zip(spans, words, strict=True)], dtype=np.int64)


def score_counts(counts: npt.NDArray[np.number], metric: str) -> npt.NDArray[np.float64]:
    """Return a score from sums of `COUNTS`, (..., 5), to (...,); 0 where a denominator is 0, as in seqeval."""
    correct, given, true, right, words = np.moveaxis(np.asarray(counts, dtype=np.float64), -1, 0)
    above, below = {
        "precision": (correct, given),
        "recall": (correct, true),
        "f1": (2 * correct, given + true),
        "accuracy": (right, words),
    }[metric]
    return np.asarray(np.where(below > 0, above / np.maximum(below, 1), 0.0), dtype=np.float64)


def entity_scores(sentences: TaggedSentences) -> dict[str, float | None]:
    """Return precision, recall and F1 of all entities together, and the share of words with the right tag.

    Scores of entities are None where tags are classes of words.

    Source: seqeval.metrics.f1_score, precision_score, recall_score (average="micro"), accuracy_score.
    """
    scores = no_scores("token_classification")
    if not len(sentences.true):
        return scores
    sums = sentence_counts(sentences).sum(axis=0)
    names = list(scores) if sentences.has_entities else ["accuracy"]
    return scores | {name: float(score_counts(sums, name)) for name in names}


def scores_by_type(sentences: TaggedSentences) -> Mapping[str, Mapping[str, float | int]]:
    """Return precision, recall, F1 and the number of true entities (support) of each type, in the order of names.

    Source: seqeval.metrics.classification_report.
    """
    correct, given, true = Counter[str](), Counter[str](), Counter[str]()
    for true_spans, given_spans in sentences.spans():
        correct.update(kind for kind, _, _ in true_spans & given_spans)
        given.update(kind for kind, _, _ in given_spans)
        true.update(kind for kind, _, _ in true_spans)
    by_type = {kind: np.asarray([correct[kind], given[kind], true[kind], 0, 0]) for kind in sorted({*given, *true})}
    return {
        kind: {**{name: float(score_counts(sums, name)) for name in OF_ENTITIES}, "support": int(sums[2])}
        for kind, sums in by_type.items()
    }
