"""What own code may do wrong, by the part of a run that calls it: errors, sys.exit, os.chdir, Ctrl-C, no memory."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from raised import check_logged, raises_code
from tiny import tiny_config, tiny_tokenizer
from torch import nn
from transformers import BertForSequenceClassification

from paratune.batch import Batch
from paratune.config.own_code import import_callable
from paratune.config.section import OwnCode, OwnOptimizer
from paratune.config.sections import ModelOptions, OwnMetric, Train
from paratune.config.task_sections import OwnTask
from paratune.data.read import read_own_rows
from paratune.engine.optim import OptimizerFactory
from paratune.engine.schedules import schedule_factor
from paratune.models.load import Head, load_model
from paratune.models.objectives import OBJECTIVES, own_loss
from paratune.models.task_model import TaskModel, trial_batch
from paratune.precision import POLICIES
from paratune.tasks import make_recipe
from paratune.tasks.own_metrics import own_score
from paratune.training.callbacks import CallbackSession, make_callbacks

pytestmark = pytest.mark.usefixtures("any_code")

CODE = """
import os
import sys
import torch
from torch import nn
from torch.nn import functional
from paratune.tasks.own import OwnRecipe
def act(what):
    if what == "raises": raise ValueError("no")
    if what == "exits": sys.exit(3)
    if what == "moves": os.chdir("/")
    if what == "stops": raise KeyboardInterrupt
    if what == "fills": raise MemoryError
def loss(outputs, labels, what):
    act(what)
    return functional.cross_entropy(outputs, labels, reduction="none")
def score(predictions, labels, what):
    act(what)
    return 0.5
def schedule(step, num_steps, what):
    act(what)
    return 1.0
def rows(what):
    act(what)
    return [{"text": "a"}]
def later(what):
    yield {"text": "a"}
    act(what)
class Optimizer(torch.optim.SGD):
    def __init__(self, groups, what):
        super().__init__(groups)
        self.what = what
    def step(self, closure=None): act(self.what)
def make_optimizer(groups, what):
    act(what)
    return torch.optim.SGD(groups)
class Pooled(nn.Linear):
    def __init__(self, config, what):
        super().__init__(config.hidden_size, config.num_labels)
        self.what = what
    def forward(self, hidden, attention_mask):
        if self.training: act(self.what)
        return super().forward(hidden[:, 0])
class Recipe(OwnRecipe):
    def __init__(self, task, what):
        super().__init__(task)
        self.what = what
    def row_losses(self, outputs, batch):
        act(self.what)
        return outputs.sum(1)
class Callback:
    def __init__(self, what): self.what = what
    def on_step(self, state): act(self.what)
