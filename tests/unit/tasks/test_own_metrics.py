"""Metrics from outside the package: the text of docs/howto/extend.md, written as a module."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from raised import raises_code

from paratune.config.load import load_config
from paratune.config.metric_names import direction, metric_label
from paratune.config.sections import OwnMetric
from paratune.tasks import make_recipe
from paratune.tasks.own_metrics import own_score

pytestmark = pytest.mark.usefixtures("any_code")

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "extend.md"
CODE = """
def several(predictions, labels): return {"low": 0.25, "high": np.float32(0.75)}
def undefined(predictions, labels): return float("nan")
def fails(predictions, labels): return labels.nothing
def shaped(predictions, labels): return np.zeros(3)
def text(predictions, labels): return "0.5"
def sorts(predictions, labels):
    predictions.sort()
    labels -= 1
    return (predictions == labels).mean()
class Largest:
    def __init__(self, scale): self.scale = scale
    def update(self, predictions, labels): self.value = (predictions - labels).abs().max()
    def compute(self): return self.scale * self.value
"""


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    block = next(text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "bins" in text)
    (tmp_path / "my_metrics.py").write_text(block + CODE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("my_metrics", None)


def metric(function: str, **values) -> OwnMetric:
    return OwnMetric(name="m", higher_is_better=True, function=f"my_metrics:{function}", **values)


def test_the_page_s_metric_gets_probabilities():
    recipe = make_recipe(load_task("classification", labels=["a", "b"]))
    logits = np.log(np.array([[0.8, 0.2], [0.4, 0.6]]))
    shares = recipe.metric_input(logits, "probabilities")
    assert recipe.metric_input(logits, "predictions").tolist() == [0, 1]
    assert recipe.metric_input(np.array([[np.nan, 0.0]]), "outputs") is None
    # Bins 8 and 6 of 10, one row each: |1 - 0.8| and |0 - 0.6|, over 2 rows.
    assert own_score(metric("calibration"), shares, np.array([0, 0])) == pytest.approx((0.2 + 0.6) / 2)


def test_a_metric_that_changes_its_arguments_changes_no_outputs_and_labels():
    outputs, labels = np.array([[2.0, 1.0], [0.0, 3.0]]), np.array([[1, 1], [1, 4]])
    # Sorted rows (1, 2) and (0, 3), labels (0, 0) and (0, 3): two of four are equal.
    assert own_score(metric("sorts", input="outputs"), outputs, labels) == 0.5
    assert (outputs.tolist(), labels.tolist()) == ([[2.0, 1.0], [0.0, 3.0]], [[1, 1], [1, 4]])


def load_task(kind: str, **values):
    from pydantic import TypeAdapter

    from paratune.config.task_sections import Task

    return TypeAdapter(Task).validate_python({"kind": kind, **values})


def test_inputs_of_other_tasks():
    sets = make_recipe(load_task("multi_label", labels=["a", "b"], threshold=0.5))
    assert sets.metric_input(np.array([[1.0, -1.0]]), "predictions").tolist() == [[1, 0]]
    ranks = make_recipe(load_task("ordinal", labels=["a", "b", "c"]))
    outputs = np.array([[0.0, -50.0]])
    assert ranks.metric_input(outputs + 1e-9, "predictions").tolist() == [1]
    assert ranks.metric_input(outputs, "probabilities") == pytest.approx(np.array([[0.5, 0.5, 0]]))
    number = make_recipe(load_task("regression", round_to=0.5))
    assert number.metric_input(np.array([[1.3]]), "predictions").tolist() == [1.5]


def test_results():
    values, labels = np.array([1.0, 5.0]), np.array([1.5, 2.0])
    assert own_score(metric("several", entry="high"), values, labels) == 0.75
    assert own_score(metric("undefined"), values, labels) is None
    assert own_score(metric("Largest", options={"scale": 2.0}), values, labels) == 6.0
    for function, code in [
        *(("several", "own_code.wrong_result"), ("shaped", "own_code.wrong_result"), ("text", "own_code.wrong_result")),
        *(("fails", "own_code.raised"), ("absent", "own_code.not_found")),
    ]:
        with raises_code(code):
            own_score(metric(function), values, labels)
    with raises_code("own_code.wrong_result", "low, high"):
        own_score(metric("several", entry="middle"), values, labels)


def test_a_class_of_torchmetrics_and_a_module_of_evaluate(tmp_path):
    pytest.importorskip("torchmetrics")
    pytest.importorskip("evaluate")
    name = "torchmetrics.regression:MeanAbsolutePercentageError"
    percentage = OwnMetric(name="m_error", higher_is_better=False, function=name)
    assert own_score(percentage, np.array([1.0, 3.0]), np.array([2.0, 2.0])) == 0.5
    (tmp_path / "right").mkdir()
    (tmp_path / "right" / "right.py").write_text(EVALUATE)
    module = OwnMetric(name="m", higher_is_better=True, evaluate=str(tmp_path / "right"))
    assert own_score(module, np.array([1, 0]), np.array([1, 1])) == 0.5


EVALUATE = """
import datasets
import evaluate
class Right(evaluate.Metric):
    def _info(self):
        kinds = {"predictions": datasets.Value("int32"), "references": datasets.Value("int32")}
        return evaluate.MetricInfo(description="", citation="", features=datasets.Features(kinds))
    def _compute(self, predictions, references):
        return {"right": sum(p == r for p, r in zip(predictions, references)) / len(predictions)}
"""


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ("{name: gap, higher_is_better: false, function: 'm:f'}", "config.conflict"),
        ("{name: gap_loss, higher_is_better: true, function: 'm:f'}", "config.conflict"),
        ("{name: gap, higher_is_better: true}", "config.required"),
        ("{name: gap, higher_is_better: true, function: 'm:f', evaluate: a}", "config.conflict"),
        ("{name: Gap, higher_is_better: true, function: 'm:f'}", "config.invalid_value"),
    ],
)
def test_configurations_are_checked(example, changes, code):
    with raises_code(code):
        load_config(example, [f"evaluate.metrics=[{changes}]"])


def test_a_name_selects_and_has_a_direction(example):
    metrics = "evaluate.metrics=[{name: gap, higher_is_better: true, function: 'm:f'}]"
    assert load_config(example, [metrics, "evaluate.best=own_gap"]).config.evaluate.best == "own_gap"
    with raises_code("metric.unknown", "own_gap"):
        load_config(example, [metrics, "evaluate.best=own_gab"])
    with raises_code("task.unsupported"):
        load_config(example, [metrics, "task=mlm", "data.columns.label=", "evaluate.best="])
    assert (direction("own_gap"), direction("own_gap_error")) == ("max", "min")
    assert metric_label("own_gap") == "gap (own)"


@pytest.fixture
def example(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "task: {kind: classification, labels: [a, b]}\n"
        "data: {train: a.csv, columns: {text: t, label: l}, split: {validation: 0.1}}\n"
        "model: {name: m}\ntrain: {epochs: 1}\nbatch: {global: 8}\n"
    )
    return path
