"""The comparison of a model with a constant answer."""

from typing import Any

import pytest
from raised import raises_code

from paratune.records.constant import compare_with_constant, not_better

BASELINE = {"predicts": "majority class", "scores": {"validation": {"accuracy": 0.5, "rmse": 1.0, "f1_macro": None}}}


@pytest.mark.parametrize(
    ("metric", "value", "is_better"),
    [("accuracy", 0.6, True), ("accuracy", 0.5, False), ("accuracy", 0.4, False), ("rmse", 0.9, True),
     ("rmse", 1.0, False), ("rmse", 1.1, False)],
)  # fmt: skip
def test_a_model_is_compared_by_its_headline_metric(metric: str, value: float, is_better: bool):
    found = compare_with_constant({"validation": {metric: value}}, BASELINE, [metric])
    assert found is not None
    assert (found.metric, found.split, found.model) == (metric, "validation", value)
    assert not_better(found.model_dump(), "paratune.json") == (None if is_better else found)


def test_the_first_metric_that_both_have_decides_and_the_test_set_comes_first():
    scores = {"validation": {"accuracy": 0.9, "f1_macro": 0.1}, "test": {"accuracy": 0.2}}
    found = compare_with_constant(scores, BASELINE, ["f1_macro", "accuracy"])
    assert found is not None
    assert (found.split, found.metric) == ("validation", "accuracy")
    both = {**BASELINE, "scores": {**BASELINE["scores"], "test": {"accuracy": 0.3}}}
    assert compare_with_constant(scores, both, ["f1_macro", "accuracy"]).split == "test"


@pytest.mark.parametrize("scores", [{}, {"validation": None}, {"validation": {"accuracy": None}}, {"test": {}}])
def test_what_is_unknown_is_not_compared(scores: dict[str, Any]):
    assert compare_with_constant(scores, BASELINE, ["accuracy"]) is None
    assert compare_with_constant({"validation": {"accuracy": 0.4}}, None, ["accuracy"]) is None
    assert compare_with_constant({"validation": {"accuracy": 0.4}}, BASELINE, []) is None


def test_a_record_without_the_comparison_says_nothing_and_a_damaged_one_is_refused():
    assert not_better(None, "x") is None
    for damaged in (7, "yes", {"predicts": "a"}, {"model": "much"}):
        with raises_code("run.damaged", "x"):
            not_better(damaged, "x")
