"""From row outputs of windows to one answer for each question, with logits from the tests."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from paratune.data.columns import Samples
from paratune.data.encode import BOUNDS, CHAR_END, CHAR_START
from paratune.data.load import Split
from paratune.data.token_store import EXAMPLE, TokenStore
from paratune.tasks.question_answering import best_answers

CONTEXTS = ["red green blue", "one  two"]
WORDS = [[(0, 3), (4, 9), (10, 14)], [(0, 3), (5, 4), (5, 8)]]
"""Characters of the tokens; the middle token of the second context is white space."""


def split(examples: Sequence[int] = (0, 0, 1)) -> Split:
    """Return windows of four tokens: CLS, and the three of the context of their question."""
    chars = np.asarray([[(-1, -1), *WORDS[example]] for example in examples]).reshape(-1, 2)
    offsets = np.arange(len(examples) + 1) * 4
    bounds = np.tile([0, 1, 4], (len(examples), 1))
    store = TokenStore(
        np.zeros(len(chars), np.uint16),
        None,
        offsets,
        np.full(len(examples), 4, np.int32),
        4,
        "0",
        {CHAR_START: chars[:, 0], CHAR_END: chars[:, 1]},
        {EXAMPLE: np.asarray(examples), BOUNDS: bounds},
    )
    samples = Samples(["q1", "q2"], CONTEXTS, None, ["a", "b"], np.arange(2), None, {})
    return Split("validation", "x.json", samples, store, "f")


def kept(*windows: tuple[list[tuple[float, float, int, int]], tuple[float, float]]) -> np.ndarray[Any, Any]:
    """Return rows of two answers each, (start logit, end logit, first, last), and the logits of "no answer"."""
    return np.asarray([[*np.asarray(answers, dtype=float).T.ravel(), *null] for answers, null in windows], np.float32)


NONE = (-np.inf, -np.inf, -1, -1)
OUTPUTS = kept(
    ([(1, 1, 1, 1), (0.5, 0.5, 2, 3)], (2, 3)),  # red: 2; green blue: 1
    ([(3, 1.5, 2, 2), (3, 1, 2, 3)], (1, 1.5)),  # green: 4.5; green blue: 4
    ([(9, 9, 2, 2), (1, 2, 2, 3)], (0, 1)),  # white space; two: 3
)


def test_the_answer_is_from_the_best_window():
    answers = best_answers(split(), OUTPUTS)
    assert answers.texts == ["green", "two"]
    assert answers.scores.tolist() == [4.5, 3]


def test_the_null_score_is_the_smallest_over_windows():
    answers = best_answers(split(), OUTPUTS)
    assert answers.null_scores.tolist() == [2.5, 1]
    assert answers.null_odds.tolist() == [2.5 - 4.5, 1 - 3]


def test_windows_may_come_in_any_order():
    answers = best_answers(split((1, 0, 0)), OUTPUTS[[2, 1, 0]])
    assert answers.texts == ["green", "two"]
    assert answers.null_scores.tolist() == [2.5, 1]


def test_a_context_without_possible_answers():
    answers = best_answers(split(), kept(*[([NONE, NONE], (0, 0))] * 3))
    assert answers.texts == ["", ""]
    assert (answers.null_odds > 1e8).all()
    assert np.isfinite(answers.null_odds).all()
