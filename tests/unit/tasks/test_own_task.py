"""Tasks from outside the package: the text of docs/howto/extend.md, written as a module beside a configuration."""

import importlib
import math
import pickle
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from raised import raises_code
from tiny import tiny_model, tiny_tokenizer

from paratune.batch.packing import pack
from paratune.config.own_code import own_code_record
from paratune.config.sections import Columns, Config, ModelOptions
from paratune.config.task_sections import OwnTask
from paratune.data.encode import TokenizeOptions
from paratune.models.packed import enable_packed_batches
from paratune.precision import POLICIES
from paratune.tasks import make_recipe

pytestmark = pytest.mark.usefixtures("any_code")

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "extend.md"
CODE = """
class Wrong(Ranking):
    def row_losses(self, outputs, batch): return outputs
    def compute_scores(self, split, outputs): return {"other": 1.0}
class Fails(Ranking):
    def row_losses(self, outputs, batch): raise ZeroDivisionError
    def compute_scores(self, split, outputs): raise ZeroDivisionError
class FailsBefore(Ranking):
    def make_split(self, *arguments, **options): raise ZeroDivisionError
class FailsInBatches(Ranking):
    def change_batch(self, batch, *, epoch, seed): return 1 / (epoch or 0)
class NoBatch(Ranking):
    def change_batch(self, batch, *, epoch, seed): return None
class OneName(Ranking):
    def prediction_names(self): return ["prediction"]
class Plain:
    def __init__(self, task): pass
"""
TABLE = pa.table({"a": ["good film", "great", "nice book again"], "b": ["bad", "it was awful", "poor food"]})


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    text = "\n".join(text for text in blocks if "# my_tasks" in text)
    (tmp_path / "my_tasks.py").write_text(text + CODE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("my_tasks", None)


def made(name="Ranking", **options):
    task = OwnTask(kind="own", recipe=f"my_tasks:{name}", options=options, scores=["pair_accuracy"])
    recipe = make_recipe(task)
    options = TokenizeOptions(tiny_tokenizer(), 16, need_token_type_ids=True, is_cached=False)
    columns = Columns(text="a", text_pair="b")
    return recipe, recipe.load_split("t", TABLE, columns, options, missing="refuse", require_labels=True)


def test_the_page_s_task_compares_the_two_texts_of_a_sample(tmp_path):
    tiny_model(tmp_path / "base", dropout=0.0, num_labels=1)
    recipe, split = made(margin=0.5)
    model = recipe.load_model(ModelOptions(name=str(tmp_path / "base")), tiny_tokenizer(), POLICIES["fp64"], 0).eval()
    batch = recipe.collator(split, tiny_tokenizer())(np.arange(3), 3.0, num_rows=8)  # with two rows of filler
    with torch.no_grad():
        alone = [
            [
                float(model.hf(**tiny_tokenizer()(text, return_tensors="pt")).logits)
                for text in TABLE.column(name).to_pylist()
            ]
            for name in "ab"
        ]
    enable_packed_batches(model)
    assert model.entry is not None
    with torch.no_grad():
        for other in (batch, pack(batch)):
            outputs = model.row_outputs(model(other), other)
            torch.testing.assert_close(outputs[:3], torch.tensor(alone, dtype=torch.float64).T, rtol=1e-9, atol=1e-9)
            expected = sum(math.log1p(math.exp(0.5 - a + b)) for a, b in zip(*alone, strict=True))
            assert model.loss_sum(model(other), other).item() == pytest.approx(expected, rel=1e-9)
    scores = recipe.scores(split, np.array([[1.0, 0.0], [2.0, 3.0], [0.0, -1.0]]))
    assert scores == {"own_pair_accuracy": 2 / 3}
    columns = recipe.prediction_columns(split, np.array([[1.0, 0.0]] * 3), None)
    assert {name: values.tolist() for name, values in columns.items()} == {
        "score_better": [1.0] * 3,
        "score_worse": [0.0] * 3,
    }


def test_a_batch_is_changed_by_seed_epoch_and_sample_only():
    recipe, split = made("WithHiddenWords")
    collate = recipe.collator(split, tiny_tokenizer(), seed=3)
    plain = collate(np.arange(3), 3.0).input_ids
    alone = torch.cat([collate(np.array([row]), 3.0, epoch=1, length=plain.shape[1]).input_ids for row in range(3)])
    assert torch.equal(collate(np.arange(3), 3.0, epoch=1).input_ids, alone)
    assert not torch.equal(alone, plain)


def test_wrong_results_of_a_recipe_are_refused(tmp_path):
    with raises_code("own_code.wrong_result"):
        made("Plain")
    with raises_code("own_code.raised", value="my_tasks:Ranking"):
        made(unknown=1)
    outputs = torch.zeros(6, 1)
    tiny_model(tmp_path / "base", num_labels=1)
    for name, code in (("Wrong", "own_code.wrong_result"), ("Fails", "own_code.raised")):
        recipe, split = made(name)
        with raises_code(code):
            recipe.scores(split, np.zeros((3, 2)))
        model = recipe.load_model(ModelOptions(name=str(tmp_path / "base")), tiny_tokenizer(), POLICIES["fp32"], 0)
        batch = recipe.collator(split, tiny_tokenizer())(np.arange(3), 3.0)
        with raises_code(code):
            model.loss_sum(outputs, batch)
    without_offsets = replace(batch, sample_offsets=None)
    with raises_code("own_code.raised"):
        model.row_outputs(outputs, without_offsets)


def test_errors_of_all_methods_name_the_line_of_the_recipe():
    with raises_code("own_code.raised", value="my_tasks:FailsBefore") as raised:
        made("FailsBefore")
    number = CODE[: CODE.index("make_split")].count("\n") + _lines_before_code()
    assert f"(my_tasks.py, line {number})" in str(raised.value)
    for name, code in (("FailsInBatches", "own_code.raised"), ("NoBatch", "own_code.wrong_result")):
        recipe, split = made(name)
        collate = pickle.loads(pickle.dumps(recipe.collator(split, tiny_tokenizer())))  # as for a loader worker
        with raises_code(code):
            collate(np.arange(3), 3.0)


def test_names_of_predictions_are_counted_before_the_training(tmp_path):
    tiny_model(tmp_path / "base", num_labels=1)
    recipe, split = made("OneName")
    model = recipe.load_model(ModelOptions(name=str(tmp_path / "base")), tiny_tokenizer(), POLICIES["fp32"], 0)
    batch = recipe.collator(split, tiny_tokenizer())(np.arange(3), 3.0)
    with raises_code("own_code.wrong_result"):
        model.loss_sum(torch.zeros(6, 1), batch)
    with raises_code("own_code.wrong_result"):
        recipe.prediction_columns(split, np.zeros((3, 2)), None)


def _lines_before_code():
    return 1 + Path(sys.modules["my_tasks"].__file__).read_text().replace(CODE, "").count("\n")


def test_the_record_has_recipe_options_and_hash():
    values = {"kind": "own", "recipe": "my_tasks:Ranking", "options": {"margin": 1}, "scores": ["pair_accuracy"]}
    config = Config.model_validate(
        {
            "task": values,
            "data": {"train": "x"},
            "model": {"name": "m"},
            "batch": {"global": 2},
            "train": {"epochs": 1.0},
        }
    )
    record = own_code_record(config)["task.recipe"]
    assert (record["function"], record["options"], len(record["sha256"])) == ("my_tasks:Ranking", {"margin": 1}, 64)