"""


class Classifier(BertForSequenceClassification):
    """A class of `model.class`."""

    what = ""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        importlib.import_module("own_ends").act(self.what)
        return super().forward(*arguments, **options)


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_ends.py").write_text(CODE)
    (tmp_path / "own_leaves.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    yield
    for name in ("own_ends", "own_leaves"):
        sys.modules.pop(name, None)


def batch_of(labels: torch.Tensor) -> Batch:
    return trial_batch(torch.full((2, 3), 7), torch.ones(2, 3, dtype=torch.long), labels=labels)


def call_loss(what: str) -> None:
    objective = own_loss(OBJECTIVES["classification"], "own_ends:loss", {"what": what})
    objective.row_losses(torch.zeros(2, 3, requires_grad=True), batch_of(torch.tensor([0, 1])))


def call_metric(what: str) -> None:
    metric = OwnMetric(name="m", function="own_ends:score", options={"what": what}, higher_is_better=True)
    own_score(metric, np.zeros(2), np.zeros(2))


def call_schedule(what: str) -> None:
    train = Train(epochs=1.0, schedule=OwnCode(function="own_ends:schedule", options={"what": what}))
    schedule_factor(train, 0, num_steps=2)


def call_optimizer(function: str) -> Callable[[str], None]:
    def call(what: str) -> None:
        train = Train(epochs=1.0, optimizer=OwnOptimizer(function=f"own_ends:{function}", options={"what": what}))
        optimizer = OptimizerFactory(train, 2)(nn.Linear(1, 1).named_parameters())
        optimizer.step()

    return call


def call_head(what: str) -> None:
    options = ModelOptions(
        name="start", from_scratch=True, head=OwnCode(function="own_ends:Pooled", options={"what": what})
    )
    head = Head("AutoModelForSequenceClassification", 3)
    model = load_model(
        options, "own", head, tiny_tokenizer(), POLICIES["fp32"], 0, objective=OBJECTIVES["classification"]
    )
    model.train()(batch_of(torch.tensor([0, 1])))


def call_class(what: str) -> None:
    hf = Classifier(tiny_config(3))
    hf.what = what
    model = TaskModel(hf, "classification")
    model.own_class = "own_ends:Classifier"
    model(batch_of(torch.tensor([0, 1])))


def call_recipe(what: str) -> None:
    task = OwnTask(kind="own", recipe="own_ends:Recipe", options={"what": what}, scores=["s"], num_outputs=2)
    make_recipe(task).make_objective().row_losses(torch.zeros(2, 2, requires_grad=True), batch_of(torch.zeros(2)))


CALLS: dict[str, Callable[[str], Any]] = {
    "loss": call_loss,
    "metric": call_metric,
    "schedule": call_schedule,
    "optimizer": call_optimizer("make_optimizer"),
    "optimizer.step": call_optimizer("Optimizer"),
    "head": call_head,
    "class": call_class,
    "recipe": call_recipe,
    "rows": lambda what: read_own_rows(f"code:own_ends:rows?what={what}"),
    "later rows": lambda what: read_own_rows(f"code:own_ends:later?what={what}"),
}


@pytest.fixture(autouse=True)
def _start(tmp_path: Path):
    tiny_config(3).save_pretrained(tmp_path / "start")


@pytest.mark.parametrize("callee", CALLS)
def test_ends_of_own_code(callee: str, tmp_path: Path):
    code = "data.own_rows" if callee == "later rows" else "own_code.raised"
    lines = {text: number for number, text in enumerate(CODE.splitlines(), start=1)}
    for what, kind in (("raises", "ValueError"), ("exits", "SystemExit")):
        line = next(number for text, number in lines.items() if f'what == "{what}"' in text)
        with raises_code(code, kind, f"(own_ends.py, line {line})"):
            CALLS[callee](what)
    CALLS[callee]("moves")
    assert Path.cwd() == tmp_path
    with pytest.raises(KeyboardInterrupt):
        CALLS[callee]("stops")
    # The run answers it, such as by a smaller micro-batch. Rows are read before there is a run.
    if callee != "later rows":
        with pytest.raises(MemoryError):
            CALLS[callee]("fills")


@pytest.mark.parametrize(("what", "kind"), [("raises", "ValueError: no"), ("exits", "SystemExit: 3")])
def test_a_callback_is_not_called_again(what: str, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    made = make_callbacks([OwnCode(function="own_ends:Callback", options={"what": what})])
    session = CallbackSession(made, folder=tmp_path, num_steps=2, step=0)
    for step in (1, 2):
        session.log_event("step", {"step": step})
    check_logged(caplog, "callback.raised", kind, "own_ends.py, line ")
    assert len(caplog.records) == 1


def test_a_callback_that_changes_the_folder_or_is_interrupted(tmp_path: Path):
    for what in ("moves", "stops"):
        made = make_callbacks([OwnCode(function="own_ends:Callback", options={"what": what})])
        session = CallbackSession(made, folder=tmp_path, num_steps=2, step=0)
        if what == "stops":
            with pytest.raises(KeyboardInterrupt):
                session.log_event("step", {"step": 1})
        else:
            session.log_event("step", {"step": 1})
        assert Path.cwd() == tmp_path


def test_a_module_that_ends_the_process_cannot_be_imported():
    with raises_code("own_code.not_found", "own_leaves:f", "SystemExit"):
        import_callable("own_leaves:f", "task.loss.function")


def test_a_table_of_rows_is_read():
    assert isinstance(read_own_rows("code:own_ends:rows?what=nothing"), pa.Table)
