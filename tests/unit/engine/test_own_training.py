"""Optimizers and schedules from outside the package: the text of docs/howto/extend.md, written as modules."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
from raised import raises_code
from torch import nn

from paratune.config.load import load_config
from paratune.config.section import OwnCode, OwnOptimizer
from paratune.config.sections import Train
from paratune.engine.optim import OptimizerFactory
from paratune.engine.schedules import schedule_factor
from paratune.strategies.whole import WholeState

pytestmark = pytest.mark.usefixtures("any_code")

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "extend.md"
CODE = """
import torch
class Growing(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups: group["num_updates"] = group.get("num_updates", 0) + 1
class Counting(torch.optim.SGD):
    def __init__(self, groups): super().__init__([{**group, "num_updates": [0]} for group in groups])
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups: group["num_updates"][0] += 1
class Listing(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]: self.state[parameter]["history"] = [1.0]
class Empty(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]: self.state[parameter]["buffer"] = None
class Global(torch.optim.SGD):
    def step(self, closure=None): self.state["all"]["step"] = 1
class Counted(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]: self.state[parameter]["count"] = 1
def without_groups(groups): return torch.optim.SGD([one for group in groups for one in group["params"]])
def first_only(groups): return torch.optim.SGD(groups[:1])
def nothing(groups): return None
def words(step, num_steps): return "half"
def negative(step, num_steps): return -1.0
def fails(step, num_steps): raise ZeroDivisionError
"""


@pytest.fixture(autouse=True)
def _modules(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_training.py").write_text("\n".join(text for text in blocks if "# my_training" in text) + CODE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("my_training", None)


def trained(optimizer: OwnOptimizer, steps: int = 2, rates: dict | None = None):
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(1.0)
    train = Train(epochs=1.0, optimizer=optimizer, learning_rate=0.5, schedule="constant", weight_decay=0.0)
    factory = OptimizerFactory(train, 10, rates)
    made = factory(model.named_parameters())
    for step in range(steps):
        factory.set_learning_rate(step)
        model.weight.grad, model.bias.grad = torch.ones(1, 1), torch.full((1,), -2.0)
        made.step()
    return model, made


def test_the_page_s_optimizer_has_the_learning_rate_of_each_group():
    # Momentum has the sign of the gradient: steps of 0.5, and of 0.25 for the bias: 1 - 2 * 0.5 and 1 + 2 * 0.25.
    own = OwnOptimizer(function="my_training:Lion", options={"beta": 0.9})
    model, optimizer = trained(own, rates={"bias": 0.5})
    assert (model.weight.item(), model.bias.item()) == (0.0, 1.5)
    saved = dict(WholeState(model, optimizer, rank=0).tensors("optimizer/"))
    assert saved["optimizer/bias/momentum"].tolist() == pytest.approx([-2 * (1 - 0.9**2)])
    other, fresh = trained(own, steps=0)
    WholeState(other, fresh, rank=0).load(saved.__getitem__, saved)
    assert fresh.state[other.bias]["momentum"].tolist() == optimizer.state[model.bias]["momentum"].tolist()


def test_states_of_another_shape_are_kept():
    model, optimizer = trained(OwnOptimizer(function="torch.optim:Adafactor"))
    saved = dict(WholeState(model, optimizer, rank=0).tensors("optimizer/"))
    other, fresh = trained(OwnOptimizer(function="torch.optim:Adafactor"), steps=0)
    WholeState(other, fresh, rank=0).load(saved.__getitem__, saved)
    assert fresh.state[other.weight]["row_var"].equal(optimizer.state[model.weight]["row_var"])


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("my_training:nothing", "own_code.wrong_result"),
        ("my_training:first_only", "own_code.wrong_result"),
        ("my_training:Growing", "own_code.wrong_result"),
        ("my_training:Counting", "own_code.wrong_result"),
        ("torch.optim:LBFGS", "own_code.raised"),
    ],
)
def test_optimizers_are_checked(function, code):
    with raises_code(code, function):
        trained(OwnOptimizer(function=function))


def test_groups_must_keep_the_factors_of_layer_decay():
    own = OwnOptimizer(function="my_training:without_groups")
    trained(own)
    with raises_code("own_code.wrong_result", "rate_factor"):
        trained(own, rates={"bias": 0.5})


def test_the_page_s_schedule_begins_after_the_warm_up():
    own = OwnCode(function="my_training:steps_down", options={"every": 4, "by": 0.5})
    train = Train(epochs=1.0, schedule=own, warmup_steps=2)
    factors = [schedule_factor(train, step, num_steps=12) for step in (0, 1, 2, 5, 6, 10)]
    assert factors == [0.0, 0.5, 1.0, 1.0, 0.5, 0.25]


@pytest.mark.parametrize(
    ("function", "code"),
    [("words", "own_code.wrong_result"), ("negative", "own_code.wrong_result"), ("fails", "own_code.raised")],
)
def test_schedules_are_checked_before_training(function, code):
    train = Train(epochs=1.0, schedule=OwnCode(function=f"my_training:{function}"))
    with raises_code(code, function):
        OptimizerFactory(train, 10)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ("strategy=zero1", "strategy.excluded"),
        ("strategy=zero3", "strategy.excluded"),
        ("strategy=pipeline", "strategy.excluded"),
        ("strategy=deepspeed", "strategy.excluded"),
        ("train.eps=1e-6", "config.no_effect"),
        ("train.schedule_power=2.0", "config.no_effect"),
        ("train.optimizer=adam", "config.invalid_value"),
        ("train.optimizer.elementwize=true", "config.unknown_key"),
    ],
)
def test_configurations_are_checked(example, changes, code):
    with raises_code(code):
        load_config(example, [changes])
    ready = ["strategy=zero3", "train.optimizer.elementwise=true"]
    assert load_config(example, ready).config.train.optimizer.state_bytes == 8


@pytest.fixture
def example(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "task: {kind: classification, labels: [a, b]}\n"
        "data: {train: a.csv, columns: {text: t, label: l}, split: {validation: 0.1}}\n"
        "model: {name: m}\nbatch: {global: 8}\n"
        "train: {epochs: 1, optimizer: {function: 'a:B'}, schedule: {function: 'a:c'}}\n"
    )
    return path


@pytest.mark.parametrize(
    ("name", "said"), [("Listing", "'history' is a list"), ("Empty", "NoneType"), ("Global", "'all'")]
)
def test_states_that_a_checkpoint_cannot_contain_are_refused_in_the_first_step(name, said):
    with raises_code("own_code.wrong_result", "train.optimizer.function", f"my_training:{name}", said):
        trained(OwnOptimizer(function=f"my_training:{name}"), steps=1)


def test_numbers_are_states():
    _, optimizer = trained(OwnOptimizer(function="my_training:Counted"), steps=2)
    assert [state["count"] for state in optimizer.state.values()] == [1, 1]
