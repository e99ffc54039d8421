"""A loss from outside the package: the text of docs/howto/extend.md, written as a module beside a configuration."""

import re
import sys
from pathlib import Path

import pytest
import torch
from raised import raises_code
from torch.nn import functional

from paratune.batch import Batch
from paratune.config.own_code import import_callable, source_hash
from paratune.models.objectives import OBJECTIVES, own_loss, weighted_sum
from paratune.strategies import strategy_class

pytestmark = pytest.mark.usefixtures("any_code")

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "extend.md"
CODE = """
VALUE = 3
def mean(outputs, labels): return outputs.mean()
def fails(outputs, labels): return labels.nothing
def detached(outputs, labels): return outputs.detach().sum(1)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    block = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)[0]
    (tmp_path / "my_losses.py").write_text(block + CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_losses"
    sys.modules.pop("my_losses", None)


def batch_of(labels: torch.Tensor) -> Batch:
    ids = torch.ones(len(labels), 3, dtype=torch.long)
    rows = len(labels)
    return Batch(ids, torch.ones(rows), torch.arange(rows), rows, 3 * rows, 3 * rows, float(rows), labels=labels)


def test_the_page_s_loss_is_the_sum_over_rows(module):
    outputs = torch.tensor([[2.0, 0.0], [0.5, 0.25]], dtype=torch.bfloat16)
    objective = own_loss(OBJECTIVES["classification"], f"{module}:margin", {"margin": 0.5})
    # Hinge of the other class over 2 classes: max(0, 0.5 - 0 + 2) / 2 = 1.25 and max(0, 0.5 - 0.5 + 0.25) / 2 = 0.125.
    assert weighted_sum(objective, outputs, batch_of(torch.tensor([1, 0]))).item() == 1.375


def test_a_loss_of_torch_is_called_with_one_value_per_row():
    outputs, targets = torch.tensor([[1.0], [3.0]], dtype=torch.float64), torch.tensor([1.5, 1.0])
    objective = own_loss(OBJECTIVES["regression"], "torch.nn.functional:l1_loss", {"reduction": "none"})
    assert objective.row_losses(outputs, batch_of(targets)).tolist() == [0.5, 2.0]
    many = own_loss(OBJECTIVES["multi_label"], f"{__name__}:mean_of_classes", {})
    several = batch_of(torch.tensor([[1, 0], [0, 0]]))
    expected = functional.binary_cross_entropy_with_logits(torch.zeros(2, 2), several.labels.float())
    assert many.row_losses(torch.zeros(2, 2), several).tolist() == [expected.item()] * 2


def mean_of_classes(outputs, labels):
    return functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none").mean(1)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("absent_module:loss", "own_code.not_found"),
        ("my_losses:margn", "own_code.not_found"),
        ("my_losses:VALUE", "own_code.not_found"),
        ("my_losses:fails", "own_code.raised"),
        ("my_losses:mean", "own_code.wrong_result"),
    ],
)
def test_errors_have_codes(module, name, code):
    objective = own_loss(OBJECTIVES["classification"], name, {})
    with raises_code(code):
        objective.row_losses(torch.zeros(2, 2), batch_of(torch.tensor([1, 0])))


def test_the_hash_is_that_of_the_defining_file(module, tmp_path):
    before = source_hash("my_losses:margin", "task.loss.function")
    (tmp_path / "my_losses.py").write_text("changed")
    assert before != source_hash("my_losses:margin", "task.loss.function")
    assert source_hash("builtins:len", "task.loss.function") is None
    assert import_callable("my_losses:margin", "x") is strategy_class("my_losses:margin")


def test_a_loss_without_a_gradient_is_refused_where_it_is_trained(module):
    batch = batch_of(torch.tensor([0, 1]))
    objective = own_loss(OBJECTIVES["classification"], f"{module}:detached", {})
    outputs = torch.zeros(2, 2, requires_grad=True)
    with raises_code("own_code.wrong_result", "task.loss.function", "my_losses:detached", "gradient"):
        objective.row_losses(outputs, batch)
    with torch.no_grad():
        assert objective.row_losses(outputs, batch).tolist() == [0, 0]
    assert objective.row_losses(outputs.detach(), batch).tolist() == [0, 0]
