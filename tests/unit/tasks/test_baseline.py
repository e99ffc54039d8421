"""What the same answer for every sample scores; expected values are written out."""

from types import SimpleNamespace

import numpy as np
import pytest

from paratune.config.sections import ClassificationTask, RegressionTask
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


def test_other_kinds_of_tasks_have_no_constant_answer():
    recipe = recipe_of(RegressionTask(kind="regression"))
    assert constant_baseline("mlm", recipe, splits(train=[1.0])) is None
