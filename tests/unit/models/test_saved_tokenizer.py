"""The limit of a saved tokenizer: a pipeline of transformers cuts texts where `predict` cuts them."""

from pathlib import Path

import pytest
import torch
from raised import raises_code
from tiny import tiny_model, tiny_tokenizer
from transformers import AutoTokenizer, pipeline

from paratune.api.predict import predict
from paratune.config.sections import ModelOptions
from paratune.models.load import Head, load_model
from paratune.models.save import save_model
from paratune.models.tokenizer import load_tokenizer
from paratune.precision import POLICIES
from paratune.records import read_json, write_json

LONG = " ".join(["good film"] * 9 + ["bad ugly awful book"] * 9)
NAMES = ("no", "yes")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A trained model with max_length 12 of 64 positions, and another truncation side than its tokenizer's."""
    tiny_model(tmp_path / "start")
    options = ModelOptions(name=str(tmp_path / "start"))
    tokenizer = load_tokenizer(options, "left")
    head = Head("AutoModelForSequenceClassification", 2, NAMES, "single_label_classification")
    model = load_model(options, "classification", head, tokenizer, POLICIES["fp32"], 0)
    torch.manual_seed(0)
    torch.nn.init.normal_(model.hf.classifier.weight)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    task = {"task": {"kind": "classification", "labels": list(NAMES)}, "columns": {"text": "text"}, "max_length": 12}
    save_model(tmp_path / "model", model, tokenizer, weights, {"schema_version": 1, **task})
    return tmp_path / "model"


def test_a_pipeline_cuts_texts_where_predict_does(folder: Path, tmp_path: Path):
    pipe = pipeline("text-classification", model=str(folder), device="cpu")
    assert (pipe.tokenizer.model_max_length, pipe.tokenizer.truncation_side) == (12, "left")
    scores = {entry["label"]: entry["score"] for entry in pipe([LONG], top_k=None, truncation=True)[0]}
    ours = predict(str(folder), [LONG], device="cpu").to_pylist()[0]
    assert [ours[f"score_{name}"] for name in NAMES] == pytest.approx([scores[name] for name in NAMES], abs=1e-6)


def test_a_later_run_may_use_all_positions_of_the_model(folder: Path):
    tokenizer = load_tokenizer(ModelOptions(name=str(folder)))
    assert (tokenizer.model_max_length, tokenizer.truncation_side) == (64, "left")
    assert read_json(folder / "paratune.json")["tokenizer_limit"] == 64
    (folder / "paratune.json").unlink()  # of another program: the limit of the folder holds
    assert load_tokenizer(ModelOptions(name=str(folder))).model_max_length == 12


def test_a_tokenizer_without_a_limit_keeps_none(tmp_path: Path):
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = int(1e30)
    model = tiny_model()
    from paratune.models.task_model import TaskModel

    wrapped = TaskModel(model, "classification")
    weights = {name: value.detach() for name, value in wrapped.named_parameters()}
    save_model(tmp_path / "model", wrapped, tokenizer, weights, {"max_length": 20})
    assert tokenizer.model_max_length == int(1e30)
    assert AutoTokenizer.from_pretrained(tmp_path / "model").model_max_length == 20
    assert load_tokenizer(ModelOptions(name=str(tmp_path / "model"))).model_max_length == int(1e30)
    record = read_json(tmp_path / "model" / "paratune.json")
    write_json(tmp_path / "model" / "paratune.json", {**record, "tokenizer_limit": None})
    assert load_tokenizer(ModelOptions(name=str(tmp_path / "model"))).model_max_length == 20
    write_json(tmp_path / "model" / "paratune.json", {**record, "tokenizer_limit": 0})
    with raises_code("data.max_length_unfit"):
        load_tokenizer(ModelOptions(name=str(tmp_path / "model")))
    write_json(tmp_path / "model" / "paratune.json", [])
    with raises_code("run.damaged", "paratune.json"):
        load_tokenizer(ModelOptions(name=str(tmp_path / "model")))
