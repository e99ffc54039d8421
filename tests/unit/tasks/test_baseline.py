"""What the same answer for every sample scores; expected values are written out."""

from types import SimpleNamespace

import numpy as np
import pytest

from paratune.config.task_sections import ClassificationTask, QuestionAnsweringTask, RegressionTask
from paratune.data.columns import AnswerSpan
from paratune.tasks import recipe_of
from paratune.tasks.baseline import constant_baseline


def splits(**labels):
    return {name: SimpleNamespace(labels=np.asarray(values)) for name, values in labels.items()}


def test_the_mean_of_the_training_targets_is_said_of_every_sample():
    recipe = recipe_of(RegressionTask(kind="regression"))
    found = constant_baseline("regression", recipe, splits(train=[1.0, 2.0, 6.0], test=[2.0, 4.0]))
    # The mean is 3: errors 1 and -1 on test.
    assert (found["predicts"], found["value"]) == ("training mean", 3.0)
    assert list(found["scores"]) == ["test"]
    assert found["scores"]["test"]["rmse"] == found["scores"]["test"]["mae"] == 1.0
    assert found["scores"]["test"]["loss"] == 1.0
    assert found["scores"]["test"]["pearson"] is None


def test_the_commonest_class_of_the_training_set_is_said_of_every_sample():
    recipe = recipe_of(ClassificationTask(kind="classification", labels=["a", "b", "c"]))
    found = constant_baseline(
        "classification", recipe, splits(train=[1, 1, 1, 0], validation=[0, 1, 1, 0, 0], test=[2, 1])
    )
    assert (found["predicts"], found["value"]) == ("majority class", "b")
    assert found["scores"]["validation"]["accuracy"] == pytest.approx(2 / 5)
    # Shares 1/4 and 3/4: two of five are b.
    assert found["scores"]["validation"]["loss"] == pytest.approx(-(2 * np.log(3 / 4) + 3 * np.log(1 / 4)) / 5)
    # Training had no c: its loss is infinite, and so not known.
    assert found["scores"]["test"]["loss"] is None
    assert found["scores"]["test"]["accuracy"] == 0.5


def questions(*golds):
    answers = [tuple(AnswerSpan(text, 0) for text in texts) for texts in golds]
    return SimpleNamespace(samples=SimpleNamespace(answers=answers))


def test_answering_no_question_is_right_where_there_is_no_answer():
    recipe = recipe_of(QuestionAnsweringTask(kind="qa", unanswerable=True))
    parts = {"train": questions([]), "test": questions(["Lisbon"], [], ["1755", "in 1755"], ["a b"])}
    found = constant_baseline("qa", recipe, parts)
    assert (found["predicts"], found["value"]) == ("no answer", "")
    assert list(found["scores"]) == ["test"]
    scores = found["scores"]["test"]
    # One of four questions has no answer; nothing shares a word with the answers of the others.
    assert scores["exact"] == scores["f1"] == 25.0
    assert (scores["has_answer_f1"], scores["no_answer_f1"]) == (0.0, 100.0)
    assert scores["best_f1"] is scores["loss"] is None


def test_where_every_question_has_an_answer_none_is_no_baseline():
    recipe = recipe_of(QuestionAnsweringTask(kind="qa", unanswerable=False))
    assert constant_baseline("qa", recipe, {"train": questions(["x"]), "test": questions(["y"])}) is None


def test_other_kinds_of_tasks_have_no_constant_answer():
    recipe = recipe_of(RegressionTask(kind="regression"))
    assert constant_baseline("mlm", recipe, splits(train=[1.0])) is None
