"""Scores of the same answer for every sample; expected values are in the tests."""

from types import SimpleNamespace

import numpy as np
import pytest

from paratune.config.task_sections import ClassificationTask, OrdinalTask, QuestionAnsweringTask, RegressionTask
from paratune.data.columns import AnswerSpan
from paratune.tasks import make_recipe
from paratune.tasks.baseline import constant_baseline


def splits(**labels):
    return {name: SimpleNamespace(labels=np.asarray(values)) for name, values in labels.items()}


def test_the_regression_baseline_is_the_training_mean():
    recipe = make_recipe(RegressionTask(kind="regression"))
    actual = constant_baseline("regression", recipe, splits(train=[1.0, 2.0, 6.0], test=[2.0, 4.0]))
    # The mean is 3: errors 1 and -1 on test.
    assert (actual["predicts"], actual["value"]) == ("training mean", 3.0)
    assert list(actual["scores"]) == ["test"]
    assert actual["scores"]["test"]["rmse"] == actual["scores"]["test"]["mae"] == 1.0
    assert actual["scores"]["test"]["loss"] == 1.0
    assert actual["scores"]["test"]["pearson"] is None


def test_the_classification_baseline_is_the_majority_class():
    recipe = make_recipe(ClassificationTask(kind="classification", labels=["a", "b", "c"]))
    actual = constant_baseline(
        "classification", recipe, splits(train=[1, 1, 1, 0], validation=[0, 1, 1, 0, 0], test=[2, 1])
    )
    assert (actual["predicts"], actual["value"]) == ("majority class", "b")
    assert actual["scores"]["validation"]["accuracy"] == pytest.approx(2 / 5)
    # Shares 1/4 and 3/4: two of five are b.
    assert actual["scores"]["validation"]["loss"] == pytest.approx(-(2 * np.log(3 / 4) + 3 * np.log(1 / 4)) / 5)
    # Training had no c: its loss is infinite, and so not known.
    assert actual["scores"]["test"]["loss"] is None
    assert actual["scores"]["test"]["accuracy"] == 0.5


def test_the_baseline_of_ordered_classes_is_the_median_class():
    recipe = make_recipe(OrdinalTask(kind="ordinal", labels=["low", "middle", "high"]))
    actual = constant_baseline("ordinal", recipe, splits(train=[0, 1, 1, 2, 2, 2, 1], test=[1, 1, 2, 0]))
    assert (actual["predicts"], actual["value"]) == ("median class", "middle")
    # Two of four are right, and the other two one class off; a constant answer has kappa 0.
    scores = actual["scores"]["test"]
    assert (scores["accuracy"], scores["mae"], scores["within_one"], scores["qwk"]) == (0.5, 0.5, 1.0, 0.0)
    assert scores["loss"] is None


def questions(*golds):
    answers = [tuple(AnswerSpan(text, 0) for text in texts) for texts in golds]
    return SimpleNamespace(samples=SimpleNamespace(answers=answers))


def test_the_question_baseline_is_no_answer():
    recipe = make_recipe(QuestionAnsweringTask(kind="qa", unanswerable=True))
    parts = {"train": questions([]), "test": questions(["Lisbon"], [], ["1755", "in 1755"], ["a b"])}
    actual = constant_baseline("qa", recipe, parts)
    assert (actual["predicts"], actual["value"]) == ("no answer", "")
    assert list(actual["scores"]) == ["test"]
    scores = actual["scores"]["test"]
    # One of four questions has no answer; nothing shares a word with the answers of the others.
    assert scores["exact"] == scores["f1"] == 25.0
    assert (scores["has_answer_f1"], scores["no_answer_f1"]) == (0.0, 100.0)
    assert scores["best_f1"] is scores["loss"] is None


def test_without_unanswerable_questions_there_is_no_baseline():
    recipe = make_recipe(QuestionAnsweringTask(kind="qa", unanswerable=False))
    assert constant_baseline("qa", recipe, {"train": questions(["x"]), "test": questions(["y"])}) is None


def test_other_kinds_of_tasks_have_no_constant_answer():
    recipe = make_recipe(RegressionTask(kind="regression"))
    assert constant_baseline("mlm", recipe, splits(train=[1.0])) is None
