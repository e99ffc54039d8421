"""Callbacks from outside the package: the text of docs/howto/extend.md, written as a module."""

import dataclasses
import importlib
import json
import re
import sys
from pathlib import Path

import pytest
from raised import raises_code

from paratune.config.section import OwnCode
from paratune.training.callbacks import CallbackSession, make_callbacks

pytestmark = pytest.mark.usefixtures("any_code")

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "extend.md"
CODE = """
class Seen:
    def __init__(self): self.states = []
    def on_step(self, state): self.states.append(state)
class Bad(Seen):
    def on_evaluate(self, state): raise KeyError("x")
class Without: pass
"""


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_callbacks.py").write_text("\n".join(text for text in blocks if "# my_callbacks" in text) + CODE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("my_callbacks", None)


EVALUATION = {"step": 2, "epoch": 1.0, "split": "validation", "scores": {"f1": 0.5}, "is_best": True}


def test_the_page_s_callback_gets_evaluations(tmp_path):
    made = make_callbacks([OwnCode(function="my_callbacks:ScoreFile", options={"name": "scores.jsonl"})])
    session = CallbackSession(made, folder=tmp_path, num_steps=2, step=0)
    session.log_event("evaluation", EVALUATION)
    session.end({"scores": {"validation": {"f1": 0.75}}})
    lines = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert lines == [{"step": 2, "f1": 0.5}, {"step": 2, "f1": 0.75}]


def test_a_callback_that_raises_is_left_out_and_the_others_are_called(tmp_path, caplog):
    made = make_callbacks([OwnCode(function="my_callbacks:Bad"), OwnCode(function="my_callbacks:Seen")])
    session = CallbackSession(made, folder=tmp_path, num_steps=4, step=0)
    session.log_event("evaluation", EVALUATION)
    session.log_event("step", {"step": 3, "epoch": 1.5, "loss": 0.25, "learning_rate": 1e-3, "grad_norm": None})
    assert [(record.code, record.facts["hook"]) for record in caplog.records] == [("callback.raised", "on_evaluate")]
    bad, seen = (callback for _, callback in made)
    assert (bad.states, seen.states[0].loss, seen.states[0].step, seen.states[0].scores) == ([], 0.25, 3, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        seen.states[0].loss = 0.0


def test_an_object_without_hooks_is_an_error():
    with raises_code("own_code.wrong_result", "on_step"):
        make_callbacks([OwnCode(function="my_callbacks:Without")])
    with raises_code("own_code.raised"):
        make_callbacks([OwnCode(function="my_callbacks:Seen", options={"a": 1})])
