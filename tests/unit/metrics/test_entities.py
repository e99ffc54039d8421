"""Expected values: seqeval 1.2.2, called as in its README, and the example of that README."""

import random

import numpy as np
import pytest

from paratune.metrics.entities import (
    OF_ENTITIES,
    TaggedSentences,
    count_without_begin,
    entities,
    entity_scores,
    score_counts,
    scores_by_type,
    sentence_counts,
)

TRUE = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
GIVEN = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def test_the_example_of_seqeval():
    # README: f1 0.50, accuracy 0.80; MISC 0.00 of 1, PER 1.00 of 1.
    sentences = TaggedSentences(TRUE, GIVEN)
    assert entity_scores(sentences) == {"f1": 0.5, "precision": 0.5, "recall": 0.5, "accuracy": 0.8}
    by_type = scores_by_type(sentences)
    assert (by_type["MISC"]["f1"], by_type["MISC"]["support"]) == (0.0, 1)
    assert (by_type["PER"]["f1"], by_type["PER"]["support"]) == (1.0, 1)


@pytest.mark.parametrize("strict", [False, True])
def test_scores_equal_seqeval(strict):
    seqeval = pytest.importorskip("seqeval.metrics")
    from seqeval.scheme import IOB2

    draw = random.Random(0)
    for _ in range(60):
        lengths = [draw.randint(1, 9) for _ in range(draw.randint(1, 6))]
        # Of all tags, so that many I- have no B-.
        true, given = ([[draw.choice(TAGS) for _ in range(length)] for length in lengths] for _ in range(2))
        given = [[tag if draw.random() < 0.6 else other for tag, other in zip(*pair, strict=True)]
                 for pair in zip(true, given, strict=True)]  # fmt: skip
        scores = entity_scores(TaggedSentences(true, given, strict=strict))
        options = {"mode": "strict", "scheme": IOB2} if strict else {}
        for name in OF_ENTITIES:
            expected = getattr(seqeval, f"{name}_score" if name != "f1" else "f1_score")
            assert scores[name] == pytest.approx(expected(true, given, zero_division=0, **options)), (true, given)
        assert scores["accuracy"] == pytest.approx(seqeval.accuracy_score(true, given))


def test_an_inside_tag_without_its_begin():
    tags = ["I-PER", "I-PER", "I-LOC", "B-LOC", "I-PER", "O"]
    assert entities(tags) == [("PER", 0, 1), ("LOC", 2, 2), ("LOC", 3, 3), ("PER", 4, 4)]
    assert entities(tags, strict=True) == [("LOC", 3, 3)]
    assert count_without_begin(tags) == 3


def test_classes_of_words_have_an_accuracy_only():
    scores = entity_scores(TaggedSentences([["NOUN", "VERB"]], [["NOUN", None]], has_entities=False))
    assert scores == {"f1": None, "precision": None, "recall": None, "accuracy": 0.5}


def test_counts_add_up_to_the_scores():
    sentences = TaggedSentences(TRUE, GIVEN)
    sums = sentence_counts(sentences).sum(axis=0)
    assert sums.tolist() == [1, 2, 2, 8, 10]
    assert score_counts(np.zeros(5), "f1") == 0.0
