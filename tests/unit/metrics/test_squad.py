"""Scores of answers: arithmetic in the tests, and figures of the official script."""

import numpy as np
import pytest

from paratune.config.metric_names import METRICS
from paratune.metrics.squad import (
    RawScores,
    best_threshold,
    chosen_threshold,
    normalise,
    raw_scores,
    squad_scores,
    with_threshold,
)

GOLDS = [["Denver Broncos", "The Denver Broncos"], ["24–10"], [], ["the"], [], ["café au lait"], ["Santa Clara"]]
GIVEN = ["the denver broncos!", "24-10", "Carolina", "an", "", "Café", "in Santa Clara, California"]
ODDS = np.asarray([-3.0, -1.0, 2.5, 0.5, 1.0, -2.0, 0.25])


@pytest.mark.parametrize(
    ("text", "actual"),
    [
        ("The  Quick,\nBrown fox!", "quick brown fox"),
        ("a an the", ""),
        ("theatre and anthem", "theatre and anthem"),
        ("U.S.", "us"),
        ("a.n", ""),  # punctuation goes before articles: "an", and then nothing
        ("Ação", "ação"),
        ("“quoted”—x", "“quoted”—x"),  # only ASCII punctuation goes
        ("state-of-the-art", "stateoftheart"),
    ],
)
def test_texts_are_normalised_as_by_the_official_script(text: str, actual: str):
    assert normalise(text) == actual


def test_articles_of_another_language_can_be_set():
    portuguese = ["o", "a", "os", "as", "um", "uma"]
    assert normalise("A cidade do Porto", portuguese) == "cidade do porto"
    assert normalise("the Porto", portuguese) == "the porto"
    assert normalise("a, b", []) == "a b"


def test_the_best_gold_answer_counts():
    raw = raw_scores(GIVEN, GOLDS)
    # "24-10" loses its ASCII hyphen and the gold answer keeps its dash: nothing is shared.
    # A gold answer of nothing but articles is no answer text, so that the right one is empty - and "an" is.
    assert raw.exact.tolist() == [1, 0, 0, 1, 1, 0, 0]
    # "café" of "café au lait": precision 1, recall 1/3: 2 * 1/3 / (4/3) = 0.5.
    # "in santa clara california" of "santa clara": precision 2/4, recall 1: 2 * 0.5 / 1.5 = 2/3.
    assert raw.f1 == pytest.approx([1, 0, 0, 1, 1, 0.5, 2 / 3])
    assert raw.has_answer.tolist() == [True, True, False, True, False, True, True]
    assert raw.is_empty.tolist() == [False, False, False, False, True, False, False]


def test_repeated_words_count_as_often_as_in_both_texts():
    # "to be to": 3 words, of which "to" once and "be" once are in "to be": precision 2/3, recall 1.
    assert raw_scores(["to be to"], [["to be"]]).f1[0] == pytest.approx(2 * (2 / 3) / (5 / 3))


def test_scores_equal_the_official_script():
    # What evaluate-v2.0.py prints for these files with --na-prob-file ODDS --na-prob-thresh 0.4.
    raw = raw_scores(GIVEN, GOLDS)
    actual = squad_scores(raw, ODDS, 0.4)
    assert actual == pytest.approx(
        {
            "exact": 42.857142857142854,
            "f1": 59.523809523809526,
            "has_answer_exact": 20.0,
            "has_answer_f1": 43.33333333333333,
            "no_answer_exact": 100.0,
            "no_answer_f1": 100.0,
            "best_exact": 57.142857142857146,
            "best_f1": 73.80952380952382,
        }
    )
    assert tuple(actual) == METRICS["qa"][:-1]
    assert best_threshold(raw.exact, raw, ODDS) == (pytest.approx(57.142857142857146), 0.5)
    assert best_threshold(raw.f1, raw, ODDS) == (pytest.approx(73.80952380952382), 0.5)


def test_questions_above_the_threshold_get_no_answer():
    raw = raw_scores(GIVEN, GOLDS)
    # At 0.4: questions 2, 3 and 4 are above; 3 has an answer and loses it.
    assert with_threshold(raw.exact, raw, ODDS, 0.4).tolist() == [1, 0, 1, 0, 1, 0, 0]
    # Odds equal to the threshold are not above it.
    assert with_threshold(raw.exact, raw, ODDS, 0.5)[3] == 1


def test_the_best_threshold_is_the_last_odds_that_gain():
    raw = raw_scores(["x", "y", "z"], [["x"], [], ["z"]])
    # By odds: x is right (+1), y has no answer (-1), z is right (+1): the best total is first reached at x.
    assert best_threshold(raw.f1, raw, np.asarray([1.0, 2.0, 3.0])) == (pytest.approx(200 / 3), 1.0)
    assert best_threshold(raw.f1, raw, np.asarray([1.0, 3.0, 2.0])) == (pytest.approx(100), 2.0)


def test_without_correct_answers_no_question_is_answered():
    raw = raw_scores(["x", "y"], [["q"], []])
    odds = np.asarray([-4.0, 3.0])
    assert best_threshold(raw.f1, raw, odds) == (50, 0.0)  # the official script returns 0 then
    threshold = chosen_threshold(raw, odds)
    assert threshold < -4
    assert with_threshold(raw.f1, raw, odds, threshold).tolist() == [0, 1]


def test_questions_of_equal_odds_are_answered_together():
    # One right answer among ten questions without any: to answer all is 1 of 11, to answer none 10 of 11.
    raw = raw_scores(["x"] * 11, [["x"], *[[]] * 10])
    odds = np.zeros(11)
    threshold = chosen_threshold(raw, odds)
    assert threshold < 0
    assert squad_scores(raw, odds, threshold)["f1"] == pytest.approx(100 * 10 / 11)
    # The official script stops in the middle of the equals.
    assert best_threshold(raw.f1, raw, odds) == (100, 0.0)
    # Of -1: x is right; of 0: 10 lose what x gained.
    odds = np.asarray([-1.0, *[0.0] * 10])
    assert chosen_threshold(raw, odds) == -1
    # Of -1: one of three is right, 1 - 1 - 1 = -1; up to 0, two more are: 1 in all.
    raw = raw_scores(["x"] * 5, [["x"], [], [], ["x"], ["x"]])
    assert chosen_threshold(raw, np.asarray([-1.0, -1.0, -1.0, 0.0, 0.0])) == 0


def test_the_chosen_threshold_gives_the_best_f1():
    random = np.random.default_rng(0)
    for _ in range(20):
        has_answer = random.random(30) < 0.6
        f1 = np.where(has_answer, random.random(30), 0)
        raw = RawScores(f1 > 0.8, f1, has_answer, np.zeros(30, dtype=np.bool_))
        odds = random.normal(size=30)
        scores = squad_scores(raw, odds, chosen_threshold(raw, odds))
        tried = [100 * with_threshold(f1, raw, odds, threshold).mean() for threshold in [-10, *odds]]
        assert scores["f1"] == pytest.approx(scores["best_f1"])
        assert scores["best_f1"] == pytest.approx(max(tried))


def test_without_odds_every_question_is_answered():
    actual = squad_scores(raw_scores(["x", "w"], [["x"], ["y z w"]]), None, 0.0)
    assert actual["exact"] == actual["has_answer_exact"] == 50
    assert actual["f1"] == pytest.approx(100 * (1 + 0.5) / 2)
    assert [actual[name] for name in ("no_answer_exact", "no_answer_f1", "best_exact", "best_f1")] == [None] * 4
